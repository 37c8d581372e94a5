"""Eager collectives of torch.distributed behind install(): results, and ranks that are killed, skip a call, or have no Tandem."""

import unittest

from check_programs import Checks, add_tests
from node import CUDA, Daemon, Ranks


class Collectives(Checks, unittest.TestCase):
    program = "rank_collectives.py"


class CollectivesOfFourRanks(Collectives):
    world = 4


class CollectivesOnTheirStreams(Collectives):
    """By families, which the ranks' own streams run."""

    env = {"TANDEM_TEST_CLIENT": "1"}


class Orders(Checks, unittest.TestCase):
    """Three groups of the same processes, used in other orders by the ranks."""

    program = "rank_orders.py"


@unittest.skipIf(CUDA, "of the host backend, whose calls wait for their launches")
class Interrupts(Checks, unittest.TestCase):
    program = "rank_interrupts.py"


@unittest.skipIf(CUDA, "of the host backend, whose calls wait for their launches")
class InterruptsOnTheirStreams(Interrupts):
    """The same where the ranks' own streams run the launches."""

    extra = ("--placement", "client")


class Failures(unittest.TestCase):
    """Whatever a rank does, the others get one clear error that names it."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)

    def test_a_killed_rank_is_named(self):
        ranks = Ranks(self.daemon, 2, "rank_collective_failures.py", "killed")
        try:
            ranks.wait_for(1, "ready")
            ranks.processes[1].kill()
            told = ranks.result(0, timeout=60)
            self.assertEqual(told["error"], "DistBackendError", told)
            self.assertIn("was lost", told["text"])
            self.assertIn("rank 1", told["text"])
        finally:
            ranks.close()

    def test_a_rank_that_makes_another_call_is_named(self):
        results = Ranks(self.daemon, 2, "rank_collective_failures.py", "other").results()
        for told in results:
            self.assertEqual(told["error"], "DistBackendError", told)
            self.assertRegex(told["text"], "FieldMismatch|DESYNC")
            self.assertTrue(told["right_again"], told)

    def test_a_rank_without_tandem_is_named(self):
        ranks = Ranks(self.daemon, 2, "rank_collective_failures.py", "alone", env={"TANDEM_TEST_PATIENCE": "4"})
        try:
            told = ranks.result(0, timeout=60)
            self.assertEqual(told["error"], "DistBackendError", told)
            self.assertIn("rank 1", told["text"])
        finally:
            ranks.close()

    def test_a_node_without_a_daemon(self):
        for told in Ranks(None, 2, "rank_collective_failures.py", "served").results():
            self.assertIsNone(told["error"], told)
            self.assertEqual(told["taken"], 0, told)
            self.assertEqual(told["warnings"], 1 if told["rank"] == 0 else 0, told)

    def test_a_fork_and_an_exception_between(self):
        for told in Ranks(self.daemon, 2, "rank_collective_failures.py", "between").results():
            self.assertIsNone(told["error"], told)
            self.assertTrue(told["right_again"], told)


add_tests(Collectives, CollectivesOfFourRanks, CollectivesOnTheirStreams, Orders, Interrupts, InterruptsOnTheirStreams)

if __name__ == "__main__":
    unittest.main()
