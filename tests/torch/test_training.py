"""bench/torch/training.py, with a tiny model on the CPU: figures of each arm, equal gradients, and Tandem's calls."""

import json
import os
import tempfile
import unittest

from node import CUDA, HERE, Daemon, Ranks

SCRIPT = os.path.join(HERE, "../../bench/torch/training.py")
TRIAL = ("--layers", "1", "--length", "16", "--rounds", "2", "--steps", "1")


@unittest.skipIf(CUDA, "the benchmark itself runs there")
class Training(unittest.TestCase):
    def measured(self, world, *words):
        daemon = Daemon(gpus=world)
        self.addCleanup(daemon.stop)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "figures.json")
            text, *_ = Ranks(daemon, world, SCRIPT, *TRIAL, *words, "--json", path).outputs(timeout=240)
            print("\n" + text, flush=True)
            with open(path) as file:
                return json.load(file)

    def check(self, figures):
        self.assertEqual(set(figures["ms"]), {"backend", "tandem", "backend, again"})
        for ms in figures["ms"].values():
            self.assertEqual([one > 0 for one in ms], [True, True])
        self.assertGreater(figures["served_calls"], 0)
        self.assertLess(figures["error"], 1e-4)

    def test_tensor_parallel_alone(self):
        self.check(self.measured(2))

    def test_both_with_the_sequence_sharded(self):
        figures = self.measured(4, "--tp", "2", "--sequence")
        self.assertEqual(figures["tp"], 2)
        self.check(figures)

    def test_ranks_that_are_no_multiple(self):
        with self.assertRaisesRegex(AssertionError, "2 ranks are no multiple of --tp 3"):
            self.measured(2, "--tp", "3")


if __name__ == "__main__":
    unittest.main()
