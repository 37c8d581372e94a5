"""The places in CONTRIBUTING.md where an operation is added exist, mention the operation of the example, and are all of them."""

import os
import re
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SKIPPED = re.compile(r"\.|build|dist$|shared$|tests$|__pycache__$")
NAMED = "Op::kAllToAll"


def read(path):
    with open(os.path.join(ROOT, path), errors="replace") as file:
        return file.read()


def places(page):
    """[file, words] of the rows of the table under "Add an operation"."""
    section = re.search(r"^## Add an operation\n(.*?)^## ", page, re.M | re.S)[1]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    return [
        (path, re.findall(r"`([^`]+)`", words))
        for files, words, _ in rows[2:]
        for path in re.findall(r"`([^`]+)`", files)
    ]


def faults(found, read_file):
    """Faults of these places: files that do not exist, rows without words, words that a file does not have."""
    wrong = []
    for path, words in found:
        try:
            text = read_file(path)
        except OSError:
            wrong.append(f"{path} does not exist")
            continue
        wrong += [f"{path} does not mention {word}" for word in words if word not in text]
        if not words:
            wrong.append(f"{path} has no words")
    return wrong


def naming(root):
    """The C++ sources without tests that name the operation."""
    found = set()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not SKIPPED.match(name)]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith((".cc", ".h", ".cu", ".cuh")) and re.search(NAMED + r"\b", read(path)):
                found.add(path)
    return found


class OperationPlaces(unittest.TestCase):
    maxDiff = None

    def test_each_place_mentions_the_operation(self):
        found = places(read("CONTRIBUTING.md"))
        self.assertGreater(len(found), 15)
        self.assertEqual(faults(found, read), [])

    def test_no_source_is_missing(self):
        named = naming(ROOT)
        self.assertGreater(len(named), 3)
        self.assertEqual(named - {path for path, _ in places(read("CONTRIBUTING.md"))}, set())

    def test_planted_faults_are_found(self):
        page = "## Add an operation\n\n| file | words | add |\n|---|---|---|\n%s\n## Next\n"
        rows = "| `a.cc`, `b.cc` | `kOne` | x |\n| `c.cc` | `kOne` | y |\n| `a.cc` | | z |"

        def read_file(path):
            if path == "c.cc":
                raise FileNotFoundError(path)
            return "case Op::kOne:" if path == "a.cc" else ""

        self.assertEqual(
            faults(places(page % rows), read_file),
            ["b.cc does not mention kOne", "c.cc does not exist", "a.cc has no words"],
        )


if __name__ == "__main__":
    unittest.main()
