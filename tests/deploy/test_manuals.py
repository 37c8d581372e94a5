"""The man pages that deploy/man makes of the programs: man and mandoc find no fault, and every option, command and key of the programs is in them."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", ROOT / "build/check/bin"))
PAGES = ("tandemd.8", "tandem-engine.8", "tandemctl.1", "tandemd.toml.5")
# tandemctl's commands that have commands of their own; found by the option -h of each.
NESTED = ("tuning",)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def setUpModule():
    global MANUALS
    folder = tempfile.TemporaryDirectory(prefix="tandem-manuals-")
    unittest.addModuleCleanup(folder.cleanup)
    MANUALS = pathlib.Path(folder.name)
    programs = (("--tandemd", "tandemd"), ("--engine", "tandem-engine"), ("--tandemctl", "tandemctl"))
    command = [sys.executable, "-B", str(ROOT / "deploy/man/make_pages.py"), "--version", "1.2.3", folder.name]
    output(*command, *(word for option, name in programs for word in (option, str(BIN / name))))


def rendered(page):
    text = subprocess.run(
        ["man", "-E", "ascii", "-l", str(MANUALS / page)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "MANWIDTH": "200", "MANPAGER": "cat", "GROFF_NO_SGR": "1"},
    ).stdout
    return re.sub(r".\x08", "", text)


def long_options(help_text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_text))


class Manuals(unittest.TestCase):
    def test_no_placeholder_is_left(self):
        for page in PAGES:
            self.assertNotRegex((MANUALS / page).read_text(), r"@[A-Z]+@")

    @unittest.skipUnless(shutil.which("man"), "needs man")
    def test_man_warns_of_nothing(self):
        for page in PAGES:
            done = subprocess.run(
                ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(MANUALS / page)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), page)

    @unittest.skipUnless(shutil.which("mandoc"), "needs mandoc")
    def test_mandoc_finds_no_fault(self):
        for page in PAGES:
            done = subprocess.run(
                ["mandoc", "-T", "lint", "-W", "warning", str(MANUALS / page)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            # A page of a program that is built has no date: it would change with each build.
            faults = [line for line in done.stdout.splitlines() if "missing date" not in line]
            self.assertEqual(faults, [], page)

    @unittest.skipUnless(shutil.which("man"), "needs man")
    def test_every_option_of_tandemd(self):
        text = rendered("tandemd.8")
        wanted = long_options(output(BIN / "tandemd", "--help"))
        self.assertGreater(len(wanted), 40)
        self.assertLessEqual(wanted, long_options(text))

    @unittest.skipUnless(shutil.which("man"), "needs man")
    def test_every_key(self):
        text = rendered("tandemd.toml.5")
        wanted = re.findall(r"^# (\w+) = (.*)$", output(BIN / "tandemd", "--print-default-config"), re.M)
        self.assertGreater(len(wanted), 40)
        for key, default in wanted:
            self.assertIn(f"{key} = {default}", text)

    @unittest.skipUnless(shutil.which("man"), "needs man")
    def test_every_command_of_tandemctl(self):
        text = rendered("tandemctl.1")
        parts = dict(re.findall(r"^   ([a-z]+(?: [a-z]+)*)\n(.*?)(?=^   \S|^[A-Z])", text, re.M | re.S))
        listed = re.findall(r"^  ([a-z]+) ", output(BIN / "tandemctl", "--help").split("ubcommands:", 1)[1], re.M)
        self.assertGreater(len(listed), 12)
        for name in listed:
            self.assertIn(name, parts)
            inner = re.findall(
                r"^  ([a-z]+) ", output(BIN / "tandemctl", name, "--help").partition("ubcommands:")[2], re.M
            )
            self.assertEqual(bool(inner), name in NESTED, name)
            for path in [(name,), *((name, word) for word in inner)]:
                wanted = long_options(output(BIN / "tandemctl", *path, "--help")) - {"--help"}
                if path == (name,):
                    wanted -= {
                        option
                        for word in inner
                        for option in long_options(output(BIN / "tandemctl", name, word, "--help"))
                    }
                self.assertLessEqual(wanted, long_options(parts[" ".join(path)]), path)


if __name__ == "__main__":
    unittest.main()
