"""Versions of torch: the library of eager collectives for the torch that runs, the reason where Tandem has none for it, and how the
libraries of several versions are built. Nothing is downloaded: another version is the same torch under its number."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from node import BIN, HERE, SOURCE

ROOT = os.path.realpath(os.path.join(HERE, "../.."))
LIBRARIES = os.path.join(os.path.dirname(BIN), "lib")
DISTRIBUTED = os.path.join(ROOT, "client/torch/distributed")

# Calls itself another version of torch where one is given, and asks for eager collectives.
PROGRAM = """
import sys, torch
own = "libtandem_c10d_" + "_".join(torch.__version__.split(".")[:2])
torch.__version__ = (sys.argv[1:] or [torch.__version__])[0]
import tandem.torch
tandem.torch.install()
with open("/proc/self/maps") as file:
    loaded = sorted({line.split()[-1] for line in file if "libtandem_c10d_" in line})
print(own, loaded)
print(tandem.torch.report())
"""


class Loaded(unittest.TestCase):
    """An installation with libraries of several versions. Those of other versions cannot be loaded."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in os.listdir(LIBRARIES):
            if re.match(r"lib\w+\.so", name) and not name.startswith("libtandem_c10d_"):
                os.symlink(os.path.join(LIBRARIES, name), os.path.join(self.folder, name))
        for name in ("libtandem_c10d_2_9.so", "libtandem_c10d_2_90.so"):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write("of another torch")

    def add_own(self, name):
        shutil.copy(os.path.join(LIBRARIES, name), os.path.join(self.folder, name))

    def run_program(self, *arguments):
        """(what it printed, its lines on standard error)."""
        env = {"PYTHONPATH": SOURCE, "TANDEM_LIBRARY": os.path.join(self.folder, "libtandem.so"), "TANDEM_REPORT": "1"}
        ran = subprocess.run(
            [sys.executable, "-B", "-c", PROGRAM, *arguments],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout, ran.stderr

    def test_the_library_of_this_torch_is_loaded(self):
        own = self.run_program()[0].split()[0] + ".so"
        self.add_own(own)
        printed, log = self.run_program()
        self.assertIn(f"['{self.folder}/{own}']", printed)
        self.assertTrue(printed.endswith("Tandem has run 0 of 0 collectives of torch.distributed\n"), printed)
        self.assertNotIn("stay with their backends", log)

    def test_a_torch_without_a_library_is_named(self):
        printed, log = self.run_program("2.16.0+cu132")
        reason = (
            "this Tandem has no libtandem_c10d_2_16.so for torch 2.16.0+cu132; its eager collectives are for "
            "torch 2.9, 2.90: install one of these, or a Tandem that is built for torch 2.16"
        )
        self.assertIn(f"Tandem has run 0 of 0 collectives of torch.distributed; {reason}", printed)
        self.assertIn(f"collectives of torch.distributed stay with their backends: {reason}", log)
        self.assertRegex(
            log, rf"(?m)^tandem: process \d+ ran 0 of 0 collectives of torch.distributed; {re.escape(reason)}$"
        )

    def test_a_library_that_cannot_be_loaded_is_named(self):
        printed, _ = self.run_program("2.90.1")
        self.assertRegex(
            printed, rf"torch\.distributed; torch 2\.90\.1 needs {self.folder}/libtandem_c10d_2_90\.so: \w+"
        )


@unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "needs cmake and ninja")
class Built(unittest.TestCase):
    """What a release is built with, from wheels of a folder in place of a registry."""

    VERSIONS = ("98.1.0", "99.0.2")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.wheels = os.path.join(self.folder, "wheels")
        os.mkdir(self.wheels)
        for version in self.VERSIONS:
            self.write_wheel(version)

    def write_wheel(self, version):
        info = f"torch-{version}.dist-info"
        with zipfile.ZipFile(os.path.join(self.wheels, f"torch-{version}-py3-none-any.whl"), "w") as wheel:
            wheel.writestr("torch/version.py", f"from typing import Optional\n__version__ = '{version}+cu999'\n")
            for name in ("include/torch/library.h", "lib/libtorch_cpu.so", "lib/libc10.so", "lib/libtorch_cuda.so"):
                wheel.writestr("torch/" + name, "")
            metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\nRequires-Dist: none-such\n"
            wheel.writestr(f"{info}/METADATA", metadata)
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def fetch(self, **env):
        ran = subprocess.run(
            [os.path.join(DISTRIBUTED, "fetch_torch"), os.path.join(self.folder, "torch"), *self.VERSIONS],
            env={**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.wheels, **env},
            capture_output=True,
            text=True,
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout.strip()

    def test_each_version_is_a_target(self):
        folders = self.fetch()
        self.assertEqual(folders, ";".join(f"{self.folder}/torch/{version}/torch" for version in self.VERSIONS))
        for folder in folders.split(";"):
            self.assertEqual(sorted(os.listdir(folder)), ["include", "lib", "version.py"])
            self.assertEqual(sorted(os.listdir(f"{folder}/lib")), ["libc10.so", "libtorch_cpu.so"])
            self.assertEqual(os.listdir(os.path.dirname(folder)), ["torch"])
        self.assertEqual(self.fetch(PIP_FIND_LINKS="/nonexistent"), folders)  # nothing is fetched twice
        self.assertEqual(self.libraries(folders), {"libtandem_c10d_98_1.so", "libtandem_c10d_99_0.so"})

    def libraries(self, folders):
        """The libraries that the target tandem_c10d builds. The first folder has the headers of the build's own torch, too."""
        source, build = os.path.join(self.folder, "source"), os.path.join(self.folder, "build")
        os.mkdir(source)
        with open(os.path.join(source, "CMakeLists.txt"), "w") as file:
            file.write(
                "cmake_minimum_required(VERSION 3.25)\nproject(versions LANGUAGES CXX)\n"
                f"include({ROOT}/cmake/TandemTargets.cmake)\n"
                f'set(TANDEM_TORCH_INCLUDE "{folders.split(";")[0]}/include")\n'
                f"add_subdirectory({DISTRIBUTED} distributed)\n"
            )
        command = ["cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DTANDEM_C10D_TORCH={folders}"]
        made = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        planned = subprocess.run(
            ["ninja", "-C", build, "-n", "tandem_c10d"], capture_output=True, text=True, check=True
        )
        return set(re.findall(r"Linking CXX shared module lib/(libtandem_c10d_\S+\.so)", planned.stdout))


if __name__ == "__main__":
    unittest.main()
