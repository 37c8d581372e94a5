"""bench/torch/serving_trace.py: every result of a mixed trace is right, and nothing is prepared on the way."""

import json
import os
import tempfile
import unittest

from node import CUDA, HERE, Daemon, Ranks

SCRIPT = os.path.join(HERE, "../../bench/torch/serving_trace.py")
TRIAL = ("--columns", "64", "--max-rows", "1024", "--calls", "400", "--captured", "12")


class Trace(unittest.TestCase):
    world = 2

    def test_a_mixed_trace_prepares_nothing(self):
        daemon = Daemon(gpus=self.world)
        self.addCleanup(daemon.stop)
        words = (*TRIAL, "--device", "cuda") if CUDA else TRIAL
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "figures.json")
            text, *_ = Ranks(daemon, self.world, SCRIPT, *words, "--json", path).outputs(timeout=240)
            print("\n" + text, flush=True)
            with open(path) as file:
                figures = json.load(file)
        self.assertEqual(set(figures["wrong"].values()), {0})
        self.assertEqual(len(figures["wrong"]), 5)
        self.assertEqual((figures["calls"], figures["meetings"]), (400, 0))
        self.assertGreater(figures["rows"], 200)
        self.assertGreater(figures["prepare_seconds"], 0)
        self.assertEqual((figures["graphs"], figures["replays"]), (12, 100) if CUDA else (0, 0))
        # An op's first call makes its entry in the kernels' table.
        self.assertLessEqual(figures["by_python"], 5)


class TraceOfFourRanks(Trace):
    world = 4


if __name__ == "__main__":
    unittest.main()
