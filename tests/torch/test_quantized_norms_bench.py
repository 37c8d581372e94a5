"""bench/torch/quantized_norms.py: each arm runs, and its fp8 elements and scales are those of the norm in bf16."""

import json
import os
import tempfile
import unittest

from node import CUDA, HERE, Daemon, Ranks

SCRIPT = os.path.join(HERE, "../../bench/torch/quantized_norms.py")
ARMS = ["bf16", "static", "rows", "blocks", "apart"]


class QuantizedNorms(unittest.TestCase):
    def test_every_arm_runs_and_is_right(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        words = ["--rows", "3,8", "--columns", "256", "--rounds", "2", "--device", "cuda" if CUDA else "cpu"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "figures.json")
            text, *_ = Ranks(daemon, 2, SCRIPT, *words, "--json", path).outputs(timeout=240)
            print("\n" + text, flush=True)
            with open(path) as file:
                table = json.load(file)
        self.assertEqual([(row["rows"], row["arm"]) for row in table], [(rows, arm) for rows in (3, 8) for arm in ARMS])
        for row in table:
            self.assertGreater(row["us"], 0)


if __name__ == "__main__":
    unittest.main()
