"""One rank makes another call than its peers, skips one or raises in between: all ranks get a failure that names it, long before
the deadline, and a renewal mends the group for cached plans and for new ones."""

import os
import unittest

from node import CUDA, Daemon, Ranks

SLIPS = ["type", "other", "skipped", "raised", "forgotten"]
# In seconds, of launches with 120. Where TANDEM_TEST_IDLE says that nothing else runs, a slip is named within one.
LONGEST = 1 if os.environ.get("TANDEM_TEST_IDLE") else 40


class Slips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=2)
        cls.addClassCleanup(cls.daemon.stop)

    def check(self, placement):
        # On CUDA the second call waits behind the first on its stream: engines do not hear of it before the deadline.
        slips = [slip for slip in SLIPS if not (CUDA and placement == "engine" and slip == "skipped")]
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
                    if slip in ("type", "forgotten"):
                        self.assertEqual(seen["ranks"], [1], seen)
                    elif slip != "raised":  # of two ranks with unlike launches either may be right
                        self.assertEqual(len(seen["ranks"]), 1, seen)
                        self.assertRegex(seen["text"], r"rank \d .*(rows|'torch\.\d+'|\[4,16\])", seen)
            by_type = told["slips"]["type"]
            self.assertEqual(by_type["error"], "FieldMismatch", by_type)
            self.assertIn("operands[0].dtype differs: rank 0 has f32, rank 1 has bf16", by_type["text"])
            self.assertEqual(told["slips"]["forgotten"]["reason"], "DESYNC", told)

    def test_on_engines(self):
        self.check("engine")

    def test_in_clients(self):
        self.check("client")


if __name__ == "__main__":
    unittest.main()
