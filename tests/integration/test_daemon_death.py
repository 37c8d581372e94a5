"""tandemd is killed while its clients are in every kind of call: each returns in time and by name, streams are released,
and with the next tandemd they attach, join and go on."""

import contextlib
import os
import signal
import time
import unittest

from harness import Daemon, TandemTest, everybody, wait_until

AR = {
    "op": "all_reduce",
    "operands": [{"role": "input", "dtype": "f32", "shape": [256]}, {"role": "output", "dtype": "f32", "shape": [256]}],
}
BINDINGS = [["ar.in", 0], ["ar.out", 0]]


class DaemonDeath(TandemTest):
    gpus = 2

    def restart(self):
        """Another tandemd in the same place; the clients stay."""
        old, self.daemon = self.daemon, None
        old.own_dir = False
        old.log.close()
        self.daemon = Daemon(self.gpus, self.extra, runtime_dir=old.runtime_dir)
        self.daemon.own_dir = True
        self.daemon.clients = old.clients
        for client in old.clients:
            client.daemon = self.daemon

    def kill_daemon(self):
        engines = self.daemon.engine_pids()
        self.daemon.process.kill()
        self.daemon.process.wait()
        return engines

    def check_lost(self, reply):
        self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
        self.assertEqual(reply["detail"]["reason"], "DAEMON_LOST", reply)
        self.assertEqual(reply["message"], f"the daemon at {self.daemon.runtime_dir}/lease.sock is gone")

    def test_every_call_reports_the_loss_alike(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        everybody(clients, "allocate", memory="t", shape=[100])
        self.kill_daemon()
        client = clients[0]
        wait_until(lambda: any(e["kind"] == "daemon_lost" for e in client.call("events")["events"]), 60)
        for call, arguments in (
            ("check", {}),
            ("join", {"world": 2, "rank": 0, "name": "new", "group": "new"}),
            ("allocate", {"memory": "u", "shape": [100]}),
            ("register", {"memory": "r", "bytes": 4096}),
            ("empty", {"tensor": "e", "shape": [4]}),
            ("prepare", {"key": "other", "request": AR}),
            ("launch", {"plan": "ar", "bindings": BINDINGS}),
            ("launch_without_stream", {"plan": "ar", "bindings": BINDINGS}),
            ("leave", {}),
            ("detach", {}),
        ):
            with self.subTest(call=call):
                self.check_lost(client.call(call, check=False, **arguments))
        event = next(e for e in client.call("events")["events"] if e["kind"] == "daemon_lost")
        self.assertEqual(event["message"], f"the daemon at {self.daemon.runtime_dir}/lease.sock is gone")

    def begin_again(self, clients):
        for client in clients:
            reply = client.call("check", check=False)
            self.assertIn(reply.get("code"), ("UNAVAILABLE", "UNAUTHENTICATED"), reply)
            client.connect()
        self.join(clients)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)

    def test_killed_while_a_rank_waits_in_each_call(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        for call, arguments in (
            ("join", {"world": 2, "rank": 0, "name": "new", "group": "new"}),
            ("allocate", {"memory": "t", "shape": [1000]}),
            ("prepare", {"key": "other", "request": AR}),
            ("launch_without_stream", {"plan": "ar", "bindings": BINDINGS}),
        ):
            with self.subTest(call=call):
                if call == "join":
                    self.join(clients)
                    self.all_reduce_plan(clients)
                else:
                    self.begin_again(clients)
                waiting = clients[0].send(call, **arguments)  # rank 1 does not come
                time.sleep(0.2)
                engines = self.kill_daemon()
                start = time.monotonic()
                reply = clients[0].reply(waiting, timeout=60, check=False)
                self.check_lost(reply)
                self.assertLess(time.monotonic() - start, 25)
                wait_until(lambda: any(e["kind"] == "daemon_lost" for e in clients[1].call("events")["events"]), 60)
                wait_until(
                    lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 10, "engines outlive tandemd"
                )
                self.restart()
        self.begin_again(clients)

    def test_killed_under_load(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        for _ in range(3):
            calls = [client.send("launch", plan="ar", times=2000, bindings=BINDINGS) for client in clients]
            time.sleep(0.02)
            self.kill_daemon()
            for client, call in zip(clients, calls):
                client.reply(call, check=False)
                client.call("sync", deadline_ms=50000)
                client.call("wait", plan="ar", check=False)
            self.restart()
            self.begin_again(clients)

    def test_a_stop_ends_calls_that_wait_for_an_engine(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        stopped = self.daemon.engines()[1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            calls = [client.send("prepare", key="other", request=AR, deadline_ms=60000) for client in clients]
            # It is listed before its engines have answered.
            wait_until(lambda: len(self.daemon.ctl_json("plans")["plans"]) == 2, 60, "nobody waits for the engine")
            self.daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: self.daemon.ctl_json("stats")["draining"], 60, "no drain")
            self.daemon.process.send_signal(signal.SIGTERM)  # now, though a group is left
            for client, call in zip(clients, calls):
                reply = client.reply(call, timeout=60, check=False)
                self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
                self.assertIn("the daemon is stopping", reply["message"])
            # The engine's time to end, not the calls' deadline.
            self.daemon.process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)

    def test_a_stopped_daemon_holds_no_launch_up(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)  # opens the channels
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(5):
                self.check_all_reduce(clients)
            reply = clients[0].call("prepare", key="other", request=AR, deadline_ms=500, check=False)
            self.assertIn(reply.get("code"), ("DEADLINE_EXCEEDED", "UNAVAILABLE"), reply)
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        self.check_all_reduce(clients)
        clients[0].call("check")


if __name__ == "__main__":
    unittest.main()
