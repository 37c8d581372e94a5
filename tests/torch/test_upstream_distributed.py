"""PyTorch's own tests of torch.distributed, of a process group of gloo behind install(): each passes as with gloo alone.

They come with torch (torch.testing._internal). Those of CPU tensors run here: collectives, objects, DDP and its hooks, in a world
and in subgroups of three ranks. What they check of gloo's own profiling events is left out, since Tandem's have other names.
"""

import os
import tempfile
import unittest

from node import CUDA, Daemon

WORLD = 3
os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(WORLD), "GLOO_SOCKET_IFNAME": "lo", "TANDEM_EMBEDDED": "0"}
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())

import tandem.torch  # noqa: E402
import torch  # noqa: E402

if CUDA:
    raise unittest.SkipTest("its tensors are on the CPU")

from torch.testing._internal import common_distributed  # noqa: E402

# Tests that need GPUs or more ranks are known before three processes of each have found out.
NEEDS_GPUS = unittest.skip("needs GPUs")
common_distributed.skip_if_lt_x_gpu = lambda count: NEEDS_GPUS
common_distributed.skip_if_no_gpu = NEEDS_GPUS
common_distributed.skip_if_small_worldsize = unittest.skip("needs eight ranks")

from torch.testing._internal.distributed import distributed_test as upstream  # noqa: E402

# Tests whose collectives Tandem must have run, at least in part.
TAKEN = (
    "DistributedDataParallelCPU",
    "accumulate_gradients_no_sync",
    "all_gather",
    "all_gather_complex",
    "all_gather_full_group",
    "all_gather_object_default_pg",
    "all_reduce_coalesced_full_group_sum",
    "all_reduce_coalesced_sum",
    "all_reduce_full_group_sum",
    "all_reduce_sum",
    "all_reduce_sum_async",
    "all_reduce_sum_complex",
    "broadcast",
    "broadcast_full_group",
    "get_future",
)


class Upstream(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        upstream.PROFILING_SUPPORTED_BACKENDS = []
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)
        os.environ["TANDEM_RUNTIME_DIR"] = cls.daemon.runtime_dir
        tandem.torch.install()
        cls.addClassCleanup(tandem.torch.uninstall)

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def run_test(self, test_name, pipe):
        """In each rank's process."""
        method = getattr(self, test_name)

        def counted():
            method()
            if test_name.removeprefix("test_") in TAKEN:
                assert tandem.torch.report().taken > 0, str(tandem.torch.report())

        setattr(self, test_name, counted)
        super().run_test(test_name, pipe)


def load_tests(loader, tests, pattern):
    """Those that torch does not skip for gloo on the CPU."""
    chosen = unittest.TestSuite()
    for name in loader.getTestCaseNames(Upstream):
        method = getattr(Upstream, name)
        if not getattr(method, "__unittest_skip__", False):
            chosen.addTest(Upstream(name))
    return chosen


if __name__ == "__main__":
    unittest.main()
