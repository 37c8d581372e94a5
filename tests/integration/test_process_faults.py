"""Engines and the daemon that die: sessions go on, launches end, memory keeps its contents, and all comes back."""

import os
import signal
import time
import unittest

from harness import Daemon, TandemTest, everybody, wait_until


class EngineFaults(TandemTest):
    def test_engine_killed_between_launches(self):
        clients = self.group(2)
        everybody(clients, "allocate", memory="weights", shape=[1000])
        everybody(clients, "fill", memory="weights", base=5)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        engines = self.daemon.engine_pids()
        self.assertEqual(len(engines), 4)
        os.kill(engines[1], signal.SIGKILL)
        wait_until(lambda: len(set(self.daemon.engine_pids()) - set(engines)) == 1, 10, "no new engine")
        wait_until(lambda: all(e["state"] == "ready" for e in self.daemon.ctl_json("stats")["engines"]), 10)
        everybody(clients, "check")
        for client in clients:
            self.assertEqual(client.call("read", memory="weights", count=3)["values"], [5.0] * 3)
        self.recover(clients)

    def recover(self, clients):
        """Every rank is told of the restart once, at most, and then the plan goes on."""
        for attempt in range(3):
            replies = everybody(clients, "launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], check=False)
            everybody(clients, "sync", deadline_ms=20000)
            waits = everybody(clients, "wait", plan="ar", check=False)
            for reply in replies + waits:
                self.assertIn(reply.get("code", "OK"), ("OK", "ABORTED"), reply)
            if all(r["ok"] for r in replies + waits):
                break
        else:
            self.fail("the plan does not go on after the restart")
        self.check_all_reduce(clients)

    def test_engine_killed_mid_launch(self):
        clients = self.group(2)
        other = self.group(2, name="other", job_key="another-job-key-1", gpus=self.gpu_uuids()[2:4])
        self.all_reduce_plan(other, group="other")
        self.all_reduce_plan(clients, count=65536)
        for _ in range(3):
            engines = self.daemon.engine_pids()
            calls = [c.send("launch", plan="ar", times=100, bindings=[["ar.in", 0], ["ar.out", 0]]) for c in clients]
            time.sleep(0.05)
            os.kill(engines[0], signal.SIGKILL)
            for client, call in zip(clients, calls):
                reply = client.reply(call, check=False)
                self.assertIn(reply.get("code", "OK"), ("OK", "ABORTED"), reply)
                client.call("sync", deadline_ms=20000)
                client.call("wait", plan="ar", check=False)
            self.check_all_reduce(other)
            wait_until(lambda: all(e["state"] == "ready" for e in self.daemon.ctl_json("stats")["engines"]), 10)
            for attempt in range(3):
                replies = everybody(clients, "launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], check=False)
                everybody(clients, "sync", deadline_ms=20000)
                waits = everybody(clients, "wait", plan="ar", check=False)
                if all(r["ok"] for r in replies + waits):
                    break
            self.assertTrue(all(r["ok"] for r in replies + waits), replies + waits)

    def gpu_uuids(self):
        client = self.daemon.client("lister")
        uuids = client.connect()["gpus"]
        client.call("detach")
        return uuids


class CrashLoop(TandemTest):
    gpus = 2
    extra = ("--supervisor-crash-loop-count", "3", "--supervisor-crash-loop-window-ms", "60000")

    def test_an_engine_that_dies_again_and_again_is_left_down(self):
        def state():
            return [e["state"] for e in self.daemon.ctl_json("stats")["engines"]]
        for _ in range(6):
            wait_until(lambda: "fused" in state() or all(s == "ready" for s in state()), 20)
            if "fused" in state():
                break
            os.kill(self.daemon.engine_pids()[0], signal.SIGKILL)
            wait_until(lambda: len(self.daemon.engine_pids()) < 2 or "fused" in state(), 10)
        self.assertIn("fused", state())
        doctor = self.daemon.ctl("doctor", check=False)
        self.assertIn("fuse", doctor.stdout.lower())


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
        clients[0].call("sync", deadline_ms=20000)
        self.assertLess(time.monotonic() - start, 5, "the stream hangs after the daemon's death")
        for client in clients:
            reply = client.call("wait", plan="ar", check=False)
            if client is clients[0]:
                self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
            reply = client.call("prepare", key="other", request=request, check=False)
            self.assertIn(reply["code"], ("UNAVAILABLE", "UNAUTHENTICATED"))
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 10, "engines outlive tandemd")
        second = Daemon(2, runtime_dir=daemon.runtime_dir)
        self.addCleanup(second.stop)
        reply = clients[0].call("prepare", key="other", request=request, check=False)
        self.assertIn(reply["code"], ("UNAUTHENTICATED", "UNAVAILABLE"), reply)
        for rank, client in enumerate(clients):
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
        self.assertNotEqual(second.process.wait(30), 0)
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
        self.assertEqual(daemon.process.wait(30), 0)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 10)


if __name__ == "__main__":
    unittest.main()
