"""What the library counts as memory of a process and of its groups, against what the kernel has mapped: ranks of memory_rank.py."""

import os
import subprocess
import sys
import unittest

from harness import BIN, TandemTest, host_only

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(BIN, "../lib/libtandem.so")
PACKAGE = os.path.join(HERE, "../../client/python/src")


@host_only("memory of the host backend shows in /proc/self/maps")
class UsedMemory(TandemTest):
    gpus = 2

    def test_it_is_what_is_mapped_and_what_was_made(self):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TANDEM_LIBRARY": LIBRARY}
        environment["TANDEM_RUNTIME_DIR"] = self.daemon.runtime_dir
        program = os.path.join(HERE, "memory_rank.py")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-B", program, str(rank), "2"], stderr=subprocess.PIPE, text=True, env=environment
            )
            for rank in range(2)
        ]
        for rank in ranks:
            self.addCleanup(rank.communicate)
            self.addCleanup(rank.kill)
        for rank in ranks:
            _, errors = rank.communicate(timeout=300)
            self.assertEqual((rank.returncode, errors), (0, ""))


if __name__ == "__main__":
    unittest.main()
