"""Joins, preparations and launches that an event loop awaits by descriptors: two ranks written in C (c_client/pending.c)."""

import os
import subprocess
import unittest

from harness import BIN, TandemTest, host_only, wait_until


@host_only("it fills memory and waits on streams as the host backend has them")
class PendingCalls(TandemTest):
    gpus = 2

    def test_two_ranks(self):
        ranks = [
            subprocess.Popen(
                [os.path.join(BIN, "tandem-test-pending"), self.daemon.runtime_dir, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            self.addCleanup(rank.communicate)
            self.addCleanup(rank.kill)
        for call in ("join", "prepare", "launch"):
            line = ranks[0].stdout.readline()
            self.assertEqual(line, "not ended\n", call + (line or ranks[0].stderr.read()))
            ranks[1].stdin.write("\n")
            ranks[1].stdin.flush()
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            self.assertEqual((rank.returncode, errors), (0, ""))
        wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60, "sessions stay")


if __name__ == "__main__":
    unittest.main()
