"""One rank makes another call than its peers, skips one or raises in between: all ranks get a failure that names it, long before
the deadline, and a renewal mends the group for cached plans and for new ones."""

import unittest

from node import CUDA, Daemon, Ranks

SLIPS = ["type", "other", "skipped", "raised", "forgotten"]
LONGEST = 40  # seconds, of launches with 120


class Slips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=2)
        cls.addClassCleanup(cls.daemon.stop)

    def check(self, placement):
        # On CUDA the second call of the ranks waits behind the first on their streams, which the deadline ends.
        slips = [slip for slip in SLIPS if not (CUDA and slip == "skipped")]
        for rank, told in enumerate(Ranks(self.daemon, 2, "rank_slips.py", placement, *slips).results()):
            self.assertEqual(told["before"], [True, True])
            for slip, seen in told["slips"].items():
                with self.subTest(rank=rank, slip=slip):
                    self.assertLess(seen["seconds"], LONGEST, seen)
                    self.assertEqual(seen["after"], [True, True, True], seen)
                    if slip == "raised" and rank == 1:
                        continue
                    self.assertNotEqual(seen["error"], "NoneType", seen)
                    self.assertTrue(seen["ranks"], seen)
            by_type = told["slips"]["type"]
            self.assertEqual(by_type["error"], "FieldMismatch", by_type)
            self.assertIn("dtype", by_type["text"])
            self.assertEqual(by_type["ranks"], [1], by_type)
            self.assertEqual(told["slips"]["forgotten"]["reason"], "DESYNC", told)

    def test_on_engines(self):
        self.check("engine")

    @unittest.skipIf(CUDA, "a rank's count of launches is on the GPU: such a slip ends by its deadline there")
    def test_in_clients(self):
        self.check("client")


if __name__ == "__main__":
    unittest.main()
