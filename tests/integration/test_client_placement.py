"""Plans that are placed in the client: launches run on the ranks' own streams, with no engine on the path. A rank, an engine
or tandemd that dies or stands still ends nothing that it should not, and survivors end at once with the name."""

import os
import signal
import time
import unittest

from harness import TandemTest, everybody, needs_gpus, wait_until

MOST_RANKS = 4

AR = [["ar.in", 0], ["ar.out", 0]]
# A survivor's launch ends so long after the kill. The library needs some milliseconds; the rest is the machine's. By its
# deadline it would end much later.
AT_ONCE = 5


class InClient(TandemTest):
    gpus = 4
    world = 2

    def prepared(self, world=None, **arguments):
        clients = self.group(world or self.world, options={"placement": "client"}, **arguments)
        for reply in self.all_reduce_plan(clients):
            self.assertIn("client: asked for; all ranks must launch in one order", reply["plan"]["placement"])
        return clients

    def launch(self, clients, **arguments):
        return everybody(clients, "launch", plan="ar", bindings=AR, **arguments)

    def check_ended(self, client, code, reason, ranks):
        """The plan's failure, once its launch has ended."""
        failure = self.assertFails(code, client.call, "wait", plan="ar", deadline_ms=50000)
        self.assertEqual(failure.detail.get("reason"), reason, failure.message)
        self.assertEqual(failure.detail.get("ranks"), ranks, failure.message)
        return failure

    def check_no_more(self, client, code):
        """Later launches return the group's end, and enqueue nothing."""
        self.assertFails(code, client.call, "launch", plan="ar", bindings=AR)
        client.call("sync", deadline_ms=50000)

    def launch_unlike(self, clients):
        """Two ranks launch two plans under one number. The failure of the last one."""
        self.all_reduce_plan(clients, key="other")
        clients[0].call("launch", plan="ar", bindings=AR)
        clients[1].call("launch", plan="other", bindings=[["other.in", 0], ["other.out", 0]])
        everybody(clients, "sync", deadline_ms=50000)
        for client, plan in zip(clients, ("ar", "other")):
            failure = self.assertFails("INVALID_ARGUMENT", client.call, "wait", plan=plan)
            self.assertEqual(failure.detail["reason"], "LAUNCH_MISMATCH")
        return failure

    def launch_refused(self, clients):
        """Two ranks launch, one of them out of bounds, and hear why it is refused."""
        clients[0].call("launch", plan="ar", bindings=AR)
        self.assertFails("OUT_OF_RANGE", clients[1].call, "launch", plan="ar", bindings=[["ar.in", 16], ["ar.out", 0]])
        clients[0].call("sync", deadline_ms=50000)
        self.check_ended(clients[0], "FAILED_PRECONDITION", "LAUNCH_REFUSED", [1])

    def kill_in(self, clients, victim, act):
        """Survivors wait in a launch; `act` ends somebody. The seconds until their streams are free."""
        survivors = [client for client in clients if client is not victim]
        calls = [client.send("sync", deadline_ms=50000) for client in survivors]
        begin = time.monotonic()
        act()
        for client, call in zip(survivors, calls):
            client.reply(call)
        return time.monotonic() - begin


