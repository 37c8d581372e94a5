"""Captured launches: graphs replay them with the data of the day, and a replay never hangs, whatever has died."""

import itertools
import os
import signal
import unittest

from harness import Daemon, TandemTest, everybody, wait_until


class Captured(TandemTest):
    shares = True
    gpus = 2

    def captured(self, world=2, **arguments):
        clients = self.group(world, **arguments)
        self.all_reduce_plan(clients)
        self.capture(clients)
        return clients

    def capture(self, clients):
        everybody(clients, "capture", graph="g", launches=[{"plan": "ar", "bindings": [["ar.in", 0], ["ar.out", 0]]}])

    def check_after_restart(self, clients):
        """The old graph's replays end, and captured anew it works again."""
        self.daemon.wait_engines()
        for client in clients:
            self.failing_replay(client, ("ABORTED",))
        everybody(clients, "drop", graph="g")
        self.check_all_reduce(clients)
        self.capture(clients)

    def replay(self, clients, base=1):
        for rank, client in enumerate(clients):
            client.call("fill", memory="ar.in", base=base + rank)
        everybody(clients, "replay", graph="g")
        everybody(clients, "sync", deadline_ms=50000)
        everybody(clients, "wait", plan="ar")
        for client in clients:
            self.assertEqual(
                client.call("read", memory="ar.out", count=2)["values"],
                [sum(base + rank for rank in range(len(clients)))] * 2,
            )

    def failing_replay(self, client, codes, times=3):
        """Replays that must end, each with a failing status."""
        for _ in range(times):
            client.call("replay", graph="g")
            client.call("sync", deadline_ms=50000)
            reply = client.call("wait", plan="ar", check=False)
            self.assertIn(reply.get("code"), codes, reply)

    def test_a_hundred_replays_with_changing_inputs(self):
        clients = self.captured()
        for index in range(100):
            self.replay(clients, base=index)
        # Several in a row on one stream, and ordinary launches between replays.
        everybody(clients, "replay", graph="g", times=20)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        self.check_all_reduce(clients)
        self.replay(clients, base=7)

    def test_two_launches_in_one_graph(self):
        clients = self.group(2)
        for key in ("x", "y"):
            self.all_reduce_plan(clients, key=key)
        everybody(
            clients,
            "capture",
            graph="g",
            launches=[
                {"plan": "x", "bindings": [["x.in", 0], ["x.out", 0]]},
                {"plan": "y", "bindings": [["x.out", 0], ["y.out", 0]]},
            ],
        )
        everybody(clients, "fill", memory="x.in", base=3)
        for _ in range(10):
            everybody(clients, "replay", graph="g")
        everybody(clients, "sync")
        for key in ("x", "y"):
            everybody(clients, "wait", plan=key)
        for client in clients:
            self.assertEqual(client.call("read", memory="y.out", count=1)["values"], [12.0])

    def test_replay_after_an_engine_has_restarted(self):
        clients = self.captured()
        self.replay(clients)
        self.daemon.kill_engine(0)
        self.check_after_restart(clients)
        for index in range(5):
            self.replay(clients, base=index)

    def test_replay_while_the_engine_dies(self):
        clients = self.captured()
        self.replay(clients)
        engine = self.daemon.engine_pids()[1]  # asked before: on a GPU the replays take some tens of milliseconds
        calls = [client.send("replay", graph="g", times=3000) for client in clients]
        os.kill(engine, signal.SIGKILL)
        for client, call in zip(clients, calls):
            client.reply(call)
            client.call("sync", deadline_ms=30000)
        for client in clients:
            self.assertEqual(client.call("wait", plan="ar", check=False).get("code"), "ABORTED")
        for client in clients:
            self.failing_replay(client, ("ABORTED",))

    def ahead(self):
        return [engine.get("speculated", 0) for engine in self.daemon.engines()[:2]]

    def replay_until_ahead(self, clients):
        before = self.ahead()
        for index in range(200):
            # A burst beside the single one: what has waited on a lane for 50 ms is cancelled, and a busy machine takes longer than
            # that from one command to the next.
            everybody(clients, "replay", graph="g", times=8)
            self.replay(clients, base=index)
            if all(now > then for now, then in zip(self.ahead(), before)):
                return
        self.fail("no launch has found its first kernel on the lane")

    def test_replays_find_their_first_kernel_on_the_lane(self):
        clients = self.captured()
        self.replay_until_ahead(clients)
        # It is cancelled for what comes instead, which is right, and so is what was expected.
        for index in range(10):
            self.check_all_reduce(clients)
            self.replay(clients, base=index)

    def test_an_engine_dies_with_a_kernel_on_the_lane(self):
        clients = self.captured()
        for gpu in (0, 1):
            self.replay_until_ahead(clients)
            everybody(clients, "replay", graph="g", times=4)  # not all of them are launches that are timed
            everybody(clients, "sync")
            self.daemon.kill_engine(gpu)
            self.check_after_restart(clients)

    def test_a_rank_dies_with_a_kernel_on_the_lane(self):
        clients = self.captured()
        self.replay_until_ahead(clients)
        everybody(clients, "replay", graph="g", times=4)
        everybody(clients, "sync")
        clients[1].kill()
        wait_until(
            lambda: any(e["kind"] in ("rank_lost", "group_broken") for e in clients[0].call("events")["events"]), 60
        )
        clients[0].call("replay", graph="g")
        clients[0].call("sync", deadline_ms=50000)
        self.assertEqual(clients[0].call("wait", plan="ar", check=False).get("code"), "UNAVAILABLE")

    def test_replay_after_a_rank_has_died(self):
        clients = self.captured()
        self.replay(clients)
        clients[1].kill()
        wait_until(
            lambda: any(e["kind"] in ("rank_lost", "group_broken") for e in clients[0].call("events")["events"]), 60
        )
        for _ in range(3):
            clients[0].call("replay", graph="g")
            clients[0].call("sync", deadline_ms=50000)
            reply = clients[0].call("wait", plan="ar", check=False)
            self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
            self.assertIn("rank 1", reply["message"])

    def test_replay_while_a_rank_dies(self):
        clients = self.captured()
        self.replay(clients)
        call = clients[0].send("replay", graph="g", times=50)
        clients[1].kill()
        clients[0].reply(call)
        clients[0].call("sync", deadline_ms=50000)
        reply = clients[0].call("wait", plan="ar", check=False)
        self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
        self.assertIn("rank 1", reply["message"])

    def test_a_rank_that_never_replays(self):
        clients = self.captured(launch_deadline_ms=4000)
        clients[0].call("replay", graph="g")
        clients[0].call("sync", deadline_ms=50000)
        reply = clients[0].call("wait", plan="ar", check=False)
        self.assertEqual(reply.get("code"), "DEADLINE_EXCEEDED", reply)
        self.assertIn("rank 1", reply["message"])

    def test_a_failed_replay_is_told_once_and_not_lost_behind_a_good_one(self):
        clients = self.captured(launch_deadline_ms=4000)
        for client in clients:  # the other's first replay meets one that its deadline has ended
            client.call("replay", graph="g")
            client.call("sync", deadline_ms=50000)
        everybody(clients, "replay", graph="g")
        everybody(clients, "sync", deadline_ms=50000)
        for client in clients:
            self.assertFails("DEADLINE_EXCEEDED", client.call, "wait", plan="ar")
            client.call("wait", plan="ar")
        self.daemon.kill_engine(0)
        self.daemon.wait_engines()
        wait_until(lambda: any(e["kind"] == "engine_restarted" for e in clients[0].call("events")["events"]), 60)
        self.hear_restart(clients[0], earlier=[clients[0].call("wait", plan="ar", check=False) for _ in range(5)])
        self.hear_restart(clients[1])
        self.check_all_reduce(clients)

    def test_a_graph_keeps_its_plan_and_group(self):
        self.check_that_a_graph_keeps_its_plan_and_group("engine")

    def test_a_graph_keeps_its_plan_and_group_on_the_callers_stream(self):
        self.check_that_a_graph_keeps_its_plan_and_group("client")

    def check_that_a_graph_keeps_its_plan_and_group(self, placement):
        clients = self.captured(options={"placement": placement})
        everybody(clients, "drop", plan="ar", group="tp")
        for base in (1, 10):
            for rank, client in enumerate(clients):
                client.call("fill", memory="ar.in", base=base + rank)
            everybody(clients, "replay", graph="g")
            everybody(clients, "sync", deadline_ms=50000)
            for client in clients:
                self.assertEqual(client.call("read", memory="ar.out", count=1)["values"], [2 * base + 1])
        self.assertEqual(len(self.daemon.ctl_json("plans")["plans"]), 1)
        everybody(clients, "drop", graph="g")
        wait_until(lambda: self.daemon.ctl_json("stats")["groups"] == 0, 60, "the group stays")


