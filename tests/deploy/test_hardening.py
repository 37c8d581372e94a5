"""The option TANDEM_HARDENING: a program and a library that are built with it have every protection; the option can be off; it refuses
sanitizers."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

from elf import missing_hardening

SOURCE = pathlib.Path(__file__).parent / "hardening"


@unittest.skipUnless(shutil.which("readelf") and shutil.which("cmake"), "needs cmake and readelf")
class Hardening(unittest.TestCase):
    def build(self, *options):
        folder = tempfile.TemporaryDirectory(prefix="tandem-hardening-")
        self.addCleanup(folder.cleanup)
        configured = subprocess.run(
            ["cmake", "-S", SOURCE, "-B", folder.name, *options],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if configured.returncode == 0:
            subprocess.run(["cmake", "--build", folder.name], stdout=subprocess.DEVNULL, timeout=300, check=True)
        return pathlib.Path(folder.name), configured

    def test_everything_is_hardened(self):
        folder, _ = self.build("-DTANDEM_HARDENING=ON")
        for binary in (folder / "bin/program", folder / "lib/liblibrary.so"):
            self.assertEqual(missing_hardening(binary), set(), binary)

    def test_the_option_is_off_by_default(self):
        folder, _ = self.build()
        self.assertIn("FORTIFY", missing_hardening(folder / "bin/program"))

    def test_sanitizers_are_refused(self):
        _, configured = self.build("-DTANDEM_HARDENING=ON", "-DTANDEM_SANITIZE=address")
        self.assertNotEqual(configured.returncode, 0)
        self.assertIn("exclude each other", " ".join(configured.stderr.split()))


if __name__ == "__main__":
    unittest.main()