class Launches(InClient):
    @needs_gpus(4)
    def test_operations_give_right_data_while_all_engines_stand_still(self):
        clients = self.prepared(world=4)
        engines = self.daemon.engine_pids()
        try:
            for pid in engines:
                os.kill(pid, signal.SIGSTOP)
            for _ in range(3):
                self.check_all_reduce(clients)
        finally:
            for pid in engines:
                os.kill(pid, signal.SIGCONT)

    def test_graphs_and_calls_on_three_streams(self):
        clients = self.prepared()
        for name in "gh":
            everybody(clients, "capture", graph=name, launches=[{"plan": "ar", "bindings": AR}] * 3)
        for index in range(60):
            stream = f"s{index % 3}"
            everybody(clients, "replay", graph="gh"[index % 2], stream=stream, times=2)
            self.launch(clients, stream=f"s{(index + 1) % 3}", times=3)
        for stream in ("s0", "s1", "s2"):
            everybody(clients, "sync", stream=stream)
        everybody(clients, "wait", plan="ar")
        self.check_all_reduce(clients)

    def test_one_rank_may_replay_what_another_launches(self):
        clients = self.prepared()
        clients[0].call("capture", graph="g", launches=[{"plan": "ar", "bindings": AR}] * 4)
        for _ in range(10):
            clients[0].call("replay", graph="g")
            clients[1].call("launch", plan="ar", bindings=AR, times=4)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        self.check_all_reduce(clients)

    def test_a_barrier_is_a_kernel_and_other_meetings_are_refused(self):
        clients = self.prepared()
        everybody(clients, "prepare", key="b", plan="b", request={"op": "barrier", "operands": []})
        everybody(clients, "launch", plan="b", bindings=[], times=50)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="b")
        for reply in self.prepare_all_reduce(clients, key="ce", check=False, algorithm="nccl"):
            self.assertEqual(reply["code"], "FAILED_PRECONDITION", reply)
            self.assertEqual(reply["detail"]["reason"], "NOT_ONE_KERNEL", reply)
            self.assertEqual(reply["detail"]["field"], "placement", reply)

    def test_launches_without_a_stream_are_refused(self):
        clients = self.prepared()
        failure = self.assertFails(
            "FAILED_PRECONDITION", clients[0].call, "launch_without_stream", plan="ar", bindings=AR
        )
        self.assertEqual(failure.detail["reason"], "CLIENT_PLACED")
        self.check_all_reduce(clients)

    def test_ranks_must_agree_on_the_placement(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        replies = everybody(
            clients,
            "join",
            check=False,
            each=lambda rank: {
                "rank": rank,
                "world": 2,
                "name": "tp",
                "job_key": self.job_key,
                "options": {"placement": ("client", "engine")[rank]},
            },
        )
        for reply in replies:
            self.assertEqual(reply["code"], "INVALID_ARGUMENT", reply)

    def test_launches_are_counted_for_operators(self):
        clients = self.prepared()
        for _ in range(5):
            self.check_all_reduce(clients)

        def counted():
            return [int(group["client_launches"]) for group in self.daemon.ctl_json("groups")["groups"]]

        wait_until(lambda: counted() == [5], 60, "launches are not counted")
        everybody(clients, "leave", group="tp")
        wait_until(lambda: counted() == [], 60, "the group stays")

    def test_listings_name_the_rank_that_others_wait_for(self):
        clients = self.prepared()
        self.check_all_reduce(clients)
        clients[0].call("launch", plan="ar", bindings=AR)
        wait_until(lambda: "rank 1 has none under way" in self.daemon.ctl("groups").stdout, 60, "nobody is named")
        clients[1].call("launch", plan="ar", bindings=AR)
        everybody(clients, "sync")
        wait_until(lambda: "under way" not in self.daemon.ctl("groups").stdout, 60, "the wait stays")

    def test_a_request_has_its_own_placement(self):
        clients = self.group(2)
        self.all_reduce_plan(clients, key="engine", placement="engine")
        for reply in self.all_reduce_plan(clients, key="client", placement="client"):
            self.assertIn("client: asked for", reply["plan"]["placement"])
        engines = self.daemon.engine_pids()
        try:
            for pid in engines:
                os.kill(pid, signal.SIGSTOP)
            self.check_all_reduce(clients, key="client")
        finally:
            for pid in engines:
                os.kill(pid, signal.SIGCONT)
        self.check_all_reduce(clients, key="engine")

    def test_rounds_leave_nothing_behind(self):
        counts = []
        for _ in range(12):
            clients = self.prepared()
            self.check_all_reduce(clients)
            everybody(clients, "leave")
            self.daemon.close_clients()
            wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60)
            counts.append(self.daemon.descriptors())
        # gRPC closes idle connections meanwhile, so there may be fewer.
        baseline = max(counts[:3])
        wait_until(lambda: self.daemon.descriptors() <= baseline, 60, f"descriptors stay: {counts}")