class WithoutDaemon(unittest.TestCase):
    def test_replay_after_the_daemon_has_died(self):
        daemon = Daemon(1)
        self.addCleanup(daemon.stop)
        client = daemon.client()
        client.connect()
        client.call("join", rank=0, world=1, name="tp")
        operand = {"dtype": "f32", "shape": [64]}
        for memory in ("in", "out"):
            client.call("register", memory=memory, bytes=256)
        client.call(
            "prepare",
            key="ar",
            plan="ar",
            request={"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]},
        )
        client.call("capture", graph="g", launches=[{"plan": "ar", "bindings": [["in", 0], ["out", 0]]}])
        client.call("replay", graph="g", times=10)
        client.call("sync")
        client.call("wait", plan="ar")
        daemon.process.kill()
        daemon.process.wait()

        def replay(value):
            client.call("fill", memory="in", base=value)
            client.call("replay", graph="g")
            client.call("sync", deadline_ms=50000)
            code = client.call("wait", plan="ar", check=False).get("code")
            if code is None:  # the engine may serve on until it notices; then the result is right
                self.assertEqual(client.call("read", memory="out", count=2)["values"], [value] * 2)
            return code

        values = itertools.count(100)
        wait_until(lambda: replay(next(values)) == "UNAVAILABLE", 60)
        for _ in range(3):
            self.assertEqual(replay(next(values)), "UNAVAILABLE")


if __name__ == "__main__":
    unittest.main()
