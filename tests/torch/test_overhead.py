"""The benchmarks of bench/torch run and print a figure for every case. The figures themselves are the machine's."""

import os
import unittest

from node import CUDA, HERE, Daemon, Ranks

OPS = ("all_reduce", "all_reduce.out", "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
RECORDED = [f"{op}, recorded" for op in OPS if not op.endswith(".out")]
CASES = (
    *OPS,
    *RECORDED,
    *(f"{case}, no launch" for case in RECORDED),
    *(f"{op}, inference" for op in OPS),
    *(f"{op}, no launch" for op in OPS),
    "torch.add(out=)",
)


class Overhead(unittest.TestCase):
    def test_every_case_has_a_figure(self):
        daemon = Daemon(gpus=1)
        self.addCleanup(daemon.stop)
        script = os.path.join(HERE, "../../bench/torch/overhead.py")
        (text,) = Ranks(daemon, 1, script, "--device", "cuda" if CUDA else "cpu").outputs(timeout=90)
        print("\n" + text, flush=True)
        for case in CASES:
            (figures,) = [line.split(" op ")[1] for line in text.splitlines() if line.split(" op ")[0].strip() == case]
            self.assertGreater(float(figures.split()[0]), 0, case)

    def test_families_have_figures(self):
        daemon = Daemon(gpus=1)
        self.addCleanup(daemon.stop)
        script = os.path.join(HERE, "../../bench/torch/overhead.py")
        device = "cuda" if CUDA else "cpu"
        (text,) = Ranks(daemon, 1, script, "--device", device, "--families", "all").outputs(timeout=90)
        print("\n" + text, flush=True)
        for case in (*OPS, *(f"{op}, other rows" for op in OPS if not op.endswith(".out"))):
            (figures,) = [line.split(" op ")[1] for line in text.splitlines() if line.split(" op ")[0].strip() == case]
            self.assertGreater(float(figures.split()[0]), 0, case)

    @unittest.skipUnless(CUDA, "of CUDA graphs")
    def test_every_arm_of_replays_has_a_figure(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        script = os.path.join(HERE, "../../bench/torch/replays.py")
        text, _ = Ranks(daemon, 2, script).outputs(timeout=120)
        print("\n" + text, flush=True)
        for arm in ("tandem", "one-shot", "no collective"):
            (figures,) = [line for line in text.splitlines() if line.startswith(arm)]
            self.assertEqual(figures.count(" us"), 3, figures)


if __name__ == "__main__":
    unittest.main()