@needs_gpus(3)
class Deaths(InClient):
    world = 3

    def test_a_rank_killed_in_a_launch(self):
        clients = self.prepared()
        self.check_all_reduce(clients)
        self.launch(clients[:2])  # rank 2 is awaited by both
        seconds = self.kill_in(clients[:2], clients[1], clients[1].kill)
        self.assertLess(seconds, AT_ONCE)
        failure = self.check_ended(clients[0], "UNAVAILABLE", "RANK_LOST", [1])
        self.assertIn(f"rank 1 (pid {clients[1].pid})", failure.message)
        self.check_no_more(clients[0], "UNAVAILABLE")
        self.check_no_more(clients[2], "UNAVAILABLE")

    def test_a_rank_killed_before_its_launch(self):
        clients = self.prepared()
        self.launch(clients[:2])
        seconds = self.kill_in(clients[:2], clients[2], clients[2].kill)
        self.assertLess(seconds, AT_ONCE)
        for client in clients[:2]:
            self.check_ended(client, "UNAVAILABLE", "RANK_LOST", [2])

    def test_a_rank_killed_behind_its_launches(self):
        clients = self.prepared()
        self.check_all_reduce(clients)
        clients[2].kill()
        wait_until(lambda: any(event["kind"] == "group_broken" for event in clients[0].call("events")["events"]), 60)
        for client in clients[:2]:
            self.assertEqual(client.call("wait", plan="ar")["ok"], True)  # all that was launched is right
            self.check_no_more(client, "UNAVAILABLE")

    def test_a_rank_killed_in_a_replay(self):
        clients = self.prepared()
        everybody(clients, "capture", graph="g", launches=[{"plan": "ar", "bindings": AR}] * 2)
        everybody(clients, "replay", graph="g")
        everybody(clients, "sync")
        everybody(clients[:2], "replay", graph="g")
        seconds = self.kill_in(clients[:2], clients[2], clients[2].kill)
        self.assertLess(seconds, AT_ONCE)
        for client in clients[:2]:
            self.check_ended(client, "UNAVAILABLE", "RANK_LOST", [2])
            # Old graphs end by the old verdict.
            client.call("replay", graph="g")
            client.call("sync", deadline_ms=50000)

    def test_a_rank_killed_while_it_leaves(self):
        clients = self.prepared()
        self.launch(clients[:2])
        clients[1].send("leave", deadline_ms=30000)  # waits for its own launch
        seconds = self.kill_in(clients[:2], clients[1], clients[1].kill)
        self.assertLess(seconds, AT_ONCE)
        self.check_ended(clients[0], "UNAVAILABLE", "RANK_LOST", [1])

    def test_a_clean_leave_ends_later_launches_only(self):
        clients = self.prepared()
        self.check_all_reduce(clients)
        self.launch(clients[:1])  # waits for ranks that have not come
        clients[2].call("leave")
        clients[0].call("sync", deadline_ms=50000)
        self.check_ended(clients[0], "UNAVAILABLE", "RANK_LEFT", [2])
        self.assertTrue(clients[1].call("wait", plan="ar")["ok"])
        failure = self.assertFails("UNAVAILABLE", clients[1].call, "launch", plan="ar", bindings=AR)
        self.assertEqual(failure.detail["reason"], "RANK_LEFT")

    def test_an_engine_killed_changes_nothing(self):
        clients = self.prepared()
        self.daemon.kill_engine(0)  # before a launch
        self.check_all_reduce(clients)
        self.launch(clients[:2])
        self.daemon.kill_engine(1)  # in a launch
        self.launch(clients[2:])
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        self.daemon.wait_engines()
        self.check_all_reduce(clients)
        for reply in self.prepare_all_reduce(clients, key="later", count=1 << 16):
            self.assertTrue(reply["ok"])

    def test_tandemd_killed_in_a_launch(self):
        clients = self.prepared()
        self.launch(clients[:2])
        seconds = self.kill_in(clients[:2], None, self.daemon.process.kill)
        self.assertLess(seconds, AT_ONCE)
        for client in clients[:2]:
            failure = self.assertFails("UNAVAILABLE", client.call, "launch", plan="ar", bindings=AR)
            self.assertEqual(failure.detail["reason"], "DAEMON_LOST")

    def test_tandemd_killed_before_and_behind_a_launch(self):
        clients = self.prepared()
        self.check_all_reduce(clients)
        self.daemon.process.kill()
        self.daemon.process.wait()
        wait_until(lambda: any(e["kind"] == "daemon_lost" for e in clients[0].call("events")["events"]), 60)
        failure = self.assertFails("UNAVAILABLE", clients[0].call, "launch", plan="ar", bindings=AR)
        self.assertEqual(failure.detail["reason"], "DAEMON_LOST")

    def test_the_next_incarnation_is_right(self):
        clients = self.prepared()
        self.launch(clients[:2])
        clients[2].kill()
        everybody(clients[:2], "sync", deadline_ms=50000)
        everybody(clients[:2], "leave", check=False)
        clients[2] = self.daemon.client("rank2b")
        clients[2].connect()
        everybody(clients[:2], "drop", plan="ar", memory="ar.in", group="tp")
        everybody(clients[:2], "drop", memory="ar.out")
        self.join(clients, options={"placement": "client"})
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)


@needs_gpus(3)
class LateRanks(InClient):
    world = 3

    def test_a_stopped_rank_ends_the_group_by_the_deadline(self):
        clients = self.prepared(launch_deadline_ms=4000)
        self.check_all_reduce(clients)
        clients[1].kill(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            for client in (clients[0], clients[2]):
                client.call("launch", plan="ar", bindings=AR)
            for client in (clients[0], clients[2]):
                client.call("sync", deadline_ms=50000)
                self.check_ended(client, "DEADLINE_EXCEEDED", "RANK_LATE", [1])
            self.assertGreater(time.monotonic() - begin, 3.9)
            self.assertLess(time.monotonic() - begin, 25)
            self.check_no_more(clients[0], "DEADLINE_EXCEEDED")
        finally:
            clients[1].kill(signal.SIGCONT)

    @needs_gpus(4)
    def test_the_rank_that_waits_for_nobody_is_named(self):
        clients = self.prepared(world=4, launch_deadline_ms=4000)
        self.launch(clients[:3])
        for client in clients[:3]:
            client.call("sync", deadline_ms=50000)
            self.check_ended(client, "DEADLINE_EXCEEDED", "RANK_LATE", [3])

    def test_another_order_names_both_plans(self):
        # tandemd's verdict names them. A rank waits half a second for it, so a busy machine has three tries.
        for name in ("first", "second", "third"):
            failure = self.launch_unlike(self.prepared(world=2, name=name, group="tp"))
            if "plan 'other'" in failure.message:
                break
        self.assertIn("plan 'other'", failure.message)

    def test_a_launch_that_is_refused_ends_the_group_with_the_reason(self):
        self.launch_refused(self.prepared(world=2))


class Configured(InClient):
    extra = ("--placement", "client")

    def test_the_configuration_places_plans_in_clients(self):
        clients = self.group(2)
        for reply in self.all_reduce_plan(clients):
            self.assertIn("client: asked for", reply["plan"]["placement"])
        self.check_all_reduce(clients)


if __name__ == "__main__":
    unittest.main()
