"""Engines and the daemon that die: sessions go on, launches end, memory keeps its contents, and all comes back."""

import os
import signal
import time
import unittest
import urllib.error
import urllib.request

from harness import GPUS, Daemon, TandemTest, everybody, needs_gpus, wait_until

MOST_RANKS = 4


class EngineFaults(TandemTest):
    def test_engine_killed_between_launches(self):
        clients = self.group(2)
        everybody(clients, "allocate", memory="weights", shape=[1000])
        everybody(clients, "fill", memory="weights", base=5)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        engines = len(self.daemon.engine_pids())
        self.assertEqual(engines, min(GPUS, 4))
        self.daemon.kill_engine(1)
        self.daemon.wait_engines()
        everybody(clients, "check")
        for client in clients:
            self.assertEqual(client.call("read", memory="weights", count=3)["values"], [5.0] * 3)
        for client in clients:
            self.hear_restart(client)
        self.check_all_reduce(clients)
        # The same again: a reported restart is not reported twice, and the next one is.
        self.daemon.kill_engine(0)
        self.daemon.wait_engines()
        for client in clients:
            self.hear_restart(client)
        for _ in range(3):
            self.check_all_reduce(clients)
        self.assertEqual([engine["generation"] for engine in self.daemon.engines()], [2, 2] + [1] * (engines - 2))

    @needs_gpus(4)
    def test_engine_killed_mid_launch(self):
        clients = self.group(2)
        other = self.group(2, name="other", job_key="another-job-key-1", gpus=self.gpu_uuids()[2:4])
        self.all_reduce_plan(other, group="other")
        self.all_reduce_plan(clients, count=65536)
        for _ in range(3):
            pid = self.daemon.engines()[0]["pid"]
            calls = [c.send("launch", plan="ar", times=100, bindings=[["ar.in", 0], ["ar.out", 0]]) for c in clients]
            time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            heard = []
            for client, call in zip(clients, calls):
                launched = client.reply(call, check=False)
                client.call("sync", deadline_ms=50000)
                heard.append([launched, client.call("wait", plan="ar", check=False)])
            self.check_all_reduce(other)
            wait_until(lambda: self.daemon.engines()[0]["pid"] not in (0, pid), 60)
            self.daemon.wait_engines()
            self.assertLess(time.monotonic() - killed, 40, "the engine is slow to come back")
            for client, replies in zip(clients, heard):
                self.hear_restart(client, earlier=replies)
            self.check_all_reduce(clients, count=65536)
        self.check_all_reduce(other)

    def gpu_uuids(self):
        client = self.daemon.client("lister")
        uuids = client.connect()["gpus"]
        client.call("detach")
        return uuids


