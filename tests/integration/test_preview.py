"""Previews of plans: one rank asks while the other stands still, and plans that both prepare then are what was told (preview_rank.py)."""

import json
import os
import signal
import subprocess
import sys
import unittest

from harness import BIN, TandemTest, host_only

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(BIN, "../lib/libtandem.so")
PACKAGE = os.path.join(HERE, "../../client/python/src")


@host_only("the algorithms that it expects are the host backend's")
class Previews(TandemTest):
    gpus = 2

    def test_one_rank_alone_hears_of_the_plan_that_all_would_get(self):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TANDEM_LIBRARY": LIBRARY}
        environment["TANDEM_RUNTIME_DIR"] = self.daemon.runtime_dir
        ranks = [
            subprocess.Popen(
                [sys.executable, "-B", os.path.join(HERE, "preview_rank.py"), str(rank), "2"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            self.addCleanup(rank.communicate)
            self.addCleanup(rank.kill)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "joined\n")
        still = [ranks[1].pid, *self.daemon.engine_pids()]
        for pid in still:
            os.kill(pid, signal.SIGSTOP)
        try:
            ranks[0].stdin.write("\n")
            ranks[0].stdin.flush()
            line = ranks[0].stdout.readline()
            previews = json.loads(line or self.fail(ranks[0].communicate()[1]))
        finally:
            for pid in still:
                os.kill(pid, signal.SIGCONT)
        self.assertEqual(self.daemon.ctl_json("stats")["plans"], 0)
        self.assertEqual({one["placed"] for one in previews}, {"engine", "client"})
        self.assertEqual({one["fused"] for one in previews}, {True, False})
        for one in previews:
            self.assertTrue(one["reason"] and one["placement"].startswith(one["placed"] + ": "), one)
        for text in (ranks[1], ranks[0]):
            text.stdin.write("\n\n")
            text.stdin.flush()
        for rank in ranks:
            _, errors = rank.communicate(timeout=300)
            self.assertEqual((rank.returncode, errors), (0, ""))


if __name__ == "__main__":
    unittest.main()
