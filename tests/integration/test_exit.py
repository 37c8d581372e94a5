"""A Python program that fails with a launch in flight ends, with its own traceback, though the other rank never comes."""

import os
import subprocess
import sys
import unittest

from harness import BIN, TandemTest, host_only

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(BIN, "../lib/libtandem.so")
PACKAGE = os.path.join(HERE, "../../client/python/src")
PATIENCE = 60


@host_only("its ranks have memory of the host backend")
class Exit(TandemTest):
    gpus = 2

    def start(self, rank, *arguments):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TANDEM_LIBRARY": LIBRARY}
        environment["TANDEM_RUNTIME_DIR"] = self.daemon.runtime_dir
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, "exit_rank.py"), str(rank), *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def check(self, where):
        for placement in ("client", "engine"):
            with self.subTest(placement):
                failing, waiting = self.start(0, where, placement), self.start(1, where, placement)
                self.assertEqual(waiting.stdout.readline(), "prepared\n")
                try:
                    _, log = failing.communicate(timeout=PATIENCE)
                except subprocess.TimeoutExpired:
                    self.fail("the rank that has failed does not end")
                self.assertEqual(failing.returncode, 1, log)
                self.assertTrue(log.endswith("Own: the rank has failed\n"), log)
                waiting.communicate(timeout=PATIENCE)

    def test_in_a_function(self):
        self.check("function")

    def test_in_contexts(self):
        self.check("contexts")

    def test_a_detaching_that_is_cancelled(self):
        """It waits for the rank's launch on an engine no more."""
        failing, waiting = self.start(0, "detaching", "engine"), self.start(1, "detaching", "engine")
        self.assertEqual(waiting.stdout.readline(), "prepared\n")
        _, log = failing.communicate(timeout=PATIENCE)
        self.assertTrue(log.rstrip().endswith("the call was cancelled"), log)

    def test_an_event_as_it_ends(self):
        """The other rank dies while the failed one, whose launch is on an engine, waits to leave the group."""
        failing, waiting = self.start(0, "listening", "engine"), self.start(1, "listening", "engine")
        self.assertEqual(waiting.stdout.readline(), "prepared\n")
        self.assertIn("Own: the rank has failed\n", iter(failing.stderr.readline, ""))
        waiting.kill()
        self.assertEqual(failing.wait(PATIENCE), 1)

    def test_in_the_program(self):
        self.check("program")


if __name__ == "__main__":
    unittest.main()
