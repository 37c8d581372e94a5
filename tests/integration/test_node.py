"""The node as an operator steers it: cordon, audit, reload, stop; jobs that run are not disturbed."""

import json
import os
import re
import signal
import tarfile
import tempfile
import time
import unittest
import urllib.request

from harness import Daemon, TandemTest, everybody, wait_until

MOST_RANKS = 2

BINDINGS = [["ar.in", 0], ["ar.out", 0]]


class Steering(TandemTest):
    gpus = 2

    def working(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        return clients

    def test_a_cordon_lets_jobs_go_on(self):
        clients = self.working()
        late = self.daemon.client("late")
        late.connect()
        self.assertIn("1 groups go on", self.daemon.ctl("cordon").stdout)
        self.assertIn("CORDONED", self.daemon.ctl("stats").stdout)
        self.assertTrue(self.daemon.ctl_json("stats")["cordoned"])
        ready = self.daemon.ctl("health", "--ready", check=False)
        self.assertEqual(ready.returncode, 1)
        self.assertIn("cordoned", ready.stdout)
        stranger = self.daemon.client("stranger")
        refused = stranger.call("connect", runtime_dir=self.daemon.runtime_dir, check=False)
        self.assertEqual((refused["code"], refused["detail"]["reason"]), ("UNAVAILABLE", "CORDONED"), refused)
        refused = late.call("join", name="new", job_key=self.job_key, world=1, rank=0, check=False)
        self.assertEqual((refused["code"], refused["detail"]["reason"]), ("UNAVAILABLE", "CORDONED"), refused)
        self.all_reduce_plan(clients, key="new")
        self.check_all_reduce(clients, key="new")
        self.assertFalse([e for e in clients[0].call("events")["events"] if e["kind"] == "draining"])
        self.daemon.ctl("cordon", "--undo")
        self.assertFalse(self.daemon.ctl_json("stats")["cordoned"])
        stranger.connect()

    def test_every_change_is_logged_with_its_process(self):
        self.working()
        session = self.daemon.ctl_json("sessions")["sessions"][1]["id"]
        self.daemon.ctl("cordon")
        self.daemon.ctl("cordon", "--undo")
        self.daemon.ctl("drain", "--wait", "0.1", check=False)
        self.daemon.ctl("drain", "--undo")
        self.daemon.ctl("evict", str(session))
        self.daemon.ctl("reset", "0", check=False)  # it is not held down
        audit = [line for line in self.daemon.tail(1000).splitlines() if "audit call=" in line]
        calls = [re.search(r"call=(\w+)", line).group(1) for line in audit]
        self.assertEqual(calls, ["Cordon", "Cordon", "Drain", "Drain", "Evict", "Reset", "Reset"], audit)
        for line in audit:
            self.assertRegex(line, rf' uid={os.getuid()} pid=\d+ command="\S*tandemctl .*" arguments={{')
        self.assertIn(f"arguments={{session_id: {session}}}", audit[4])
        self.assertIn("drain --wait 0.1", audit[2])
        self.assertIn("failed: FAILED_PRECONDITION", audit[6])

    def test_sessions_have_an_owner(self):
        self.working()
        with open("/proc/self/cgroup") as file:
            known = any(line.split(":", 2)[2].strip() for line in file)
        for session in self.daemon.ctl_json("sessions")["sessions"]:
            self.assertEqual(session["owner"], session["cgroup"])  # no pod and no job of Slurm
            self.assertEqual(bool(session["owner"]), known)

    def test_a_stop_after_a_trace_is_prompt(self):
        clients = self.working()
        for _ in range(2000):
            everybody(clients, "launch", plan="ar", bindings=BINDINGS)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        self.assertGreater(len(self.daemon.ctl("trace").stdout), 100_000)
        self.daemon.close_clients()
        wait_until(lambda: self.daemon.ctl_json("stats")["groups"] == 0, 60)
        start = time.monotonic()
        self.daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.daemon.process.wait(60), 0)
        self.assertLess(time.monotonic() - start, 15)


