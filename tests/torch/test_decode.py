"""bench/torch/decode.py, with a tiny model on the CPU: figures and small errors of each arm, and sums that are wrong."""

import json
import os
import tempfile
import unittest

from node import CUDA, HERE, Daemon, Ranks

SCRIPT = os.path.join(HERE, "../../bench/torch/decode.py")
TRIAL = ("--layers", "2", "--context", "16", "--repeats", "2", "--steps", "1")
BOUND = 1e-4  # of an error in fp32


@unittest.skipIf(CUDA, "the benchmark itself runs there")
class Decode(unittest.TestCase):
    def rows(self, script, *words, world=2):
        """The rows of a run, and rank 0's output."""
        daemon = Daemon(gpus=world)
        self.addCleanup(daemon.stop)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            text = Ranks(daemon, world, script, *TRIAL, *words, "--json", path).outputs(timeout=400)[0]
            print("\n" + text, flush=True)
            with open(path) as file:
                return json.load(file)["rows"], text

    def test_each_arm_is_right_and_has_figures(self):
        rows, text = self.rows(SCRIPT, "--batch", "1,3", "--profile")
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

    def test_a_head_and_settings(self):
        words = ("--batch", "2", "--vocabulary", "32", "--arms", "tandem,gloo eager", "--profile")
        rows, text = self.rows(SCRIPT, *words, "--configure", "placement=engine", "--configure", "max_plans=8")
        self.assertEqual([row["arm"] for row in rows], ["tandem", "gloo eager", "tandem, again"])
        for row in rows:
            self.assertLess(row["error"], BOUND, row)
        self.assertIsNone(rows[0]["ratio"])  # no compiled rival
        self.assertIn("'placement': 'engine: asked for", text)

    def test_wrong_sums_are_found(self):
        rows, text = self.rows("rank_decode.py", "--batch", "2", "--arms", "gloo eager,lost eager,late eager")
        wrong = {row["arm"]: row["wrong"] for row in rows}
        self.assertEqual(
            wrong, {"gloo eager": False, "lost eager": True, "late eager": True, "gloo eager, again": False}
        )
        self.assertEqual(rows[0]["ratio"], 1)  # a wrong arm is nobody's rival
        for arm in ("lost eager", "late eager"):
            self.assertRegex(text, rf"{arm} .* WRONG")
        self.assertEqual(text.splitlines()[-1], "1")

    def test_arms_that_there_are_not(self):
        with self.assertRaisesRegex(AssertionError, "no such arm: nccl; the arms are tandem, gloo"):
            self.rows(SCRIPT, "--batch", "1", "--arms", "tandem,nccl", world=1)

    def test_ranks_that_cannot_share_a_model(self):
        with self.assertRaisesRegex(AssertionError, "3 ranks cannot share heads of keys and values 4"):
            self.rows(SCRIPT, world=3)


if __name__ == "__main__":
    unittest.main()
