"""bench/torch/suspend.py: a decode goes on behind each kind of turn, and bytes and contents that differ are found."""

import json
import os
import tempfile
import unittest

from node import CUDA, GPUS, HERE, Daemon, Ranks

SCRIPT = os.path.join(HERE, "../../bench/torch/suspend.py")
TRIAL = ("--layers", "1", "--context", "16", "--mib", "1", "--repeats", "2", "--cycles", "3")
ON_GPUS = ("--device", "cuda", "--model", "8b", "--checkpoint", "--cycles", "100")


class BenchSuspend(unittest.TestCase):
    def measured(self, script, *words, world=2):
        """The rows of a run by what was done, and what was wrong."""
        daemon = Daemon(gpus=world)
        self.addCleanup(daemon.stop)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            print("\n" + Ranks(daemon, world, script, *words, "--json", path).outputs(timeout=240)[0], flush=True)
            with open(path) as file:
                told = json.load(file)
        return {row["what"]: row for row in told["rows"]}, told["wrong"]

    @unittest.skipIf(CUDA, "measures there")
    def test_a_decode_goes_on(self):
        rows, wrong = self.measured(SCRIPT, *TRIAL)
        self.assertEqual(wrong, [])
        kinds = {"no symmetric tensor": 2, "1 MiB, dropped": 2, "1 MiB, kept": 2, "3 cycles": 3}
        self.assertEqual({what: len(row["suspend_ms"]) for what, row in rows.items()}, kinds)
        for what, row in rows.items():
            self.assertTrue(all(ms > 0 for ms in row["suspend_ms"] + row["resume_ms"]), row)
            self.assertEqual(row["mapped_asleep"], 0)
            self.assertEqual(row["mapped_awake"] > 0, what.startswith("1 MiB"), row)

    @unittest.skipIf(CUDA, "measures there")
    def test_what_is_lost_is_found(self):
        _, wrong = self.measured("rank_bench_suspend.py", *TRIAL)
        self.assertEqual(
            wrong,
            [
                "rank 0: no symmetric tensor: other bytes",
                "rank 0: 1 MiB, dropped: other bytes",
                "rank 0: 1 MiB, kept: other bytes",
                "rank 0: contents with keep=True",
                "rank 0: 3 cycles: other bytes",
            ],
        )

    @unittest.skipIf(CUDA, "measures there")
    def test_memory_that_stays_is_found(self):
        _, wrong = self.measured("rank_bench_suspend.py", *TRIAL, "--sleepless")
        stays = [f"rank 0: 1 MiB, {kind}: 2 mappings of the pool stay" for kind in ("dropped", "kept")]
        self.assertEqual(wrong, [stays[0], "rank 0: contents with keep=False", stays[1]])

    @unittest.skipUnless(CUDA and GPUS > 1, "measures on GPUs")
    def test_measures_on_gpus(self):
        rows, wrong = self.measured(SCRIPT, *ON_GPUS)
        self.assertEqual(wrong, [])
        self.assertEqual(len(rows["checkpoint"]["lines"]), 4)
        self.assertGreater(rows["1024 MiB, dropped"]["free_asleep"], rows["1024 MiB, dropped"]["free_awake"] + 1000)


if __name__ == "__main__":
    unittest.main()
