"""Clang's thread-safety analysis of the control plane: each function of daemon/control holds the mutex that its data needs.

Reads the compile commands of $TANDEM_BUILD_DIR. Without clang++ the test ends with status 77, which ctest counts as skipped.
"""

import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BUILD = os.environ.get("TANDEM_BUILD_DIR", os.path.join(ROOT, "build/dev"))
CHECKED = "daemon/control/"
# The header with most of what the files include: parsed once.
COMMON_HEADER = "daemon/control/records/control_core.h"
CLANG = os.environ.get("TANDEM_CLANGXX") or shutil.which("clang++")

# Each part is a mistake that the analysis must find, by this text.
PLANTED = {
    "a record that is read without the mutex": (
        "size_t Planted(Registry& registry) { return registry.sessions.size(); }",
        "reading variable 'sessions' requires holding",
    ),
    "a group's field that is written without the mutex": (
        "void Planted(GroupRecord& group) { group.generation = 7; }",
        "writing variable 'generation' requires holding",
    ),
    "a call of a function that needs the mutex": (
        "bool Planted(const Registry& registry, const GroupRecord& group) { return registry.Has(group); }",
        "calling function 'Has' requires holding",
    ),
    "a record that is read after the mutex was released": (
        "bool Planted(Registry& registry) { RegistryLock lock(registry); lock.Unlock(); return registry.stopping; }",
        "reading variable 'stopping' requires holding",
    ),
}


def sources():
    """The sources of daemon/control, without tests."""
    found = []
    for folder, _, names in os.walk(os.path.join(ROOT, CHECKED)):
        if os.path.basename(folder) != "tests":
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names if name.endswith(".cc")]
    return sorted(found)


def compile_flags():
    """The flags of the target tandem_control that the analysis needs; all its sources have the same."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    for entry in commands:
        words = entry.get("arguments") or shlex.split(entry["command"])
        if not any("tandem_control.dir/" in word for word in words):
            continue
        flags = []
        for word, following in zip(words, words[1:] + [""]):
            if word.startswith(("-I", "-D", "-std=")):
                flags.append(word)
            elif word == "-isystem":
                flags += [word, following]
        return flags
    raise AssertionError("compile_commands.json has no source of tandem_control")


def analyse(flags, source, header=None):
    """The compiler's messages about `source`; empty if there are none."""
    command = [CLANG, *flags, "-Wno-everything", "-Wthread-safety", "-Werror"]
    command += ["-include-pch", header] if header else []
    done = subprocess.run(command + ["-fsyntax-only", source], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


class ThreadSafetyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.flags = compile_flags()
        cls.scratch = tempfile.TemporaryDirectory(prefix="tandem-thread-safety-")
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.header = os.path.join(cls.scratch.name, "common.pch")
        subprocess.run(
            [
                CLANG,
                *cls.flags,
                "-Wno-everything",
                "-Wthread-safety",
                "-Werror",
                "-x",
                "c++-header",
                os.path.join(ROOT, COMMON_HEADER),
                "-o",
                cls.header,
            ],
            cwd=ROOT,
            check=True,
        )

    def test_every_source_is_clean(self):
        self.assertGreater(len(sources()), 20)
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            messages = pool.map(lambda source: analyse(self.flags, source, self.header), sources())
        text = "".join(messages)
        self.assertEqual(text, "", text)

    def test_planted_mistakes_are_found(self):
        for name, (code, expected) in PLANTED.items():
            with self.subTest(name):
                path = os.path.join(self.scratch.name, "planted.cc")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f'#include "{COMMON_HEADER}"\nnamespace tandem::daemon {{\n{code}\n}}\n')
                self.assertIn(expected, analyse(self.flags, path, self.header))


if __name__ == "__main__":
    if CLANG is None:
        print("there is no clang++: skipped")
        sys.exit(77)
    unittest.main(verbosity=2)
