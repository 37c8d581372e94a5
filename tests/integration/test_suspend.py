"""Groups that sleep: without memory in the ranks and on the engines, and awake again with the same addresses, plans and graphs. A
rank that does not come is named, and one that dies at any step ends the group with its name."""

import os
import time
import unittest
from typing import NamedTuple

from harness import everybody, host_only, needs_gpus, wait_until
from test_client_placement import AR, AT_ONCE, InClient
from test_restart import RestartTest

MOST_RANKS = 3
COUNT = 1024
CYCLES = int(os.environ.get("TANDEM_TEST_CYCLES", "60"))
WARM_UP = 20
# Allocators and logs grow by so many KiB in a process's life, and not with each cycle.
SLACK_KIB = 1024


def pool_mappings(pid):
    """The places of a process's mappings that are memory of a GPU's pool."""
    with open(f"/proc/{pid}/maps") as maps:
        return [line.split()[0] for line in maps if "memfd:tandem-gpu" in line]


class Held(NamedTuple):
    """What a process holds."""

    descriptors: int
    mappings: int
    resident_kib: int

    @classmethod
    def of(cls, pid):
        with open(f"/proc/{pid}/maps") as maps:
            mappings = sum(1 for _ in maps)
        with open(f"/proc/{pid}/status") as status:
            (resident,) = [int(line.split()[1]) for line in status if line.startswith("VmRSS:")]
        return cls(len(os.listdir(f"/proc/{pid}/fd")), mappings, resident)

    def exceeds(self, most):
        return (
            self.descriptors > most.descriptors
            or self.mappings > most.mappings + 8
            or self.resident_kib > most.resident_kib + SLACK_KIB
        )


class SuspendTest(InClient):
    world = 2

    def sleeper(self, world=None, **arguments):
        """A group with plans of both placements, a graph, and a symmetric tensor t."""
        clients = self.prepared(world, **arguments)
        self.all_reduce_plan(clients, key="engine", placement="engine")
        everybody(clients, "capture", graph="g", launches=[{"plan": "ar", "bindings": AR}] * 3)
        everybody(clients, "allocate", memory="t", shape=[COUNT])
        self.check_all(clients)
        return clients

    def check_all(self, clients):
        for key in ("ar", "engine"):
            self.check_all_reduce(clients, key=key)
        everybody(clients, "replay", graph="g", times=5)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        everybody(clients, "signal", memory="t", what="barrier")

    def suspend(self, clients, **arguments):
        everybody(clients, "suspend_group", **arguments)

    def resume(self, clients, **arguments):
        everybody(clients, "resume_group", **arguments)

    def shown(self):
        (group,) = self.daemon.ctl_json("groups")["groups"]
        return group["state"], group.get("state_reason", "")

    def segment_bytes(self):
        return int(self.daemon.ctl_json("stats")["segment_bytes"])


