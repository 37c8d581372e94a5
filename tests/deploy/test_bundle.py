"""client/bundle: a library and all that it needs, in a folder, apart from other copies. On a small library that needs two others, one with
a unique symbol."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "client/bundle/bundle_libraries.py"
# Debian has pyelftools for its own Python only.
PYTHONS = [sys.executable, "/usr/bin/python3"]
# The static object of an inline function is a unique symbol.
NEEDED = """
inline int &count() { static int number = 0; return number; }
extern "C" int inner_count() { return ++count(); }
"""
BETWEEN = """
extern "C" int inner_count();
extern "C" int between_count() { return inner_count(); }
"""
LIBRARY = """
extern "C" int inner_count();
extern "C" int between_count();
extern "C" int outer_count() { return between_count(); }
extern "C" int other_count() { return inner_count(); }
"""


def python():
    """A Python with pyelftools, or None."""
    for each in PYTHONS:
        if shutil.which(each) and subprocess.run([each, "-c", "import elftools"], capture_output=True).returncode == 0:
            return each
    return None


def names(library, tag):
    told = subprocess.run(["readelf", "-Wd", library], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", told)


@unittest.skipUnless(python(), "needs pyelftools")
@unittest.skipUnless(all(map(shutil.which, ("c++", "patchelf", "ldd", "readelf"))), "needs c++, patchelf, readelf")
class Bundle(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.inner = self.compile(NEEDED, "libinner.so.1")
        self.between = self.compile(BETWEEN, "libbetween.so.2", self.inner)
        self.outer = self.compile(LIBRARY, "libouter.so", self.between, self.inner)

    def compile(self, source, name, *more):
        library = self.folder / name
        command = ["c++", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", library, "-x", "c++", "-", "-x", "none"]
        subprocess.run([*command, *more], input=source, text=True, check=True)
        return library

    def bundle(self, library):
        return subprocess.run(
            [python(), "-B", SCRIPT, "--folder", "own", library, self.folder / "out"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LD_LIBRARY_PATH": str(self.folder)},
        )

    def test_it_has_what_the_library_needs_and_nothing_of_the_system(self):
        made = self.bundle(self.outer)
        self.assertEqual(made.returncode, 0, made.stderr)
        between, inner = sorted((self.folder / "out/own").iterdir())
        outer = self.folder / "out/libouter.so"
        self.assertRegex(between.name, r"^libbetween-[0-9a-f]{8}\.so\.2$")
        self.assertRegex(inner.name, r"^libinner-[0-9a-f]{8}\.so\.1$")
        self.assertEqual(names(inner, "SONAME"), [inner.name])
        self.assertEqual([name for name in names(outer, "NEEDED") if "-" in name], [between.name, inner.name])
        self.assertEqual([name for name in names(between, "NEEDED") if "-" in name], [inner.name])
        run_paths = [names(library, "RUNPATH") for library in (outer, between, inner)]
        self.assertEqual(run_paths, [["$ORIGIN/own"], ["$ORIGIN"], []])
        self.assertEqual(
            json.loads((self.folder / "out/bundled.json").read_text()),
            [
                {"name": "libbetween.so.2", "file": f"own/{between.name}", "source": str(self.between.resolve())},
                {"name": "libinner.so.1", "file": f"own/{inner.name}", "source": str(self.inner.resolve())},
            ],
        )

    def test_the_copy_shares_nothing_with_another(self):
        """Two bundles of the same library: names differ, as those of two versions do."""
        self.assertEqual(self.bundle(self.outer).returncode, 0)
        first = (self.folder / "out").rename(self.folder / "first")
        self.inner = self.compile(NEEDED + "int other;", "libinner.so.1")
        self.assertEqual(self.bundle(self.outer).returncode, 0)
        first, second = ctypes.CDLL(str(first / "libouter.so")), ctypes.CDLL(str(self.folder / "out/libouter.so"))
        self.assertEqual([first.outer_count(), first.outer_count(), second.outer_count()], [1, 2, 1])

    def test_a_library_that_is_not_found_is_an_error(self):
        self.inner.unlink()
        made = self.bundle(self.outer)
        self.assertEqual(made.returncode, 1)
        self.assertIn("needs libinner.so.1, which the loader does not find", made.stderr)

    @unittest.skipUnless(shutil.which("cmake"), "needs cmake")
    def test_the_build_says_what_is_missing(self):
        folders = ";".join(folder for folder in os.environ["PATH"].split(":") if os.path.exists(f"{folder}/patchelf"))
        done = subprocess.run(
            ["cmake", f"-DCMAKE_IGNORE_PATH={folders};/bin", "-P", ROOT / "cmake/TandemBundle.cmake"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("TANDEM_BUNDLE_GRPC needs patchelf", done.stderr)


if __name__ == "__main__":
    unittest.main()
