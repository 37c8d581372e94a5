"""An engine that nobody uses ends, and frees its GPU memory; the next use starts it (the key supervisor.engine_idle_ms)."""

import os
import signal
import unittest

from harness import TandemTest, everybody, wait_until
from test_restart import RestartTest

MOST_RANKS = 2
AT_ONCE = ("--supervisor-engine-idle-ms", "1")  # at tandemd's next look at the engine


def states(daemon):
    return [engine["state"] for engine in daemon.engines()]


def await_states(daemon, *wanted):
    wait_until(lambda: states(daemon) == list(wanted), 60, f"the engines are not {wanted}")


class IdleEngines(TandemTest):
    gpus = 2
    extra = AT_ONCE

    def setUp(self):
        super().setUp()
        self.gpus_there = len(self.daemon.engines())
        self.idle = ["idle"] * self.gpus_there

    def work(self, world):
        clients = self.group(world)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        return clients

    def test_engines_end_and_come_back(self):
        await_states(self.daemon, *self.idle)
        self.assertEqual(self.daemon.engine_pids(), [])
        self.assertEqual([engine.get("own_memory_bytes", 0) for engine in self.daemon.engines()], [0] * self.gpus_there)
        self.assertEqual(self.daemon.ctl("health", "--ready").returncode, 0)
        self.assertIn("idle until used", self.daemon.ctl("doctor").stdout)
        self.assertIn(") is idle: nobody uses it", self.daemon.ctl("queue").stdout)
        clients = self.work(2)
        self.assertEqual(states(self.daemon)[:2], ["ready"] * 2)
        everybody(clients, "detach")
        await_states(self.daemon, *self.idle)
        self.work(2)
        self.assertEqual([engine.get("restarts", 0) for engine in self.daemon.engines()], [0] * self.gpus_there)
        self.assertEqual([engine["generation"] for engine in self.daemon.engines()][:2], [3, 3])

    def test_a_job_keeps_its_engine_and_no_other(self):
        clients = self.work(1)
        generation = self.daemon.engines()[0]["generation"]
        await_states(self.daemon, "ready", *self.idle[1:])
        self.check_all_reduce(clients)
        self.assertEqual(self.daemon.engines()[0]["generation"], generation)
        everybody(clients, "detach")
        await_states(self.daemon, *self.idle)

    def test_ranks_that_die_while_engines_start_leave_them_to_rest(self):
        await_states(self.daemon, *self.idle)
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for rank, client in enumerate(clients):
            client.connect()
            client.send("join", rank=rank, world=2, name="tp", job_key=self.job_key)
        for client in clients:
            os.kill(client.process.pid, signal.SIGKILL)
        wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60, "sessions stay")
        await_states(self.daemon, *self.idle)
        self.work(2)

    def test_an_engine_that_dies_while_it_starts_is_started_again(self):
        await_states(self.daemon, *self.idle)
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        # The first rank's join has its engine started.
        first = clients[0].send("join", rank=0, world=2, name="tp", job_key=self.job_key)
        wait_until(lambda: self.daemon.engines()[0].get("pid", 0) > 0, 60, "no engine starts")
        os.kill(self.daemon.engines()[0]["pid"], signal.SIGKILL)
        clients[1].call("join", rank=1, world=2, name="tp", job_key=self.job_key)
        clients[0].reply(first)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)

    def test_many_times(self):
        for _ in range(4):
            await_states(self.daemon, *self.idle)
            everybody(self.work(2), "detach")


class IdleAcrossARestart(RestartTest):
    gpus = 2

    def setUp(self):
        super().setUp()
        self.extra = (*self.extra, *AT_ONCE)
        self.restart(signal.SIGTERM)
        self.engine_pids = []

    def test_idle_engines_are_no_loss(self):
        clients = self.group(1)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        await_states(self.daemon, "ready", *["idle"] * (len(self.daemon.engines()) - 1))
        for signum in (signal.SIGKILL, signal.SIGTERM):
            sessions = self.sessions()
            self.restart(signum)
            self.assertEqual(self.sessions(), sessions)
            self.check_all_reduce(clients)
            self.assertNotIn("has ended while no tandemd", self.daemon.tail(1000))
            await_states(self.daemon, "ready", *["idle"] * (len(self.daemon.engines()) - 1))
        self.check_nothing_was_lost(clients)

    def test_a_session_that_has_used_nothing_outlives_tandemd(self):
        await_states(self.daemon, *["idle"] * len(self.daemon.engines()))
        client = self.daemon.client("early")
        client.connect()
        wait_until(lambda: "ready" in states(self.daemon), 60, "no engine keeps what outlives tandemd")
        sessions = self.sessions()
        self.restart()
        self.assertEqual(self.sessions(), sessions)
        self.join([client])
        self.all_reduce_plan([client])
        self.check_all_reduce([client])


if __name__ == "__main__":
    unittest.main()