class Suspend(SuspendTest):
    @host_only("looks at memfds")
    def test_asleep_nobody_holds_memory(self):
        clients = self.sleeper()
        processes = [client.pid for client in clients] + self.daemon.engine_pids()
        before = [pool_mappings(pid) for pid in processes]
        self.assertTrue(all(before[: len(clients)]) and any(before[len(clients) :]), before)
        descriptors = self.daemon.descriptors()
        self.suspend(clients)
        self.assertEqual([pool_mappings(pid) for pid in processes], [[] for _ in processes])
        self.assertEqual(self.segment_bytes(), 0)
        self.assertLess(self.daemon.descriptors(), descriptors)
        self.resume(clients)
        self.assertEqual([pool_mappings(client.pid) for client in clients], before[: len(clients)])
        self.check_all(clients)

    def test_plans_graphs_and_tensors_go_on(self):
        clients = self.sleeper()
        for _ in range(3):
            self.suspend(clients)
            self.assertEqual(self.shown(), ("asleep", "its ranks have suspended it"))
            for client in clients:
                for key in ("ar", "engine"):
                    bindings = [[f"{key}.in", 0], [f"{key}.out", 0]]
                    failure = self.assertFails(
                        "FAILED_PRECONDITION", client.call, "launch", plan=key, bindings=bindings
                    )
                    self.assertEqual(failure.detail["reason"], "SUSPENDED")
                failure = self.assertFails("FAILED_PRECONDITION", client.call, "renew")
                self.assertEqual(failure.detail["reason"], "SUSPENDED")
            self.resume(clients)
            self.assertEqual(self.shown(), ("ready", ""))
            self.check_all(clients)

    def test_contents_are_kept_where_asked(self):
        clients = self.sleeper()
        for keep in (True, False):
            for rank, client in enumerate(clients):
                client.call("fill", memory="t", base=rank + 1, step=1)
            written = [client.call("read", memory="t", count=COUNT)["values"] for client in clients]
            self.assertTrue(all(any(values) for values in written))
            self.suspend(clients, keep=keep)
            self.resume(clients)
            for client, values in zip(clients, written):
                expected = values if keep else [0] * COUNT
                self.assertEqual(client.call("read", memory="t", count=COUNT)["values"], expected)

    def test_calls_may_be_repeated(self):
        clients = self.sleeper()
        self.resume(clients)  # nothing
        self.suspend(clients)
        clients[0].call("suspend_group")
        self.resume(clients)
        clients[1].call("resume_group")
        self.check_all(clients)

    def test_plans_may_be_released_asleep(self):
        clients = self.sleeper()
        self.suspend(clients)
        everybody(clients, "release", plan="engine")
        everybody(clients, "drop", memory="t")
        self.resume(clients)
        self.check_all_reduce(clients)
        self.all_reduce_plan(clients, key="later")
        self.check_all_reduce(clients, key="later")

    def test_a_rank_that_does_not_come_is_named(self):
        clients = self.sleeper()
        failure = self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "suspend_group", deadline_ms=500)
        self.assertEqual(failure.detail["ranks"], [1])
        self.assertEqual(self.shown(), ("ready", ""))
        self.check_all(clients)
        self.suspend(clients)
        failure = self.assertFails("DEADLINE_EXCEEDED", clients[1].call, "resume_group", deadline_ms=500)
        self.assertEqual(failure.detail["ranks"], [0])
        self.assertEqual(self.shown()[0], "asleep")
        self.resume(clients)
        self.check_all(clients)

    def test_a_launch_under_way_is_awaited(self):
        clients = self.sleeper()
        clients[0].call("launch", plan="ar", bindings=AR)
        failure = self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "suspend_group", deadline_ms=500)
        self.assertEqual(failure.detail["reason"], "NOT_ENDED")
        clients[1].call("launch", plan="ar", bindings=AR)
        self.suspend(clients)
        self.resume(clients)
        self.check_all(clients)

    def test_an_engine_that_ends_asleep_is_replaced(self):
        clients = self.sleeper()
        self.suspend(clients)
        self.daemon.kill_engine(0)
        self.daemon.wait_engines()
        self.resume(clients)
        self.check_all(clients)

    def test_cycles_leave_nothing_behind(self):
        """TANDEM_TEST_CYCLES suspensions: no descriptor, mapping or memory more in any process than after the first ones."""
        clients = self.sleeper()
        processes = {
            "tandemd": self.daemon.process.pid,
            **{f"rank {rank}": one.pid for rank, one in enumerate(clients)},
        }
        processes |= {f"engine {gpu}": pid for gpu, pid in enumerate(self.daemon.engine_pids())}

        def held():
            return {name: Held.of(pid) for name, pid in processes.items()}

        first = []
        for cycle in range(CYCLES):
            self.suspend(clients, keep=cycle % 2 == 1)
            self.resume(clients)
            if cycle < WARM_UP:
                first.append(held())
        self.check_all(clients)
        most = {name: Held(*map(max, zip(*(one[name] for one in first), strict=True))) for name in processes}

        def grown():
            return {name: (most[name], now) for name, now in held().items() if now.exceeds(most[name])}

        try:  # memory that ends on threads of their own
            wait_until(lambda: not grown(), 60)
        except TimeoutError:
            self.fail(f"after {CYCLES} cycles more is held: {grown()}")


