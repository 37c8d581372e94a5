"""torch.compile with and without Tandem's pass, and captured graphs: the checks of rank_*.py on two ranks."""

import unittest

from check_programs import Checks, add_tests
from node import CUDA


class Pass(Checks, unittest.TestCase):
    program = "rank_pass.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


class Patterns(Checks, unittest.TestCase):
    program = "rank_patterns.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PassLayouts(Checks, unittest.TestCase):
    program = "rank_pass_layouts.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PassNorms(Checks, unittest.TestCase):
    program = "rank_pass_norms.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PassQuantized(Checks, unittest.TestCase):
    program = "rank_pass_quantized.py"
    timeout = 400
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PassBiases(Checks, unittest.TestCase):
    program = "rank_pass_biases.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PassLone(Checks, unittest.TestCase):
    program = "rank_pass_lone.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PassLoneOfFour(Checks, unittest.TestCase):
    """Those whose values depend on the number of ranks."""

    world = 4
    program = "rank_pass_lone.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "60"}

    @classmethod
    def names(cls):
        kinds = ("gathers", "scatters", "exchanges", "gradients", "parameters", "several")
        return [name for name in super().names() if name.removeprefix("test_").startswith(kinds)]


class PassRanks(Checks, unittest.TestCase):
    program = "rank_pass_ranks.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PassUnlike(Checks, unittest.TestCase):
    program = "rank_pass_unlike.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "60"}


class Lowered(Checks, unittest.TestCase):
    program = "rank_lowered.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "120"}


class LoweredNorms(Checks, unittest.TestCase):
    program = "rank_lowered_norms.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "120"}


class Programs(Checks, unittest.TestCase):
    program = "rank_programs.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


class Compiled(Checks, unittest.TestCase):
    program = "rank_compiled.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "120"}


@unittest.skipUnless(CUDA, "needs GPUs")
class Captured(Checks, unittest.TestCase):
    program = "rank_captured.py"
    timeout = 240
    env = {"TANDEM_TEST_PATIENCE": "60"}


add_tests(
    Pass,
    Patterns,
    PassLayouts,
    PassNorms,
    PassQuantized,
    PassBiases,
    PassLone,
    PassLoneOfFour,
    PassRanks,
    PassUnlike,
    Lowered,
    LoweredNorms,
    Programs,
    Compiled,
    Captured,
)

if __name__ == "__main__":
    unittest.main()
