"""examples/torch/train_llama.py on two nodes: two network namespaces with a tandemd each, two ranks on each node."""

import os
import shutil
import subprocess
import unittest

from node import CUDA, Daemon, Ranks
from test_llama import EXAMPLE

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def make_namespaces(names):
    """Two namespaces that see each other; subprocess.CalledProcessError where that is not allowed."""
    for name in names:
        ip("netns", "add", name)
    ip(
        "link",
        "add",
        names[0] + "v",
        "netns",
        names[0],
        "type",
        "veth",
        "peer",
        "name",
        names[1] + "v",
        "netns",
        names[1],
    )
    for name, address in zip(names, ADDRESSES):
        ip("-n", name, "addr", "add", address + "/24", "dev", name + "v")
        ip("-n", name, "link", "set", name + "v", "up")
        ip("-n", name, "link", "set", "lo", "up")


def remove_namespaces(names):
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


@unittest.skipIf(CUDA, "emulates nodes with a GPU each")
@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "needs root and iproute2")
class TwoNodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.names = [f"tnd{os.getpid()}{side}" for side in "ab"]
        cls.addClassCleanup(remove_namespaces, cls.names)
        try:
            make_namespaces(cls.names)
        except subprocess.CalledProcessError as error:
            raise unittest.SkipTest(f"no network namespaces: {error.stderr.strip()}") from None
        cls.daemons = []
        for _ in cls.names:
            daemon = Daemon(gpus=2)
            cls.addClassCleanup(daemon.stop)
            cls.daemons.append(daemon)

    def train(self, tensor_parallel, *arguments):
        """Rank 0's output; every rank compares its losses with a training in one process."""

        def each(rank):
            node = rank // 2
            return ("ip", "netns", "exec", self.names[node]), {
                "LOCAL_RANK": str(rank % 2),
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": str(node),
                "MASTER_ADDR": ADDRESSES[0],
                "GLOO_SOCKET_IFNAME": self.names[node] + "v",
                "TANDEM_RUNTIME_DIR": self.daemons[node].runtime_dir,
            }

        words = ("--check", "--device", "cpu", "--steps", "8", "--tensor-parallel", str(tensor_parallel), *arguments)
        return Ranks(self.daemons[0], 4, EXAMPLE, *words, each=each).outputs(timeout=240)[0]

    def test_tensor_parallel_inside_and_data_parallel_across(self):
        text = self.train(2)
        self.assertIn("2 x 2 ranks: <tandem.Group", text)
        self.assertIn("step 7: loss", text)

    def test_compiled_inside_and_data_parallel_across(self):
        text = self.train(2, "--mode", "compiled", "--layers", "1")
        self.assertIn("2 x 2 ranks: <tandem.Group", text)
        self.assertIn("step 7: loss", text)
        for op in ("all_gather_matmul", "matmul_reduce_scatter"):
            self.assertIn(f"fused into tandem::{op} ", text)
        self.assertNotIn("not fused", text)

    def test_a_group_that_spans_nodes_falls_back_alike(self):
        text = self.train(4)
        self.assertIn("torch.distributed alone: rank 2 is served by another daemon than rank 0", text)
        self.assertIn("step 7: loss", text)


if __name__ == "__main__":
    unittest.main()
