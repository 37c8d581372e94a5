"""bench/torch/generate.py, with a tiny model on the CPU: figures for each cache, equal tokens, and Tandem's calls."""

import json
import os
import tempfile
import unittest

from node import CUDA, HERE, Daemon, Ranks

SCRIPT = os.path.join(HERE, "../../bench/torch/generate.py")


@unittest.skipIf(CUDA, "the benchmark itself runs there")
class Generate(unittest.TestCase):
    def test_each_cache_has_figures_and_equal_tokens(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            few = ("--layers", "2", "--batches", "2", "--tokens", "4", "--prompt", "5", "--rounds", "1")
            text, _ = Ranks(daemon, 2, SCRIPT, *few, "--json", path).outputs(timeout=400)
            print("\n" + text, flush=True)
            with open(path) as file:
                rows = json.load(file)
        self.assertEqual([row["cache"] for row in rows], ["dynamic", "static"])
        for row in rows:
            self.assertEqual(row["same_tokens"], 1.0, row)
            self.assertGreater(row["served_calls"], 0, row)
            self.assertEqual(set(row["tokens_per_second"]), {"backend", "tandem", "backend, again"})
            for rates in row["tokens_per_second"].values():
                self.assertEqual([rate > 0 for rate in rates], [True], row)


if __name__ == "__main__":
    unittest.main()
