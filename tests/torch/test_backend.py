"""The backend "tandem" of torch.distributed, and programs that have no line of Tandem's."""

import os
import tempfile
import unittest

from check_programs import Checks, add_tests
from node import CUDA, SOURCE, Daemon, Ranks


class Backend(Checks, unittest.TestCase):
    program = "rank_backend.py"


class BackendOfFourRanks(Backend):
    world = 4


@unittest.skipUnless(CUDA, "NCCL needs a GPU")
class OnNccl(Checks, unittest.TestCase):
    program = "rank_nccl.py"
    world = 1


@unittest.skipIf(CUDA, "its sums are on the CPU")
class Autoload(unittest.TestCase):
    """The package is installed, so that `import torch` finds its entry points."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=2)
        cls.addClassCleanup(cls.daemon.stop)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        write_entry_points(folder.name)
        cls.path = f"{SOURCE}{os.pathsep}{folder.name}"

    def ranks(self, *arguments, **env):
        """(what each rank printed, each rank's log)."""
        env = {"PYTHONPATH": self.path} | env
        ranks = Ranks(self.daemon, 2, "rank_autoload.py", *arguments, env=env, fresh=True)
        try:
            ranks.wait()
            return [(ranks.printed(rank).strip(), ranks.log(rank)) for rank in range(2)]
        finally:
            ranks.close()

    def test_the_backend_needs_no_import(self):
        for rank, (printed, log) in enumerate(self.ranks("cpu:tandem", TANDEM_REPORT="1")):
            self.assertEqual(printed, "True")
            self.assertIn(
                f"tandem: rank {rank} ran 1 of 2 collectives of torch.distributed; "
                "1 not, since Tandem has no sums of Double",
                log,
            )

    def test_a_variable_installs(self):
        for rank, (printed, log) in enumerate(self.ranks("gloo", TANDEM_INSTALL="1", TANDEM_REPORT="1")):
            self.assertEqual(printed, "True")
            self.assertIn(f"tandem: rank {rank} ran 1 of 2 collectives", log)

    def test_a_variable_installs_where_tandem_is_imported_first(self):
        for _, log in self.ranks("gloo", "tandem.torch", TANDEM_INSTALL="1", TANDEM_REPORT="1"):
            self.assertIn("ran 1 of 2 collectives", log)
            self.assertNotIn("not installed", log)

    def test_nothing_happens_unasked(self):
        for printed, log in self.ranks("gloo", TANDEM_REPORT="1"):
            self.assertEqual(printed, "False")
            self.assertNotIn("tandem", log)

    def test_torch_goes_on_without_tandems_library(self):
        for _, log in self.ranks("gloo", TANDEM_INSTALL="1", TANDEM_LIBRARY="/nonexistent/libtandem.so"):
            self.assertIn("collectives of torch.distributed stay with their backends", log)

    def test_torch_goes_on_without_tandem(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
                file.write("import sys\nsys.modules['tandem.torch'] = None\n")
            for printed, log in self.ranks("gloo", TANDEM_INSTALL="1", PYTHONPATH=os.pathsep.join((folder, self.path))):
                self.assertEqual(printed, "True")  # the entry that lets no import through
                self.assertIn("Tandem is not installed behind torch", log)


def write_entry_points(folder):
    """Makes a folder of a Python's path that has the package installed, as far as its entry points show."""
    info = os.path.join(folder, "tandem_gpu-0.dist-info")
    os.mkdir(info)
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: tandem-gpu\nVersion: 0\n")
    with open(os.path.join(info, "entry_points.txt"), "w") as file:
        file.write(entry_points())


def entry_points():
    """The entry points of the package, in the form of a distribution's file."""
    import tomllib

    with open(os.path.join(SOURCE, "../pyproject.toml"), "rb") as file:
        groups = tomllib.load(file)["project"]["entry-points"]
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]
    return "\n".join(lines)


add_tests(Backend, BackendOfFourRanks, OnNccl)

if __name__ == "__main__":
    unittest.main()
