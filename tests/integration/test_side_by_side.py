"""Groups on GPUs of their own, at the same time."""

import os
import subprocess
import unittest

from harness import BACKEND, BIN, TandemTest, needs_gpus

MOST_RANKS = 8


@needs_gpus(8)
class SideBySide(TandemTest):
    gpus = 8

    def test_two_groups_of_four_do_not_meet(self):
        """Both run the conformance suite's cases, each on four GPUs."""
        runs = [
            subprocess.Popen(
                [
                    os.path.join(BIN, "tandem-conformance"),
                    "--backend",
                    BACKEND,
                    "--runtime-dir",
                    self.daemon.runtime_dir,
                    "--world",
                    "4",
                    "--first-gpu",
                    str(first),
                    "--seed",
                    str(first + 1),
                    "--sample",
                    "150",
                    "--no-heavy",
                    "--quiet",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for first in (0, 4)
        ]
        outputs = [run.communicate(timeout=200)[0] for run in runs]
        for run, output in zip(runs, outputs):
            self.assertEqual(run.returncode, 0, output)
            self.assertRegex(output, r"# [1-9]\d+ run, \d+ refused with a reason, 0 wrong")


if __name__ == "__main__":
    unittest.main()