@needs_gpus(3)
class Deaths(SuspendTest):
    world = 3

    def check_lost(self, clients, reply):
        self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
        self.assertEqual(reply["detail"]["reason"], "RANK_LOST", reply)
        self.assertEqual(reply["detail"]["ranks"], [1], reply)
        for client in clients:
            self.assertFails("UNAVAILABLE", client.call, "launch", plan="ar", bindings=AR)

    def killed_in(self, clients, command):
        """The others wait in `command`, and rank 1 is killed."""
        others = [clients[0], clients[2]]
        calls = [client.send(command, deadline_ms=50000) for client in others]
        begun = time.monotonic()
        clients[1].kill()
        for client, call in zip(others, calls):
            self.check_lost([client], client.reply(call, check=False))
        self.assertLess(time.monotonic() - begun, AT_ONCE)
        everybody(others, "leave")
        wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [], 60)
        everybody(others, "drop", memory="t")
        self.assertEqual(self.segment_bytes(), 0)

    def test_a_rank_killed_while_others_suspend(self):
        self.killed_in(self.sleeper(), "suspend_group")

    def test_a_rank_killed_while_others_resume(self):
        clients = self.sleeper()
        self.suspend(clients)
        self.killed_in(clients, "resume_group")

    def test_a_rank_killed_asleep(self):
        clients = self.sleeper()
        self.suspend(clients)
        clients[1].kill()
        wait_until(lambda: self.shown()[0] == "broken", 60)
        for client in (clients[0], clients[2]):
            self.check_lost([client], client.call("resume_group", check=False))

    def test_a_rank_killed_anywhere_in_its_calls(self):
        """At no moment of a suspension or a resumption do the others hang, or go on without it."""
        for delay in (0, 1, 2, 3, 5, 8, 13, 21):
            clients = self.sleeper()
            others = [clients[0], clients[2]]
            calls = [client.send("suspend_group", deadline_ms=50000) for client in clients]
            time.sleep(delay / 1000)
            clients[1].kill()
            outcomes = [client.reply(call, check=False) for client, call in zip(others, (calls[0], calls[2]))]
            for client, outcome in zip(others, outcomes):
                if outcome["ok"]:
                    outcome = client.call("resume_group", check=False, deadline_ms=50000)
                self.check_lost([client], outcome)
            everybody(others, "leave")
            self.daemon.close_clients()
            wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [], 60)
            self.assertEqual(self.segment_bytes(), 0)


class Limited(SuspendTest):
    gpus = 2
    extra = ("--suspension-limit-ms", "1500")

    def test_a_group_that_sleeps_too_long_ends(self):
        clients = self.sleeper()
        self.suspend(clients)
        wait_until(lambda: self.shown()[0] == "broken", 60)
        self.assertIn("suspension_limit_ms", self.shown()[1])
        for client in clients:
            failure = self.assertFails("UNAVAILABLE", client.call, "resume_group")
            self.assertEqual(failure.detail["reason"], "SUSPENSION_LIMIT")
        everybody(clients, "leave")
        everybody(clients, "drop", memory="t")
        wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [], 60)
        self.assertEqual(self.segment_bytes(), 0)

    def test_awake_it_lives_on(self):
        clients = self.sleeper()
        for _ in range(3):
            self.suspend(clients)
            self.resume(clients)
        began = time.monotonic()
        while time.monotonic() - began < 2:
            self.check_all(clients)


class Restarts(RestartTest, SuspendTest):
    gpus = 2

    def test_tandemd_is_restarted_under_a_sleeping_group(self):
        clients = self.sleeper()
        self.suspend(clients, keep=True)
        self.restart()
        self.assertEqual(self.shown()[0], "asleep")
        self.assertEqual(self.segment_bytes(), 0)
        self.resume(clients)
        self.check_all(clients)
        self.suspend(clients)
        self.resume(clients)
        self.check_all(clients)

    def test_tandemd_ends_while_a_rank_waits(self):
        clients = self.sleeper()
        for command in ("suspend_group", "resume_group"):
            call = clients[0].send(command, deadline_ms=50000)
            self.restart()
            clients[1].call(command, deadline_ms=50000)
            clients[0].reply(call)
        self.check_all(clients)


if __name__ == "__main__":
    unittest.main()
