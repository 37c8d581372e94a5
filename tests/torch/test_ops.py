"""torch.ops.tandem and symmetric memory: the checks of rank_*.py on two and on four ranks. CPU tensors on the host backend, CUDA
tensors on the CUDA backend."""

import unittest

from check_programs import Checks, add_tests
from node import CUDA


class TwoRanks(Checks, unittest.TestCase):
    program = "rank_ops.py"
    env = {"TANDEM_TEST_ROUNDS": "2"}  # the second round goes past Python


class OnTheirStreams(Checks, unittest.TestCase):
    """The same where the ranks' own streams run the launches, as tandemd chooses on GPUs. Copy engines are no part of that."""

    program = "rank_ops.py"
    env = {"TANDEM_TEST_ROUNDS": "2"}
    extra = ("--placement", "client")

    @classmethod
    def names(cls):
        return [name for name in super().names() if not name.startswith("test_opcheck")]


class Scaled(Checks, unittest.TestCase):
    program = "rank_scaled.py"
    env = {"TANDEM_TEST_ROUNDS": "2"}


class ScaledOfFourRanks(Scaled):
    world = 4


class Norms(Checks, unittest.TestCase):
    program = "rank_norms.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "120"}


class NormsOfFourRanks(Checks, unittest.TestCase):
    program = "rank_norms.py"
    world = 4

    @classmethod
    def names(cls):
        return [name for name in super().names() if name != "test_compiled" and not name.startswith("test_opcheck")]


class QuantizedNorms(Checks, unittest.TestCase):
    program = "rank_quantized_norms.py"
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "120"}


class QuantizedNormsOfFourRanks(Checks, unittest.TestCase):
    program = "rank_quantized_norms.py"
    world = 4
    timeout = 300
    env = {"TANDEM_TEST_PATIENCE": "120"}

    @classmethod
    def names(cls):
        return [name for name in super().names() if name != "test_compiled" and not name.startswith("test_opcheck")]


class Kernels(Checks, unittest.TestCase):
    program = "rank_kernels.py"


@unittest.skipIf(CUDA, "differs on the host backend")
class PythonsKernels(Checks, unittest.TestCase):
    """The kernels that serve where libtandem_torch.so is missing."""

    program = "rank_ops.py"
    env = {"TANDEM_TORCH_KERNELS": "python"}


@unittest.skipIf(CUDA, "differs on the host backend")
class PythonsNorms(Checks, unittest.TestCase):
    program = "rank_norms.py"
    env = {"TANDEM_TORCH_KERNELS": "python", "TANDEM_TEST_PATIENCE": "120"}


class Modes(Checks, unittest.TestCase):
    program = "rank_modes.py"
    env = {"TANDEM_TEST_PATIENCE": "60"}


@unittest.skipIf(CUDA, "differs on the host backend")
class PythonsModes(Modes):
    env = {"TANDEM_TORCH_KERNELS": "python", **Modes.env}


class FourRanks(Checks, unittest.TestCase):
    program = "rank_ops.py"
    world = 4

    @classmethod
    def names(cls):
        return [name for name in super().names() if not name.startswith("test_opcheck")]


class Plans(Checks, unittest.TestCase):
    program = "rank_plans.py"
    timeout = 400
    env = {"TANDEM_TEST_PATIENCE": "60"}


class PlansOfFourRanks(Plans):
    world = 4


@unittest.skipIf(CUDA, "the quota is one of emulated GPUs")
class LittleMemory(Checks, unittest.TestCase):
    program = "rank_little_memory.py"
    extra = ("--quotas-segment-bytes", "130000000")


class Rounding(Checks, unittest.TestCase):
    program = "rank_rounding.py"


class Determinism(Checks, unittest.TestCase):
    program = "rank_determinism.py"
    timeout = 400
    env = {"TANDEM_TEST_PATIENCE": "60"}


class DeterminismOfFourRanks(Checks, unittest.TestCase):
    """Of calls: what compiled programs add does not depend on the number of ranks."""

    program = "rank_determinism.py"
    world = 4

    @classmethod
    def names(cls):
        return [name for name in super().names() if "same_bits" in name and "compiled" not in name]


class Overlapped(Checks, unittest.TestCase):
    program = "rank_overlapped.py"


class Installed(Checks, unittest.TestCase):
    program = "rank_install.py"


class Memory(Checks, unittest.TestCase):
    program = "rank_memory.py"


class MemoryOfFourRanks(Memory):
    world = 4


class MemoryOnTheirStreams(Memory):
    extra = ("--placement", "client")


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


add_tests(
    TwoRanks,
    OnTheirStreams,
    Scaled,
    ScaledOfFourRanks,
    Norms,
    QuantizedNorms,
    QuantizedNormsOfFourRanks,
    NormsOfFourRanks,
    Kernels,
    Modes,
    PythonsModes,
    PythonsKernels,
    PythonsNorms,
    FourRanks,
    Plans,
    PlansOfFourRanks,
    LittleMemory,
    Rounding,
    Determinism,
    DeterminismOfFourRanks,
    Overlapped,
    Installed,
    Memory,
    MemoryOfFourRanks,
    MemoryOnTheirStreams,
    Handles,
    HandlesOfFourRanks,
    Streams,
    Pooled,
    ExpandableSegments,
)

if __name__ == "__main__":
    unittest.main()
