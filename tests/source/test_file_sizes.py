"""A source file has one idea and at most 500 lines."""

import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
MOST = 500
SOURCES = (".c", ".cc", ".cmake", ".cu", ".cuh", ".h", ".inc", ".md", ".proto", ".py", ".sh", "CMakeLists.txt")


def too_long(root):
    """[file, lines] of every source file over MOST lines."""
    found = []
    for folder, folders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        folders[:] = [
            name
            for name in folders
            if not re.match(r"\.(?!ci$)|build|dist$|shared$|__pycache__$|results$", name) or inside.startswith("docs")
        ]
        for name in names:
            if name.endswith(SOURCES):
                path = os.path.normpath(os.path.join(inside, name))
                with open(os.path.join(root, path), errors="replace") as file:
                    lines = sum(1 for _ in file)
                if lines > MOST:
                    found.append((path, lines))
    return sorted(found)


class FileSizes(unittest.TestCase):
    def test_no_file_is_too_long(self):
        self.assertEqual(too_long(ROOT), [], "split it by idea")

    def test_a_planted_one_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            for path, lines in (("a/long.cc", 501), ("a/right.cc", 500), ("build/x.cc", 900), ("data.csv", 2000)):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write("\n" * lines)
            self.assertEqual(too_long(root), [("a/long.cc", 501)])


if __name__ == "__main__":
    unittest.main()