class PartOfTheNode(TandemTest):
    gpus = 2

    def readyz(self, daemon):
        """Status and text."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{daemon.metrics_port()}/readyz", timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def with_an_engine_down(self, ready_with):
        held_down = ("--supervisor-crash-loop-count", "1", "--metrics-listen", "127.0.0.1:0")
        daemon = Daemon(2, (*held_down, "--ready-with-engines", ready_with))
        self.addCleanup(daemon.stop)
        self.assertEqual(self.readyz(daemon), (200, "ready\n"))
        os.kill(daemon.engines()[0]["pid"], signal.SIGKILL)
        wait_until(lambda: daemon.engines()[0]["state"] == "crash_looped", 60)
        return daemon

    def test_it_stays_ready_where_the_configuration_says_so(self):
        daemon = self.with_an_engine_down("any")
        status, text = self.readyz(daemon)
        self.assertEqual(status, 200, text)
        self.assertRegex(text, r"^ready\nthe engine of GPU 0 \(.*\) is held down after a crash loop\n$")
        health = daemon.ctl("health", "--ready")
        self.assertIn("live, ready\n  the engine of GPU 0", health.stdout)
        client = daemon.client("other")
        uuids = client.connect()["gpus"]
        client.call("join", world=1, rank=0, name="one", job_key=self.job_key, gpu=uuids[1])
        self.all_reduce_plan([client], group="one")
        self.check_all_reduce([client])
        os.kill(daemon.engines()[1]["pid"], signal.SIGKILL)
        wait_until(lambda: self.readyz(daemon)[0] == 503, 60)

    def test_it_is_not_ready_elsewhere(self):
        daemon = self.with_an_engine_down("2")
        status, text = self.readyz(daemon)
        self.assertEqual(status, 503)
        self.assertIn("not ready\nthe engine of GPU 0", text)
        self.assertEqual(daemon.ctl("health", "--ready", check=False).returncode, 1)


class CrashLoop(TandemTest):
    gpus = 2
    extra = ("--supervisor-crash-loop-count", "3", "--supervisor-crash-loop-window-ms", "60000")

    def test_an_engine_that_dies_again_and_again_is_left_down(self):
        def state():
            return [e["state"] for e in self.daemon.ctl_json("stats")["engines"]]

        for _ in range(3):
            wait_until(lambda: state()[0] == "ready", 60)
            self.daemon.kill_engine(0)
        wait_until(lambda: state()[0] == "crash_looped", 60)
        self.assertEqual(state()[1], "ready")
        doctor = self.daemon.ctl("doctor", check=False)
        self.assertIn("held down", doctor.stdout)
        self.assertEqual(doctor.returncode, 1)
        self.assertIn("tandemctl reset", doctor.stdout)
        self.assertEqual(self.daemon.ctl("reset", "7", check=False).returncode, 4)
        self.assertEqual(self.daemon.ctl("reset", "", check=False).returncode, 2)
        self.assertEqual(state()[0], "crash_looped")
        other = self.daemon.ctl("reset", "1", check=False)
        self.assertEqual(other.returncode, 1)
        self.assertIn("is not held down", other.stderr)
        self.daemon.ctl("reset", "0")
        wait_until(lambda: state()[0] == "ready", 60)
        # Its record is empty again: two more crashes are borne.
        for _ in range(2):
            self.daemon.kill_engine(0)
            wait_until(lambda: state()[0] == "ready", 60)


class DaemonFaults(unittest.TestCase):
    def test_daemon_killed_and_started_again(self):
        daemon = Daemon(2)
        self.addCleanup(daemon.stop)
        clients = [daemon.client(f"rank{r}") for r in range(2)]
        for client in clients:
            client.connect()
        everybody(clients, "join", each=lambda rank: {"rank": rank, "world": 2, "name": "tp"})
        operand = {"dtype": "f32", "shape": [64]}
        request = {"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]}
        for memory in ("in", "out"):
            everybody(clients, "register", memory=memory, bytes=256)
        everybody(clients, "prepare", key="ar", plan="ar", request=request)
        engines = daemon.engine_pids()
        # Rank 0 waits for rank 1 in a launch when the daemon goes.
        clients[0].call("launch", plan="ar", bindings=[["in", 0], ["out", 0]])
        daemon.process.kill()
        daemon.process.wait()
        start = time.monotonic()
        clients[0].call("sync", deadline_ms=50000)
        self.assertLess(time.monotonic() - start, 25, "the stream hangs after the daemon's death")
        for client in clients:
            reply = client.call("wait", plan="ar", check=False)
            if client is clients[0]:
                self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
            reply = client.call("prepare", key="other", request=request, check=False)
            self.assertIn(reply["code"], ("UNAVAILABLE", "UNAUTHENTICATED"))
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 60, "engines outlive tandemd")
        second = Daemon(2, runtime_dir=daemon.runtime_dir)
        self.addCleanup(second.stop)
        second.clients = daemon.clients
        reply = clients[0].call("prepare", key="other", request=request, check=False)
        self.assertIn(reply["code"], ("UNAUTHENTICATED", "UNAVAILABLE"), reply)
        for client in clients:
            client.connect()
        everybody(clients, "join", each=lambda rank: {"rank": rank, "world": 2, "name": "tp"})
        for memory in ("in", "out"):
            everybody(clients, "register", memory=memory, bytes=256)
        everybody(clients, "prepare", key="ar", plan="ar", request=request)
        everybody(clients, "launch", plan="ar", bindings=[["in", 0], ["out", 0]])
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")

    def test_a_live_socket_is_never_replaced(self):
        daemon = Daemon(1)
        self.addCleanup(daemon.stop)
        second = Daemon(1, runtime_dir=daemon.runtime_dir, wait=False)
        self.addCleanup(second.stop)
        self.assertNotEqual(second.process.wait(60), 0)
        self.assertIn("another", second.tail())
        self.assertEqual(daemon.ctl("stats").returncode, 0)

    def test_sigterm_drains_and_ends(self):
        daemon = Daemon(1)
        self.addCleanup(daemon.stop)
        client = daemon.client()
        client.connect()
        engines = daemon.engine_pids()
        daemon.process.terminate()
        client.call("detach", check=False)
        self.assertEqual(daemon.process.wait(60), 0)
        with open(daemon.log_path) as log:
            self.assertEqual([line for line in log if " E " in line], [], "an orderly end is no error")
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 60)


if __name__ == "__main__":
    unittest.main()
