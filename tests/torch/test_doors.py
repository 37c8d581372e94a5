"""What the adapters of vLLM, SGLang and Megatron share: ranks that have other versions of Tandem or none, and a rank that is killed. No
rank hangs; all fall back alike, or one clear error names the rank. test_vllm.py, test_sglang.py and test_megatron.py have the rest."""

import unittest

from check_programs import Checks, add_tests
from node import Daemon, Ranks


class Doors(Checks, unittest.TestCase):
    program = "rank_doors.py"


class Killed(unittest.TestCase):
    def test_a_killed_rank_is_named(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        ranks = Ranks(daemon, 2, "rank_doors.py", "killed")
        self.addCleanup(ranks.close)
        ranks.wait_for(1, "ready")
        pid = ranks.processes[1].pid
        ranks.processes[1].kill()
        told = ranks.result(0, timeout=60)
        self.assertEqual(told["ranks"], [1], told)
        self.assertIn(str(pid), told["text"])


add_tests(Doors)

if __name__ == "__main__":
    unittest.main()
