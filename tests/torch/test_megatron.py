"""Megatron-core's linear layers, from the real package, run fused by Tandem behind tandem.megatron.install(): the results are those
of Megatron's own code."""

import importlib.util
import unittest

from check_programs import Checks, add_tests

MISSING = importlib.util.find_spec("megatron") is None


@unittest.skipIf(MISSING, "no megatron-core: tests/torch/setup_venv installs what is tested")
class Megatron(Checks, unittest.TestCase):
    program = "rank_megatron.py"
    timeout = 240


class MegatronOnFourRanks(Megatron):
    world = 4


add_tests(Megatron, MegatronOnFourRanks)

if __name__ == "__main__":
    unittest.main()
