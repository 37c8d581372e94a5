"""bench/torch/decode.py: figures and small errors of each arm, and sums that are wrong. Without GPUs the model is a tiny one.

TANDEM_DECODE_OPTIONS: other options where it measures, as "--model 70b --layers 8 --batch 1"."""

import json
import os
import shlex
import tempfile
import unittest

from node import CUDA, ENGINES_PER_GPU, GPUS, HERE, Daemon, Ranks

SCRIPT = os.path.join(HERE, "../../bench/torch/decode.py")
TRIAL = ("--layers", "2", "--context", "16", "--repeats", "2", "--steps", "1")
ON_GPUS = "--device cuda --model 8b --layers 4 --batch 1,16 --repeats 5"
BOUND = 1e-4  # of an error in fp32


class Decode(unittest.TestCase):
    def rows(self, script, *words, world=2):
        """The rows of a run, and rank 0's output."""
        daemon = Daemon(gpus=world)
        self.addCleanup(daemon.stop)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            text = Ranks(daemon, world, script, *words, "--json", path).outputs(timeout=400)[0]
            print("\n" + text, flush=True)
            with open(path) as file:
                return json.load(file)["rows"], text

    @unittest.skipIf(CUDA, "measures there")
    def test_each_arm_is_right_and_has_figures(self):
        rows, text = self.rows(SCRIPT, *TRIAL, "--batch", "1,3", "--profile")
        arms = ["tandem", "gloo", "tandem eager", "tandem installed", "gloo eager"]
        refused = ["one-shot", "one-shot eager"]
        for batch in (1, 3):
            mine = {row["arm"]: row for row in rows if row["batch"] == batch}
            self.assertEqual(set(mine), {*arms, *refused, "tandem, again"})
            for arm in refused:
                self.assertIn("symmetric memory", mine[arm]["reason"])
                self.assertNotIn("us", mine[arm])
            for arm in (*arms, "tandem, again"):
                row = mine[arm]
                self.assertFalse(row["wrong"], row)
                self.assertLess(row["error"], BOUND, row)
                self.assertEqual([us > 0 for us in row["us"]], [True, True], row)
                self.assertGreater(row["tokens_per_second"], 0, row)
                self.assertGreater(row["ratio"], 0, row)
            self.assertEqual(mine["tandem"]["fused"], {"matmul_all_reduce_rms_norm": 4})
            self.assertEqual(mine["gloo"]["fused"], {})
        # The rounds run what the pass has made, and no arm runs another's code.
        for batch in (1, 3):
            own = text.split(f"tandem, batch {batch}, ")[1].split("in all")[0]
            self.assertRegex(own, r" 4\.0 x tandem::matmul_all_reduce_rms_norm\n")
            self.assertNotIn("wait_tensor", own)
            theirs = text.split(f"gloo, batch {batch}, ")[1].split("in all")[0]
            self.assertRegex(theirs, r" 4\.0 x _c10d_functional::wait_tensor\n")
            self.assertNotIn("tandem::", theirs)

    @unittest.skipIf(CUDA, "measures there")
    def test_a_head_and_settings(self):
        words = ("--batch", "2", "--vocabulary", "32", "--arms", "tandem,gloo eager", "--profile")
        rows, text = self.rows(SCRIPT, *TRIAL, *words, "--configure", "placement=engine", "--configure", "max_plans=8")
        self.assertEqual([row["arm"] for row in rows], ["tandem", "gloo eager", "tandem, again"])
        for row in rows:
            self.assertLess(row["error"], BOUND, row)
        self.assertIsNone(rows[0]["ratio"])  # no compiled rival
        self.assertIn("'placement': 'engine: asked for", text)

    @unittest.skipIf(CUDA, "measures there")
    def test_wrong_sums_are_found(self):
        rows, text = self.rows("rank_decode.py", *TRIAL, "--batch", "2", "--arms", "gloo eager,lost eager,late eager")
        wrong = {row["arm"]: row["wrong"] for row in rows}
        self.assertEqual(
            wrong, {"gloo eager": False, "lost eager": True, "late eager": True, "gloo eager, again": False}
        )
        self.assertEqual(rows[0]["ratio"], 1)  # a wrong arm is nobody's rival
        for arm in ("lost eager", "late eager"):
            self.assertRegex(text, rf"{arm} .* WRONG")
        self.assertEqual(text.splitlines()[-1], "1")

    @unittest.skipIf(CUDA, "measures there")
    def test_arms_that_there_are_not(self):
        with self.assertRaisesRegex(AssertionError, "no such arm: nccl; the arms are tandem, gloo"):
            self.rows(SCRIPT, *TRIAL, "--batch", "1", "--arms", "tandem,nccl", world=1)

    @unittest.skipIf(CUDA, "measures there")
    def test_ranks_that_cannot_share_a_model(self):
        with self.assertRaisesRegex(AssertionError, "3 ranks cannot share heads of keys and values 4"):
            self.rows(SCRIPT, *TRIAL, world=3)

    @unittest.skipUnless(CUDA and GPUS > 1, "measures on GPUs")
    def test_measures_on_gpus(self):
        options = shlex.split(os.environ.get("TANDEM_DECODE_OPTIONS", ON_GPUS))
        rows, _ = self.rows(SCRIPT, *options)
        reasons = {row["arm"]: row["reason"] for row in rows}
        for row in rows:
            self.assertFalse(row.get("wrong"), row)
        for arm in ("tandem", "tandem eager"):
            self.assertEqual(reasons.get(arm, ""), "")
        for arm in ("nccl", "nccl eager"):
            if ENGINES_PER_GPU > 1:
                self.assertIn("NCCL refuses", reasons[arm])
            else:
                self.assertEqual(reasons[arm], "")


if __name__ == "__main__":
    unittest.main()
