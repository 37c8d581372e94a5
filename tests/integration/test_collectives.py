"""Collectives of any count in one call each: ranks written in C, each a separate process (c_client/collectives.c)."""

import os
import signal
import subprocess
import unittest

from harness import BIN, TandemTest, check_most_ranks, host_only

MOST_RANKS = 4
PATIENCE = 300


@host_only("it calls with memory of the process, and captures on streams of the host backend")
class Collectives(TandemTest):
    gpus = 4

    def start(self, world):
        check_most_ranks(type(self).__module__, world)
        ranks = [
            subprocess.Popen(
                [os.path.join(BIN, "tandem-test-collectives"), self.daemon.runtime_dir, str(rank), str(world)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        for rank in ranks:
            self.addCleanup(rank.communicate)
            self.addCleanup(rank.kill)
        return ranks

    def expect(self, ranks, line):
        for rank in ranks:
            found = rank.stdout.readline().strip()
            self.assertEqual(found, line, rank.stderr.read() if not found else "")

    def go_on(self, ranks):
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()

    def test_calls_of_counts_that_nobody_has_seen_need_no_daemon(self):
        for world in (1, 2, 3, 4):
            with self.subTest(world=world):
                ranks = self.start(world)
                self.expect(ranks, "prepared")
                still = [self.daemon.process.pid, *self.daemon.engine_pids()]
                try:
                    for pid in still:
                        os.kill(pid, signal.SIGSTOP)
                    self.go_on(ranks)
                    self.expect(ranks, "done")
                finally:
                    for pid in still:
                        os.kill(pid, signal.SIGCONT)
                self.go_on(ranks)
                for rank in ranks:
                    _, errors = rank.communicate(timeout=PATIENCE)
                    self.assertEqual((rank.returncode, errors), (0, ""))


if __name__ == "__main__":
    unittest.main()
