"""clang-tidy, as tests/lint runs it, finds planted mistakes in sources and headers, also where it has called the text clean before."""

import json
import os
import shutil
import sys
import tempfile
import unittest

import tidy

CLEAN = '#include "a.h"\nnamespace x {\nint Twice(const Value& value) { return 2 * value.number; }\n}\n'
HEADER = "#pragma once\nnamespace x {\nstruct Value {\n  int number = 0;\n};\n}\n"
# Name: the source, the header, the check.
PLANTED = {
    "a moved value is used": (
        "#include <string>\n#include <utility>\n"
        "int Length(std::string text) { std::string other = std::move(text); return static_cast<int>(other.size() + text.size()); }\n",
        HEADER,
        "bugprone-use-after-move",
    ),
    "a vector grows in a loop": (
        "#include <vector>\nstd::vector<int> Copy(const std::vector<int>& from) {\n  std::vector<int> to;\n"
        "  for (int i : from) to.push_back(i);\n  return to;\n}\n",
        HEADER,
        "performance-inefficient-vector-operation",
    ),
    "a name is in another style": (CLEAN.replace("Twice", "doubleIt"), HEADER, "readability-identifier-naming"),
    "a header has a mistake": (CLEAN, HEADER.replace("Value", "value_type"), "readability-identifier-naming"),
    "a file is not C++": ("int F( {\n", HEADER, "clang-diagnostic-error"),
}


class TidyTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="tandem-tidy-")
        self.addCleanup(scratch.cleanup)
        self.root = scratch.name
        old, tidy.CACHE = tidy.CACHE, os.path.join(self.root, "cache")
        self.addCleanup(setattr, tidy, "CACHE", old)

    def write(self, source, header):
        """A build folder whose unity source includes engine/a.cc, as CMake writes it."""
        folder, build = os.path.join(self.root, "engine"), os.path.join(self.root, "build")
        os.makedirs(folder, exist_ok=True)
        os.makedirs(build, exist_ok=True)
        unity = os.path.join(build, "unity_0_cxx.cxx")
        files = {os.path.join(folder, "a.cc"): source, os.path.join(folder, "a.h"): header}
        files[unity] = f'#include "{folder}/a.cc"\n'
        entry = {"directory": build, "file": unity, "command": f"c++ -std=c++20 -O2 -o x.o -c {unity}"}
        files[os.path.join(build, "compile_commands.json")] = json.dumps([entry])
        for path, text in files.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return build

    def check(self, source, header):
        """The findings in `source` and `header`."""
        return tidy.check(self.write(source, header))

    def stamp(self, source):
        """Where `source` is noted once it is clean."""
        (entry,) = tidy.entries(self.write(source, HEADER))
        return tidy.stamp_of(entry, tidy.flags_of(entry))

    def test_planted_mistakes_are_found(self):
        for name, (source, header, expected) in PLANTED.items():
            with self.subTest(name):
                self.assertEqual(self.check(CLEAN, HEADER), "")
                self.assertIn(expected, self.check(source, header))

    def test_a_clean_text_is_checked_once(self):
        self.assertEqual(self.check(CLEAN, HEADER), "")
        stamps = os.listdir(tidy.CACHE)
        self.assertEqual(len(stamps), 1)
        # The name of a stamp is all that counts: what has one is not read.
        os.rename(os.path.join(tidy.CACHE, stamps[0]), os.path.join(tidy.CACHE, "moved"))
        twice = self.stamp(CLEAN.replace("Twice", "doubleIt"))
        os.rename(os.path.join(tidy.CACHE, "moved"), twice)
        self.assertEqual(self.check(CLEAN.replace("Twice", "doubleIt"), HEADER), "")


if __name__ == "__main__":
    if shutil.which(tidy.TIDY) is None:
        print("there is no clang-tidy: skipped")
        sys.exit(77)
    unittest.main(verbosity=2)
