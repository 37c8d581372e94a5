"""torchtitan's Llama runs on Tandem unchanged: its losses are those without Tandem. Started by run_torchtitan, which says by
TANDEM_TEST_TORCHTITAN which program is for the version of torchtitan."""

import os
import unittest

from node import Daemon, Ranks

WORLD = 2
PROGRAM = os.environ["TANDEM_TEST_TORCHTITAN"]
OLD = PROGRAM == "rank_torchtitan_02.py"


class Torchtitan(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=WORLD)
        cls.plain = cls.losses("plain")

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    @classmethod
    def run_as(cls, how):
        return Ranks(cls.daemon, WORLD, PROGRAM, how, env={"TANDEM_TEST_PATIENCE": "120"}).results(600)

    @classmethod
    def losses(cls, how):
        return cls.run_as(how)[0]["losses"]

    def check(self, how):
        results = self.run_as(how)
        for result in results:
            self.assertGreater(result["launched"], 0, result)
            for got, want in zip(result["losses"], self.plain, strict=True):
                self.assertAlmostEqual(got, want, delta=1e-4 * abs(want))
        return results

    def test_training_goes_somewhere(self):
        self.assertLess(self.plain[-1], self.plain[0] - 0.1)

    @unittest.skipIf(OLD, "0.2 asks for async TP where it compiles alone")
    def test_eager_modules_run_on_tandem_by_install(self):
        self.check("eager")

    def test_async_tp_runs_on_tandem_by_install(self):
        self.check("install")

    def test_the_compile_pass_fuses_what_surrounds_the_products(self):
        for result in self.check("pass"):
            fused = [op for _, op in result["records"]]
            self.assertLessEqual({"all_gather_matmul", "matmul_reduce_scatter"}, set(fused), result["records"])
            self.assertTrue(OLD or all(fused), result["records"])


if __name__ == "__main__":
    unittest.main()
