"""One definition of what several processes share: the word, the size of the signal area, the default deadlines."""

import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TOPS = (
    "bench",
    "client",
    "common",
    "daemon",
    "drivers",
    "engine",
    "examples",
    "ipc",
    "kernels",
    "program",
    "tests",
)
SOURCES = (".c", ".cc", ".cu", ".cuh", ".h", ".py")
COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)

# The form of a definition; the group catches the name.
WORD = re.compile(
    r"\busing\s+(Word)\s*=|\btypedef\b[^;]*\b(Word)\s*;|\b(?:class|struct|union)\s+(Word)\s*(?:final\s*)?[:{]"
)
SIGNAL_AREA = re.compile(r"\b(k\w*Signal(?:s|Area|Word|Words)?(?:Bytes|Size))\s*(?:=(?!=)|\{)")
# A deadline by default that is a number, in C, C++ or Python; what takes its number from another name defines none.
DEADLINE = re.compile(
    r"#\s*define\s+(\w*DEFAULT\w*DEADLINE\w*)\s+[({]*\d"
    r"|\b(\w*[Dd]efault_?\w*[Dd]eadline\w*)\s*(?:\{|=(?!=))\s*(?:[\w:]+[({])?\s*\d"
    r"|\b(DEFAULT_\w*DEADLINE\w*)\s*=\s*\d"
)

WANTED = {
    "word": {("common/word.h", "Word")},
    "signal area": {
        ("program/program.h", "kSignalWordBytes"),
        ("program/program.h", "kSignalAreaBytes"),
        ("program/program.h", "kClientSignalAreaBytes"),
    },
    "deadline": {
        ("common/include/tandem/deadlines.h", "TANDEM_DEFAULT_CONNECT_DEADLINE_MS"),
        ("common/include/tandem/deadlines.h", "TANDEM_DEFAULT_DEADLINE_MS"),
        ("common/include/tandem/deadlines.h", "TANDEM_DEFAULT_WAIT_DEADLINE_MS"),
        ("common/deadline.h", "kDefaultLaunchDeadline"),
    },
}
PATTERNS = {"word": WORD, "signal area": SIGNAL_AREA, "deadline": DEADLINE}


def definitions(root):
    """kind -> [(file, name)] of all definitions below `root`."""
    found = {kind: [] for kind in PATTERNS}
    for top in TOPS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if name not in ("build", "__pycache__")]
            for name in sorted(names):
                path = os.path.join(folder, name)
                if not name.endswith(SOURCES) or os.path.basename(path) == os.path.basename(__file__):
                    continue
                with open(path, errors="replace") as file:
                    text = file.read()
                text = text if name.endswith(".py") else COMMENTS.sub(" ", text)
                for kind, pattern in PATTERNS.items():
                    for match in pattern.finditer(text):
                        name_found = next(filter(None, match.groups()))
                        found[kind].append((os.path.relpath(path, root), name_found))
    return found


class SingleDefinitions(unittest.TestCase):
    maxDiff = None

    def test_each_has_one(self):
        for kind, found in definitions(ROOT).items():
            with self.subTest(kind):
                self.assertEqual(sorted(found), sorted(WANTED[kind]))

    def test_planted_ones_are_found(self):
        planted = {
            "ipc/a.h": ("word", "Word", "using Word = volatile uint64_t;"),
            "engine/b.h": ("word", "Word", "struct Word {\n  uint64_t value;\n};"),
            "kernels/c.cuh": ("word", "Word", "typedef unsigned long long Word;"),
            "engine/d.h": ("signal area", "kSignalAreaBytes", "inline constexpr size_t kSignalAreaBytes = 4 << 20;"),
            "client/e.cc": ("signal area", "kSignalBytes", "constexpr uint64_t kSignalBytes{65536};"),
            "daemon/f.h": ("deadline", "default_deadline", "std::chrono::milliseconds default_deadline{30000};"),
            "client/g.h": (
                "deadline",
                "kDefaultDeadline",
                "constexpr Milliseconds kDefaultDeadline = Milliseconds(30'000);",
            ),
            "engine/h.cc": (
                "deadline",
                "kDefaultLaunchDeadline",
                "auto kDefaultLaunchDeadline = std::chrono::minutes(10);",
            ),
            "client/i.h": ("deadline", "MY_DEFAULT_DEADLINE_MS", "#define MY_DEFAULT_DEADLINE_MS (30000)"),
            "client/python/j.py": ("deadline", "DEFAULT_DEADLINE", "DEFAULT_DEADLINE = 30.0"),
        }
        innocent = {
            "engine/k.h": "class Word;\nWord* word;\n// using Word = int;\nclass WordBand {};\nusing Words = Word*;",
            "engine/l.h": "size_t bytes = plan::kSignalAreaBytes;\nif (kSignalAreaBytes == 4) {}\nuint64_t kOther = 4;",
            "client/m.h": "constexpr Milliseconds kDefaultDeadline{TANDEM_DEFAULT_DEADLINE_MS};\nMilliseconds deadline{0};",
            "daemon/n.h": "milliseconds default_launch_deadline = kDefaultLaunchDeadline;\n/* default_deadline = 3 */",
            "build/o.h": "using Word = int;",
        }
        with tempfile.TemporaryDirectory() as root:
            texts = {path: text for path, (_, _, text) in planted.items()}
            for path, text in {**texts, **innocent}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            found = {(path, kind, name) for kind, places in definitions(root).items() for path, name in places}
        self.assertEqual(found, {(path, kind, name) for path, (kind, name, _) in planted.items()})


if __name__ == "__main__":
    unittest.main()
