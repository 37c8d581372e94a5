"""bench/jax/beside_lax.py runs on the host backend: a figure for every case, and right results. The figures are the machine's."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../torch"))

from node import CUDA, SOURCE, Daemon  # noqa: E402

SCRIPT = os.path.join(HERE, "../../bench/jax/beside_lax.py")
CASES = {
    *(f"{name}, {size} bytes" for name in ("all_reduce", "all_gather", "reduce_scatter") for size in (4096, 65536)),
    *(f"all_reduce_rms_norm, {rows} x 256" for rows in (1, 16)),
    *(f"{what} layer, 32 rows, 64 x 128" for what in ("a", "gradients of a")),
}


class BesideLax(unittest.TestCase):
    def test_every_case_has_a_figure(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        with tempfile.NamedTemporaryFile("r") as file:
            options = [
                "--device",
                "cuda" if CUDA else "cpu",
                "--small",
                "--rounds",
                "3",
                "--runs",
                "2",
                "--limit",
                "200",
            ]
            ran = subprocess.run(
                [sys.executable, "-B", SCRIPT, *options, "--json", file.name],
                env={**os.environ, "TANDEM_RUNTIME_DIR": daemon.runtime_dir, "PYTHONPATH": SOURCE},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.assertEqual(ran.returncode, 0, ran.stdout + daemon.tail(20))
            print("\n" + ran.stdout, flush=True)
            rows = {row["case"]: row for row in map(json.loads, file)}
        self.assertEqual(set(rows), CASES)
        for case, row in rows.items():
            for figure in ("tandem", "lax", "ratio"):
                low, middle, high = row[figure]
                self.assertGreater(low, 0, case)
                self.assertTrue(low <= middle <= high, (case, row))
        seen, taken = map(int, self.counts(ran.stdout))
        self.assertEqual(seen, taken)

    def counts(self, text):
        """(calls that were traced, calls that Tandem runs) of the report."""
        (line,) = [line for line in text.splitlines() if line.startswith("Tandem has run")]
        words = line.split()
        return words[5], words[3]


if __name__ == "__main__":
    unittest.main()
