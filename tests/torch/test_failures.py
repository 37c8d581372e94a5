"""A killed rank, ranks without Tandem: no rank hangs, and all get the same failure."""

import json
import subprocess
import unittest

from node import CUDA, GPUS, Daemon, Ranks, wait_until

ENDS_WITHIN = 45  # seconds; below those of the launches' and the plans' own ends


class KilledRank(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)

    def kill_rank_1(self, mode, world=2):
        if world > GPUS:
            self.skipTest(f"needs {world} GPUs")
        ranks = Ranks(self.daemon, world, "rank_failures.py", mode)
        try:
            ranks.wait_for(1, "ready")
            pid = ranks.processes[1].pid
            ranks.processes[1].kill()
            for rank in range(world):
                if rank == 1:
                    continue
                told = ranks.result(rank, timeout=60)
                self.assertEqual(told["error"], "RankLost", told)
                self.assertEqual((told["rank"], told["code"]), (1, "UNAVAILABLE"), told)
                self.assertIn("rank 1", told["text"])
                self.assertIn(str(pid), told["text"])
                self.assertEqual(told["pid"], pid, told)
                self.assertLess(told["seconds"], 25, told)
                self.assertEqual(told["again"], ["RankLost", "RankLost"], told)
                self.assertTrue(told["detached"])
        finally:
            ranks.close()
        wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60, "sessions stay")

    def test_in_eager_mode(self):
        self.kill_rank_1("eager")

    def test_in_a_backward(self):
        self.kill_rank_1("backward")

    def test_while_a_plan_is_prepared(self):
        self.kill_rank_1("prepare", world=3)

    def test_in_compiled_mode(self):
        self.kill_rank_1("compiled")

    def test_a_late_rank_ends_no_group(self):
        results = Ranks(self.daemon, 2, "rank_failures.py", "late").results()
        for rank, told in enumerate(results):
            self.assertIn("client: ", told["placement"])
            self.assertEqual(told["right"], [True, True])
            self.assertEqual(told["errors"], [] if rank == 1 else [["RankLate", 1]] * 2)

    @unittest.skipUnless(CUDA, "needs GPUs")
    def test_while_a_graph_is_replayed(self):
        self.kill_rank_1("captured")


@unittest.skipIf(CUDA, "a call of a GPU returns before its launch has ended")
class FailingProgram(unittest.TestCase):
    """A program that fails with a launch in flight ends, with its own traceback, though the other rank never comes."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=2)
        cls.addClassCleanup(cls.daemon.stop)

    def check(self, mode):
        for placement in ("client", "engine"):
            with self.subTest(placement):
                ranks = Ranks(self.daemon, 2, "rank_exit.py", mode, placement, fresh=True)
                self.addCleanup(ranks.close)
                ranks.wait_for(1, "ready")
                ranks.wait_for(0, "fails")
                try:
                    status = ranks.processes[0].wait(ENDS_WITHIN)
                except subprocess.TimeoutExpired:
                    ranks.fail("rank 0 does not end")
                self.assertEqual(status, 1, ranks.log(0))
                self.assertIn("Own: the rank has failed", ranks.log(0))
                ranks.close()

    def test_in_a_call(self):
        self.check("in")

    def test_behind_a_call(self):
        self.check("behind")


@unittest.skipIf(GPUS < 4, "needs 4 GPUs")
class NumbersOfRanks(unittest.TestCase):
    """In group {2, 3} errors number ranks within the group; the text has the global numbers and the processes, too."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)

    def told(self, mode):
        ranks = Ranks(self.daemon, 4, "rank_numbers.py", mode)
        self.addCleanup(ranks.close)
        for rank in range(4):
            ranks.wait_for(rank, "told", timeout=90)
        told = [json.loads(ranks.printed(rank).splitlines()[0]) for rank in range(4)]
        for rank in (0, 1):
            self.assertNotIn("error", told[rank], "a group that nothing happened to")
        return told

    def test_a_hung_rank_has_both_numbers_and_its_process(self):
        told = self.told("hung")
        of_3, pid = told[3], told[2]["pid"]
        self.assertEqual((of_3["error"], of_3["ranks"], of_3["global"]), ("RankLate", [0], [2]), of_3)
        self.assertIn("rank 0 had not arrived", of_3["text"])
        self.assertIn(f"rank 0 is global rank 2, pid {pid}", of_3["text"])

    def test_a_rank_in_another_op_is_named_with_that_op(self):
        told = self.told("other")
        for rank in (2, 3):
            text = told[rank]["text"]
            self.assertEqual(told[rank]["reason"], "DESYNC", told[rank])
            self.assertRegex(text, "rank [01] launched all_reduce .*instead")
            blamed = told[rank]["ranks"][0]
            self.assertEqual(told[rank]["global"], [blamed + 2])
            self.assertIn(f"rank {blamed} is global rank {blamed + 2}, pid {told[blamed + 2]['pid']}", text)


@unittest.skipIf(CUDA, "of the host backend")
class Unavailable(unittest.TestCase):
    def check(self, results, reason):
        self.assertEqual(len({result["reason"] for result in results}), 1, "ranks know different reasons")
        for rank, result in enumerate(results):
            self.assertIn(reason, result["reason"])
            self.assertEqual(result["sum"][0], [1.0, 3.0])
            self.assertEqual(len(result["product"]), 8)
            self.assertEqual(result["scattered"], [[(4 * rank + i) + 0.5, (4 * rank + i) + 1.5] for i in (0, 2)])
            self.assertEqual(result["residual"][0], [2.0, 4.0])
            for got, want in zip(result["normed"][0], (2 / 10**0.5, 8 / 10**0.5)):
                self.assertAlmostEqual(got, want, 5)
            self.assertEqual(len(result["warnings"]), 4 if rank == 0 else 0, result["warnings"])
            for text in (*result["warnings"], *result["their warnings"]):
                self.assertIn(reason, text)
            # Behind install() what symm_mem had before goes on.
            self.assertEqual(result["theirs"], [[rank + 100.0, rank + 101.0], [rank + 102.0, rank + 103.0]])
            self.assertEqual(result["no theirs"], result["product"])
            self.assertEqual(len(result["their warnings"]), 1 if rank == 0 else 0)
            for fused_into, declined, text in result.get("records", ()):
                self.assertEqual(fused_into, "matmul_all_reduce")
                self.assertIn(reason, declined)
                self.assertIn("runs on torch's own collectives: " + declined, text)
            self.assertIn(reason, result["strict"])

    def test_no_daemon(self):
        results = Ranks(None, 2, "rank_fallback.py", "all without").results()
        self.check(results, "/nonexistent")
        self.assertEqual([len(result["records"]) for result in results], [1, 1])

    def test_one_rank_has_none(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        self.check(Ranks(daemon, 2, "rank_fallback.py", "one without").results(), "rank 1: ")

    def test_too_few_gpus(self):
        daemon = Daemon(gpus=1)
        self.addCleanup(daemon.stop)
        self.check(Ranks(daemon, 2, "rank_fallback.py", "").results(), "the node's daemon 1 GPUs")


if __name__ == "__main__":
    unittest.main()
