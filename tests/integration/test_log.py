"""The log in the forms that other programs read."""

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest

from harness import BACKEND, BIN, Daemon, TandemTest, wait_until


class LogFormats(TandemTest):
    gpus = 1

    def lines(self, daemon):
        with open(daemon.log_path, encoding="utf-8") as log:
            return log.read().splitlines()

    def log_of(self, form, *extra):
        """The log's lines from a start to a stop, with a session, an operator's call and an engine's end."""
        daemon = Daemon(1, ("--log-format", form, *extra))
        self.addCleanup(daemon.stop)
        daemon.client('a "quoted" uid=0').connect()
        daemon.ctl("cordon")
        daemon.kill_engine(0)
        daemon.wait_engines()
        daemon.close_clients()
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(60)
        return self.lines(daemon)

    def test_every_line_of_json_is_an_object(self):
        objects = [json.loads(line) for line in self.log_of("json")]
        for entry in objects:
            self.assertRegex(entry["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(entry["level"], ("info", "warning", "error"))
            self.assertTrue(entry["message"])
        (attached,) = [entry for entry in objects if entry["message"] == "attached"]
        self.assertEqual(attached["uid"], os.getuid())
        self.assertEqual(attached["name"], 'a "quoted" uid=0')
        self.assertGreater(attached["session"], 0)
        (audit,) = [entry for entry in objects if entry["message"] == "audit"]
        self.assertEqual((audit["call"], audit["uid"], audit["level"]), ("Cordon", os.getuid(), "warning"))
        self.assertIn("tandemctl", audit["command"])
        self.assertIn(0, [entry.get("gpu") for entry in objects if entry["message"].startswith("engine ended")])

    def test_logfmt_has_time_level_and_message_first(self):
        lines = self.log_of("logfmt")
        for line in lines:
            self.assertRegex(line, r'^ts=\S+Z level=\w+ msg="([^"\\]|\\.)*"( [a-z_]+=([^" ]+|"([^"\\]|\\.)*"))*$')
        self.assertTrue(any(re.search(r' msg="attached" session=\d+ .*name="a \\"quoted', line) for line in lines))

    def test_a_reload_changes_the_form(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tandemd.toml")
            with open(path, "w") as file:
                file.write('log_format = "json"\n')
            daemon = Daemon(1, ("--config", path))
            self.addCleanup(daemon.stop)
            json.loads(self.lines(daemon)[0])
            with open(path, "w") as file:
                file.write('log_format = "text"\n')
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: re.match(r"\d{4}-.* I configuration reloaded$", self.lines(daemon)[-1]), 60)

    @unittest.skipIf(os.path.exists("/run/systemd/journal/socket"), "the journal is here")
    def test_a_journal_that_is_not_there_is_refused(self):
        tandemd = [os.path.join(BIN, "tandemd"), "--backend", BACKEND, "--log-format", "journal"]
        with tempfile.TemporaryDirectory() as folder:
            for extra in ([], ["--check-config", "--strict"]):
                done = subprocess.run(
                    [*tandemd, "--runtime-dir", folder, "--state-dir", folder, *extra], capture_output=True, text=True
                )
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn('log_format = "journal" needs the journal\'s socket', done.stderr)


if __name__ == "__main__":
    unittest.main()
