"""bench/torch/blocks.py: on GPUs of their own it measures, elsewhere a trial shows that Tandem's arms run and are right.

TANDEM_BLOCKS_OPTIONS: more options where it measures, as "--profile"."""

import os
import re
import shlex
import unittest

from node import CUDA, ENGINES_PER_GPU, GPUS, HERE, Daemon, Ranks

TRIAL = ("--device", "cpu", "--models", "8b", "--scale", "64", "--sequence", "32", "--rounds", "2")


class Blocks(unittest.TestCase):
    def table(self, world, words, timeout):
        daemon = Daemon(gpus=world)
        self.addCleanup(daemon.stop)
        script = os.path.join(HERE, "../../bench/torch/blocks.py")
        return Ranks(daemon, world, script, *words).outputs(timeout)[0]

    @unittest.skipIf(CUDA, "measures there")
    def test_trial_without_gpus(self):
        arms = "tandem eager,tandem compiled,nccl+cublas eager"
        text = self.table(2, (*TRIAL, "--arms", arms, "--profile"), 180)
        for arm in arms.split(","):
            (line,) = re.findall(rf"^8b +{re.escape(arm)} +\S+$", text, re.M)
            self.assertGreater(float(line.split()[-1]), 0, line)
        # The rounds run what the pass has made: each arm has its own compiled code.
        compiled = text.split("8b tandem compiled,")[1].split("in all")[0]
        self.assertRegex(compiled, r" 4\.0 x tandem::all_gather_matmul\n")
        self.assertRegex(compiled, r" 4\.0 x tandem::matmul_reduce_scatter\n")
        self.assertNotIn("wait_tensor", compiled)

    @unittest.skipIf(CUDA, "measures there")
    def test_trial_of_inference(self):
        arms = "tandem compiled,nccl+cublas eager,nccl+cublas compiled"
        text = self.table(2, (*TRIAL, "--arms", arms, "--profile", "--inference", "4"), 180)
        for arm in arms.split(","):
            (line,) = re.findall(rf"^8b +{re.escape(arm)} +\S+$", text, re.M)
            self.assertGreater(float(line.split()[-1]), 0, line)
        compiled = text.split("8b tandem compiled,")[1].split("in all")[0]
        self.assertRegex(compiled, r" 2\.0 x tandem::matmul_all_reduce_rms_norm\n")
        self.assertNotIn("wait_tensor", compiled)

    @unittest.skipUnless(CUDA and ENGINES_PER_GPU == 1 and GPUS > 1, "needs a GPU for each of several ranks")
    def test_measures_all_arms(self):
        options = shlex.split(os.environ.get("TANDEM_BLOCKS_OPTIONS", ""))
        text = self.table(min(GPUS, 8), options, 400)
        print("\n" + text, flush=True)
        eager = [] if "--inference" in options else ["tandem eager"]
        for arm in (*eager, "tandem compiled", "nccl+cublas eager"):
            lines = re.findall(rf"^\w+ +{re.escape(arm)} +\S+$", text, re.M)
            self.assertEqual(len(lines), 2, text)
            for line in lines:
                self.assertGreater(float(line.split()[-1]), 0, line)


if __name__ == "__main__":
    unittest.main()
