"""A source file has one idea and at most 500 lines; an example can be read at once, in 40 to 80."""

import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
MOST = 500
EXAMPLE = range(40, 81)
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


def examples(root):
    """[file, lines] of the examples that are shown whole, those in examples/ itself."""
    folder = os.path.join(root, "examples")
    names = sorted(name for name in os.listdir(folder) if name.endswith((".c", ".cc")))
    found = []
    for name in names:
        with open(os.path.join(folder, name), errors="replace") as file:
            found.append((name, sum(1 for _ in file)))
    return found


class FileSizes(unittest.TestCase):
    def test_no_file_is_too_long(self):
        self.assertEqual(too_long(ROOT), [], "split it by idea")

    def test_examples_can_be_read_at_once(self):
        found = examples(ROOT)
        self.assertGreaterEqual(
            {name for name, _ in found}, {"all_reduce.cc", "all_reduce.c", "all_gather_matmul.cc", "recover.cc"}
        )
        self.assertEqual([(name, lines) for name, lines in found if lines not in EXAMPLE], [])

    def test_a_planted_one_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            for path, lines in (("a/long.cc", 501), ("a/right.cc", 500), ("build/x.cc", 900), ("data.csv", 2000)):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write("\n" * lines)
            self.assertEqual(too_long(root), [("a/long.cc", 501)])


if __name__ == "__main__":
    unittest.main()