class Support(TandemTest):
    gpus = 2

    def archive(self, *flags):
        """The parts of an archive, by name."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "support.tar.gz")
            self.assertEqual(self.daemon.ctl("support", "-o", path, *flags, timeout=300).stdout, path + "\n")
            self.assertEqual(os.stat(path).st_mode & 0o077, 0)
            with tarfile.open(path) as archive:
                return {
                    member.name.removeprefix("tandem-support/"): archive.extractfile(member).read().decode()
                    for member in archive
                    if member.isfile()
                }

    def test_an_archive_has_what_a_report_needs(self):
        clients = [self.daemon.client("secretrank") for _ in range(2)]
        for client in clients:
            client.connect()
        self.join(clients, name="secretgroup", group="tp")
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        parts = self.archive()
        self.assertIn("engines are ready", parts["doctor.txt"])
        self.assertEqual(json.loads(parts["stats.json"])["groups"], 1)
        self.assertEqual(len(json.loads(parts["plans.json"])["plans"]), 1)
        self.assertIn("topology_class", json.loads(parts["topology.json"]))
        self.assertTrue(json.loads(parts["trace.json"])["traceEvents"])
        self.assertIn("secretgroup", parts["groups.json"])
        self.assertLessEqual({"config/tandemd.toml", "machine/uname.txt", "journal.txt", "version.txt"}, set(parts))
        redacted = self.archive("--redact")
        text = "\n".join(redacted.values())
        self.assertNotIn("secret", text)
        self.assertIn("group-name-1", text)
        self.assertNotIn("journal.txt", redacted)

    def test_without_a_daemon_the_machine_is_looked_at(self):
        self.daemon.process.kill()
        self.daemon.process.wait()
        doctor = self.daemon.ctl("doctor", check=False)
        self.assertEqual(doctor.returncode, 3)
        self.assertIn("client.sock was left by a tandemd that has ended", doctor.stdout)
        self.assertIn("no daemon answers", doctor.stderr)
        parts = self.archive()
        self.assertIn("client.sock was left by", parts["doctor.txt"])
        self.assertIn("UNAVAILABLE", parts["stats.json"])


class Reload(TandemTest):
    gpus = 2

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "tandemd.toml")
        self.write("")
        self.extra = ("--config", self.path)
        super().setUp()

    def write(self, text):
        with open(self.path, "w") as file:
            file.write(text)

    def reload(self, text, message="configuration reloaded"):
        """Returns what tandemd has logged about it."""
        begin = os.path.getsize(self.daemon.log_path)
        self.write(text)
        self.daemon.process.send_signal(signal.SIGHUP)

        def logged():
            with open(self.daemon.log_path) as log:
                log.seek(begin)
                return log.read()

        wait_until(lambda: message in logged(), 60, "the reload is not logged")
        return logged()

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.metrics_port()}/metrics", timeout=60) as reply:
            return reply.read().decode()

    def test_what_can_change_while_a_job_runs(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)

        text = self.reload("[quotas]\nplans = 1\n")
        self.assertIn("configuration: quotas.plans=1", text)
        for refused in self.prepare_all_reduce(clients, key="second", check=False):
            self.assertEqual(refused["detail"]["reason"], "QUOTA_PLANS", refused)
        self.check_all_reduce(clients)

        self.reload('[metrics]\nlisten = "127.0.0.1:0"\n')
        self.assertIn("\ntandem_sessions 2\n", self.metrics())
        self.assertNotIn("tandem_plan_sent_bytes_per_second{", self.metrics())
        self.reload('[metrics]\nlisten = "127.0.0.1:0"\nper_plan = true\n')
        self.assertIn("tandem_plan_sent_bytes_per_second{", self.metrics())
        self.all_reduce_plan(clients, key="second")  # the quota has gone with its line

        self.reload("cordoned = true\n")
        self.assertTrue(self.daemon.ctl_json("stats")["cordoned"])
        self.reload("")
        self.assertFalse(self.daemon.ctl_json("stats")["cordoned"])

        self.reload('log_level = "warning"\n', message="log_level=")
        begin = os.path.getsize(self.daemon.log_path)
        self.daemon.client("quiet").connect()
        self.reload("trace_records = 7\n", message="configuration: trace_records has changed, which needs a restart")
        with open(self.daemon.log_path) as log:
            log.seek(begin)
            self.assertNotIn("name=quiet", log.read())
        self.check_all_reduce(clients)
        self.assertIsNone(self.daemon.process.poll())

    def test_rules_bind_a_user_to_gpus(self):
        everybody_else = "[[allow]]\nuid = 4242\n"
        self.reload(everybody_else)
        stranger = self.daemon.client("stranger")
        refused = stranger.call("connect", runtime_dir=self.daemon.runtime_dir, check=False)
        self.assertEqual((refused["code"], refused["detail"]["reason"]), ("PERMISSION_DENIED", "NOT_ALLOWED"), refused)
        self.assertIn(f"uid {os.getuid()}", refused["message"])
        self.reload(everybody_else + f"[[allow]]\nuid = {os.getuid()}\ngpus = [1]\n")
        uuids = [engine["gpu_uuid"] for engine in self.daemon.engines()]
        self.assertEqual(stranger.connect()["gpus"], [uuids[1]])
        join = {"world": 1, "rank": 0, "name": "own", "job_key": self.job_key}
        refused = stranger.call("join", gpu=uuids[0], check=False, **join)
        self.assertEqual(refused["detail"]["reason"], "GPU_NOT_ALLOWED", refused)
        stranger.call("join", gpu=uuids[1], **join)
        self.reload("[[allow]]\ngpus = [7]\n", message="allow stays as it is")

    def test_rules_have_quotas_of_their_own(self):
        clients = self.group(2)
        own = f"[[allow]]\nuid = {os.getuid()}\nquotas = {{ plans = %d }}\n[quotas]\nplans = 50\n"
        self.reload(own % 1)
        self.all_reduce_plan(clients)
        (refused, _) = self.prepare_all_reduce(clients, key="second", check=False)
        self.assertEqual(refused["detail"]["reason"], "QUOTA_PLANS", refused)
        self.assertEqual(refused["detail"]["limit"], 1, refused)
        self.reload(own % 2 + '[metrics]\nlisten = "127.0.0.1:0"\n')  # holds for sessions that are there
        self.assertIn('\ntandem_quota_use_ratio{quota="plans"} 0.5\n', self.metrics())
        self.all_reduce_plan(clients, key="second")
        self.assertIn('\ntandem_quota_use_ratio{quota="plans"} 1\n', self.metrics())
        self.reload("[quotas]\nplans = 50\n")
        self.all_reduce_plan(clients, key="third")
        text = self.reload(own % 0, message="the configuration stays as it is")
        self.assertIn("allow.quotas.plans = 0 is out of range", text)

    def test_a_wrong_configuration_changes_nothing(self):
        text = self.reload("cordoned = true\nlog_level = 7\n", message="the configuration stays as it is")
        self.assertIn("log_level", text)
        self.assertFalse(self.daemon.ctl_json("stats")["cordoned"])
        self.assertEqual(self.daemon.ctl("health", "--ready").returncode, 0)


class StopGrace(TandemTest):
    gpus = 1

    def stop(self, grace_ms):
        """Seconds that a stop takes with a group that stays."""
        daemon = Daemon(1, ("--stop-grace-ms", str(grace_ms)))
        self.addCleanup(daemon.stop)
        client = daemon.client("stays")
        client.connect()
        client.call("join", world=1, rank=0, name="stays", job_key=self.job_key)
        start = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(60)
        return time.monotonic() - start

    def test_a_stop_waits_as_long_as_it_is_configured(self):
        self.assertLess(self.stop(0), 15)
        self.assertGreater(self.stop(6000), 5.9)


if __name__ == "__main__":
    unittest.main()
