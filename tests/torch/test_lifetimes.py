"""Lifetimes: launches whose calls are broken off, groups that end, forks, and threads of several groups (rank_lifetimes.py)."""

import unittest

from check_programs import Checks, add_tests
from node import CUDA


@unittest.skipIf(CUDA, "of the host backend, whose calls wait for their launches")
class TwoRanks(Checks, unittest.TestCase):
    program = "rank_lifetimes.py"


@unittest.skipIf(CUDA, "of the host backend, whose calls wait for their launches")
class OnTheirStreams(TwoRanks):
    """The same where the ranks' own streams run the launches."""

    extra = ("--placement", "client")


@unittest.skipIf(CUDA, "of the host backend, whose calls wait for their launches")
class PythonsKernels(TwoRanks):
    """The kernels that serve where libtandem_torch.so is missing."""

    env = {"TANDEM_TORCH_KERNELS": "python"}


@unittest.skipUnless(CUDA, "of GPUs, on which launches go on behind their calls")
class OnGpus(Checks, unittest.TestCase):
    program = "rank_gpu_lifetimes.py"


add_tests(TwoRanks, OnTheirStreams, PythonsKernels, OnGpus)

if __name__ == "__main__":
    unittest.main()
