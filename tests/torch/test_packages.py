"""Programs that know nothing of Tandem run by it behind install(): torch's DDP, FSDP2, DTensor and checkpoints, transformers,
Accelerate and Lightning, from their real packages. Each also runs without Tandem, and has the same results. Shows which calls
Tandem has taken, and why not the others."""

import importlib.util
import sys
import tempfile
import unittest

from check_programs import Checks, add_tests

OF_FOUR_RANKS = ("test_fsdp2_of_replicas", "test_lightning_tensor_parallel_and_fsdp2")


class Programs(Checks):
    timeout = 240

    @classmethod
    def names(cls):
        return [name for name in super().names() if cls.world >= 4 or name not in OF_FOUR_RANKS]

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("r") as shown:
            # torchrun's, by which Lightning knows that its processes are there
            cls.env = {"TANDEM_TEST_SHOWN": shown.name, "TORCHELASTIC_RUN_ID": "none", "HF_HUB_OFFLINE": "1"}
            try:
                super().setUpClass()
            finally:
                sys.stderr.write("\n" + shown.read())


class Trainings(Programs, unittest.TestCase):
    program = "rank_trainings.py"


class TrainingsOfFourRanks(Trainings):
    world = 4


def package(name):
    """The package that a check of rank_packages.py is named after."""
    return name.split("_")[1]


class OfPackages(Programs):
    program = "rank_packages.py"

    @classmethod
    def missing(cls):
        return {package(name) for name in super().names() if importlib.util.find_spec(package(name)) is None}

    @classmethod
    def names(cls):
        return [name for name in super().names() if package(name) not in cls.missing()]

    def test_all_packages_are_installed(self):
        if self.missing():
            self.skipTest(f"no {', '.join(sorted(self.missing()))}: tests/torch/setup_venv installs what is tested")


class Packages(OfPackages, unittest.TestCase):
    pass


class PackagesOnFourRanks(OfPackages, unittest.TestCase):
    """The programs that need as many: packages take long to import."""

    world = 4

    @classmethod
    def names(cls):
        return [name for name in super().names() if name in OF_FOUR_RANKS]


add_tests(Trainings, TrainingsOfFourRanks, Packages, PackagesOnFourRanks)

if __name__ == "__main__":
    unittest.main()
