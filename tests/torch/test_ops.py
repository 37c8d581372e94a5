"""torch.ops.tandem: the checks of rank_*.py on two and on four ranks, each rank a process. CPU tensors on the host backend, CUDA
tensors on the CUDA backend."""

import os
import unittest

from node import CUDA, GPUS, HERE, Daemon, run_checks


class Checks:
    world = 2
    program = "rank_ops.py"
    timeout = 150
    env = {}
    extra = ()

    @classmethod
    def names(cls):
        with open(os.path.join(HERE, cls.program)) as file:
            return [line[4 : line.index("(")] for line in file if line.startswith("def test_")]

    @classmethod
    def setUpClass(cls):
        if cls.world > GPUS:
            raise unittest.SkipTest(f"needs {cls.world} GPUs")
        daemon = Daemon(gpus=4, extra=cls.extra)
        try:
            cls.outcomes = run_checks(daemon, cls.world, cls.program, cls.names(), cls.env, cls.timeout)
        finally:
            daemon.stop()

    def check(self, name):
        if self.outcomes[name]:
            self.fail(self.outcomes[name])


class TwoRanks(Checks, unittest.TestCase):
    env = {"TANDEM_TEST_ROUNDS": "2"}  # the second round goes past Python


class Scaled(Checks, unittest.TestCase):
    program = "rank_scaled.py"
    env = {"TANDEM_TEST_ROUNDS": "2"}


class ScaledOfFourRanks(Scaled):
    world = 4


class Kernels(Checks, unittest.TestCase):
    program = "rank_kernels.py"


@unittest.skipIf(CUDA, "differs on the host backend")
class PythonsKernels(Checks, unittest.TestCase):
    """What serves where libtandem_torch.so is missing."""

    env = {"TANDEM_TORCH_KERNELS": "python"}


class FourRanks(Checks, unittest.TestCase):
    world = 4


class Plans(Checks, unittest.TestCase):
    program = "rank_plans.py"
    timeout = 400
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PlansOfFourRanks(Plans):
    world = 4


class Overlapped(Checks, unittest.TestCase):
    program = "rank_overlapped.py"


class Installed(Checks, unittest.TestCase):
    program = "rank_install.py"


class Memory(Checks, unittest.TestCase):
    program = "rank_memory.py"


class MemoryOfFourRanks(Memory):
    world = 4


class Handles(Checks, unittest.TestCase):
    program = "rank_handles.py"
    extra = () if CUDA else ("--emulated-memory-bytes", str(4 << 30))  # taken as it is used


class HandlesOfFourRanks(Checks, unittest.TestCase):
    program = "rank_handles.py"
    world = 4

    @classmethod
    def names(cls):
        return [name for name in super().names() if "group" in name]


@unittest.skipUnless(CUDA, "needs GPUs")
class Streams(Checks, unittest.TestCase):
    program = "rank_streams.py"


@unittest.skipUnless(CUDA, "needs GPUs")
class Pooled(Checks, unittest.TestCase):
    program = "rank_pooled.py"
    env = {"TANDEM_TEST_PATIENCE": "60"}


@unittest.skipUnless(CUDA, "needs GPUs")
class ExpandableSegments(Checks, unittest.TestCase):
    program = "rank_pooled.py"
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

    @classmethod
    def names(cls):
        return [name for name in super().names() if "pool" not in name]


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


class Lowered(Checks, unittest.TestCase):
    program = "rank_lowered.py"
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


def _add_tests():
    for kind in (
        TwoRanks,
        Scaled,
        ScaledOfFourRanks,
        Kernels,
        PythonsKernels,
        FourRanks,
        Plans,
        PlansOfFourRanks,
        Overlapped,
        Installed,
        Memory,
        MemoryOfFourRanks,
        Handles,
        HandlesOfFourRanks,
        Streams,
        Pooled,
        ExpandableSegments,
        Pass,
        Patterns,
        Lowered,
        PassLayouts,
        Programs,
        Compiled,
        Captured,
    ):
        for name in kind.names():
            setattr(kind, name, lambda self, name=name: self.check(name))


_add_tests()

if __name__ == "__main__":
    unittest.main()
