"""The conformance suite's own way with faults: a wrong result, a rank that dies or falls silent cost their case, not the run."""

import json
import os
import shlex
import subprocess
import tempfile
import unittest

from harness import BACKEND, BIN, GPUS


class ConformanceFaults(unittest.TestCase):
    @unittest.skipIf(GPUS < 2, "needs two GPUs")
    def test_planted_faults_cost_one_case_each(self):
        planted = {2: "wrong", 4: "exit", 6: "hang", 7: "exit"}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "summary.json")
            # The filter leaves only cases that run and have an output to spoil.
            run = subprocess.run(
                [
                    os.path.join(BIN, "tandem-conformance"),
                    "--backend",
                    BACKEND,
                    "--world",
                    "2",
                    "--no-heavy",
                    "--filter",
                    r"^all_reduce/one_shot input:f32\[[1-9]",
                    "--sample",
                    "10",
                    "--deadline",
                    "10",
                    "--json",
                    path,
                    "--plant",
                    ",".join(f"{number}:{how}" for number, how in planted.items()),
                ],
                capture_output=True,
                text=True,
                timeout=240,
            )
            self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
            with open(path) as file:
                summary = json.load(file)
        self.assertEqual((summary["run"], summary["wrong"], summary["restarts"]), (10, 4, 3), run.stdout)
        self.assertEqual((summary["drawn"], summary["cut_short"]), (10, False))
        self.assertEqual(
            summary["table"], {"all_reduce/one_shot": {"right": 6, "refused": 0, "wrong": 4, "refusals": {}}}
        )
        lines = [line for line in run.stdout.splitlines() if line.startswith(("ok", "not ok"))]
        self.assertEqual([number for number, line in enumerate(lines, 1) if line.startswith("not ok")], sorted(planted))
        wrong, died, silent, died_again = summary["failures"]
        self.assertEqual(wrong["code"], "INTERNAL")
        self.assertRegex(wrong["first_wrong"], r"^slot 1: \[0\] is .*, must be ")
        self.assertFalse(wrong["broke_the_group"])
        for failure in (died, died_again):
            self.assertEqual(failure["code"], "UNAVAILABLE", failure)
            self.assertIn("rank 1: UNAVAILABLE: ended with 7", failure["message"])
            self.assertTrue(failure["broke_the_group"])
        self.assertIn("sent nothing", silent["message"])
        for failure in summary["failures"]:
            self.assertEqual((failure["operation"], failure["algorithm"]), ("all_reduce", "one_shot"))
            self.assertEqual(failure["operands"][0]["dtype"], "f32")
            self.assertIn("--filter", failure["again"])
        # The report lists the cases since the group's last restart, and they can be run again.
        self.assertIsNone(wrong["before"])
        self.assertEqual(
            [[case["place"] for case in failure["before"]["cases"]] for failure in (died, silent, died_again)],
            [[0, 1, 2], [4], []],
        )
        for failure in (died, silent, died_again):
            again = subprocess.run(
                [os.path.join(BIN, "tandem-conformance"), "--list", *shlex.split(failure["before"]["again"])],
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(
                again.stdout.splitlines(),
                ["W2 " + case["case"] for case in failure["before"]["cases"]] + ["W2 " + failure["case"]],
            )
        self.assertIn(f"#   before it, 2: {died['before']['cases'][2]['case']}", run.stdout)

    @unittest.skipIf(GPUS < 2, "needs two GPUs")
    def test_the_summary_counts_why_an_algorithm_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "summary.json")
            run = subprocess.run(
                [
                    os.path.join(BIN, "tandem-conformance"),
                    "--backend",
                    BACKEND,
                    "--world",
                    "2",
                    "--no-heavy",
                    "--filter",
                    "^all_gather/sm .*low_contention",
                    "--sample",
                    "5",
                    "--json",
                    path,
                ],
                capture_output=True,
                text=True,
                timeout=240,
            )
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            with open(path) as file:
                row = json.load(file)["table"]["all_gather/sm"]
        self.assertEqual(
            row,
            {
                "right": 0,
                "refused": 5,
                "wrong": 0,
                "refusals": {"low contention was asked for, and it communicates by SMs": 5},
            },
        )

    @unittest.skipIf(GPUS < 2, "needs two GPUs")
    def test_a_run_that_its_time_limit_ends_says_how_much_it_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "summary.json")
            run = subprocess.run(
                [
                    os.path.join(BIN, "tandem-conformance"),
                    "--backend",
                    BACKEND,
                    "--world",
                    "2",
                    "--no-heavy",
                    "--sample",
                    "5",
                    "--time-limit",
                    "0.000001",
                    "--json",
                    path,
                ],
                capture_output=True,
                text=True,
                timeout=240,
            )
            with open(path) as file:
                summary = json.load(file)
        self.assertEqual((summary["drawn"], summary["cut_short"]), (5, True), run.stdout)
        self.assertLess(summary["run"], 5)

    def test_a_plant_that_nobody_knows_is_refused(self):
        run = subprocess.run(
            [os.path.join(BIN, "tandem-conformance"), "--plant", "0:wrong"], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(run.returncode, 2)
        self.assertIn("--plant takes", run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
