"""examples/torch/train_llama.py: losses equal to a training in one process, on two and four ranks."""

import os
import re
import unittest

from node import CUDA, ENGINES_PER_GPU, GPUS, HERE, Daemon, Ranks

EXAMPLE = os.path.join(HERE, "../../examples/torch/train_llama.py")
# NCCL refuses ranks that share a GPU.
DEVICE = ("--device", "cuda" if CUDA else "cpu", "--process-group", "nccl" if CUDA and ENGINES_PER_GPU == 1 else "gloo")


class Llama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)

    def train(self, world, *arguments, each=lambda rank: ((), {})):
        """The output of rank 0."""
        if world > GPUS:
            self.skipTest(f"needs {world} GPUs")
        ranks = Ranks(self.daemon, world, EXAMPLE, "--check", *DEVICE, *arguments, each=each)
        texts = ranks.outputs()
        losses = [float(loss) for loss in re.findall(r": loss ([0-9.]+)", texts[0])]
        self.assertIn("tandem.Group", texts[0])  # served by Tandem
        self.assertLess(losses[-1], 0.8 * losses[0], texts[0])
        return texts[0]

    def test_eager_on_two_ranks(self):
        self.train(2)

    def test_eager_on_four_ranks(self):
        self.train(4)

    def test_eager_in_bfloat16(self):
        self.train(2, "--dtype", "bfloat16")

    def train_replicas(self, train, *arguments):
        """Two replicas of two ranks each. On GPUs the gradients between them are summed by NCCL: where two ranks share each GPU,
        a replica has a GPU, so that NCCL's groups have one rank on each."""
        shared = CUDA and ENGINES_PER_GPU == 2
        train(
            4,
            "--tensor-parallel",
            "2",
            *(("--data-process-group", "nccl") if CUDA else ()),
            *arguments,
            each=lambda rank: ((), {"CUDA_VISIBLE_DEVICES": str(rank // 2)} if shared else {}),
        )

    def train_compiled(self, world, *arguments, each=lambda rank: ((), {})):
        text = self.train(world, "--mode", "compiled", "--layers", "1", *arguments, each=each)
        for op in ("all_gather_matmul", "matmul_reduce_scatter"):
            self.assertGreaterEqual(
                text.count(f"fused into tandem::{op} "), 4, text
            )  # two a block, forward and backward
        self.assertNotIn("not fused", text)

    def test_data_and_tensor_parallel(self):
        self.train_replicas(self.train)

    @unittest.skipUnless(CUDA, "test_two_nodes compiles replicas on the host backend")
    def test_data_and_tensor_parallel_compiled(self):
        self.train_replicas(self.train_compiled)

    def test_compiled_on_two_ranks(self):
        self.train_compiled(2)

    def test_compiled_on_four_ranks_in_bfloat16(self):
        self.train_compiled(4, "--dtype", "bfloat16")


if __name__ == "__main__":
    unittest.main()
