"""tandemd is restarted 20 times under a job of four ranks, which trains on the digits and checks every step: no launch fails,
no byte is wrong, and the sessions are those of the beginning."""

import os
import signal
import subprocess
import unittest

from harness import BACKEND, BIN, wait_until
from test_restart import RestartTest

MOST_RANKS = 4
RESTARTS = 20
# A restart takes half a second, an epoch some tenths of one: enough for all restarts.
EPOCHS = 400


class DigitsUnderRestarts(RestartTest):
    def test_twenty_restarts(self):
        job = subprocess.Popen(
            [
                os.path.join(BIN, "tandem-train-digits"),
                "--runtime-dir",
                self.daemon.runtime_dir,
                "--backend",
                BACKEND,
                "--world",
                "4",
                "--epochs",
                str(EPOCHS),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(job.kill)
        wait_until(lambda: self.launches() > 100, 60, "the job does not begin")
        sessions = self.sessions()
        self.assertEqual(len(sessions), 4)
        for restart in range(RESTARTS):
            before = self.launches()
            self.restart(signal.SIGKILL if restart % 2 == 0 else signal.SIGTERM)
            self.assertIsNone(job.poll(), f"the job ended before restart {restart + 1}: {EPOCHS} epochs are too few")
            self.assertEqual(self.sessions(), sessions)
            self.check_engines_stay()
            wait_until(lambda: self.launches() > before, 60, "no launch after a restart")
        self.assertIsNone(job.poll(), "the job ended before the last restart")
        output, _ = job.communicate(timeout=300)
        self.assertEqual(job.returncode, 0, output)
        for line in output.splitlines()[-12:]:
            print(line)
        self.assertEqual(sum(engine["failures"] for engine in self.daemon.engines()), 0)
        self.assertNotIn("lost", self.daemon.tail(4000).replace("sessions_lost", ""))

    def launches(self):
        return sum(engine["launches"] for engine in self.daemon.engines())


if __name__ == "__main__":
    unittest.main()
