"""All groups of a client sleep and wake up by one call, whatever groups each rank has and in whatever order it has joined them. Where
one group refuses, it is named, and the others are awake; where one does not wake up, it is named, and the others are awake."""

import itertools
import os
import unittest

from harness import TandemTest, everybody, needs_gpus, wait_until
from test_client_placement import AT_ONCE
from test_restart import RestartTest
from test_suspend import COUNT, SuspendTest

MOST_RANKS = 3
RINGS = int(os.environ.get("TANDEM_TEST_RINGS", "8"))


class ClientSuspendTest(SuspendTest):
    gpus = 3
    # Each two of three ranks share a group, and all share one.
    groups = {"world": (0, 1, 2), "low": (0, 1), "high": (1, 2), "ends": (0, 2)}

    def members(self, clients, name):
        return [clients[rank] for rank in self.groups[name]]

    def several(self):
        """Clients whose groups each have a plan of the client's and a symmetric tensor of the group's name."""
        clients = [self.daemon.client(f"rank{rank}") for rank in range(3)]
        self.devices = gpus = [client.connect() for client in clients][0]["gpus"]
        for name, ranks in self.groups.items():
            members = self.members(clients, name)
            self.join(members, name, gpus=[gpus[rank] for rank in ranks], options={"placement": "client"}, group=name)
            self.all_reduce_plan(members, key=name, group=name)
            everybody(members, "allocate", memory=f"{name}.t", group=name, shape=[COUNT])
        self.check_used(clients)
        return clients

    def check_used(self, clients, names=None):
        for name in names or self.groups:
            self.check_all_reduce(self.members(clients, name), key=name)

    def states(self):
        return {group["name"]: group["state"] for group in self.daemon.ctl_json("groups")["groups"]}

    def check_states(self, **others):
        self.assertEqual(self.states(), {name: others.get(name, others.get("rest")) for name in self.groups})


@needs_gpus(3)
class AllGroups(ClientSuspendTest):
    def test_all_sleep_and_wake_up(self):
        clients = self.several()
        for keep in (False, True):
            for name in self.groups:
                for client in self.members(clients, name):
                    client.call("fill", memory=f"{name}.t", base=1, step=1)
            written = clients[0].call("read", memory="world.t", count=COUNT)["values"]
            everybody(clients, "suspend_client", keep=keep)
            self.check_states(rest="asleep")
            self.assertEqual(self.segment_bytes(), 0)
            everybody(clients, "suspend_client")  # nothing
            everybody(clients, "resume_client")
            everybody(clients, "resume_client")  # nothing
            self.check_states(rest="ready")
            for name in self.groups:
                for client in self.members(clients, name):
                    values = client.call("read", memory=f"{name}.t", count=COUNT)["values"]
                    self.assertEqual(values, written if keep else [0] * COUNT)
            self.check_used(clients)

    def test_groups_that_sleep_by_themselves_count(self):
        clients = self.several()
        everybody(self.members(clients, "low"), "suspend_group", group="low")
        everybody(clients, "suspend_client")
        self.check_states(rest="asleep")
        everybody(self.members(clients, "ends"), "resume_group", group="ends")
        everybody(clients, "resume_client")
        self.check_states(rest="ready")
        self.check_used(clients)

    def test_without_a_group_nothing_happens(self):
        client = self.daemon.client("alone")
        client.connect()
        for command in ("suspend_client", "resume_client"):
            client.call(command)


@needs_gpus(3)
class Refused(ClientSuspendTest):
    def test_a_launch_under_way_keeps_all_awake(self):
        """Of a group of all ranks: they hear that it does not sleep, and wake up the groups that they have put to sleep."""
        self.groups = {"low": (0, 1), "ends": (0, 2), "world": (0, 1, 2)}
        clients = self.several()
        clients[0].call("launch", plan="world", bindings=[["world.in", 0], ["world.out", 0]])
        replies = everybody(clients, "suspend_client", check=False, deadline_ms=4000)
        for reply in replies:
            self.assertEqual(reply.get("code"), "DEADLINE_EXCEEDED", reply)
            self.assertIn("group 'world' does not sleep", reply["message"])
        self.assertEqual([reply["detail"]["reason"] for reply in replies][0], "NOT_ENDED")
        self.assertEqual([reply["detail"].get("ranks") for reply in replies][1:], [[0], [0]])
        self.check_states(rest="ready")
        for client in clients[1:]:
            client.call("launch", plan="world", bindings=[["world.in", 0], ["world.out", 0]])
        everybody(clients, "suspend_client")
        self.check_states(rest="asleep")
        everybody(clients, "resume_client")
        self.check_used(clients)

    def test_a_group_whose_ranks_have_all_suspended_sleeps_on_and_is_named(self):
        """Rank 2 has suspended all of its groups when another group refuses: it does not come to wake them up."""
        self.groups = {"ends": (0, 2), "low": (0, 1)}
        clients = self.several()
        clients[0].call("launch", plan="low", bindings=[["low.in", 0], ["low.out", 0]])
        replies = everybody(clients, "suspend_client", check=False, deadline_ms=3000)
        for reply in replies[:2]:
            self.assertEqual(reply.get("code"), "DEADLINE_EXCEEDED", reply)
            self.assertIn("group 'low' does not sleep", reply["message"])
        self.assertIn("(asleep: 'ends')", replies[0]["message"])
        self.assertNotIn("asleep", replies[1]["message"])
        self.assertTrue(replies[2]["ok"], replies)
        self.check_states(ends="asleep", low="ready")
        everybody(clients, "resume_client")
        clients[1].call("launch", plan="low", bindings=[["low.in", 0], ["low.out", 0]])
        self.check_used(clients)

    def test_a_shared_tensor_is_named(self):
        self.groups = {"world": (0, 1, 2), "other": (0, 1, 2)}
        clients = self.several()
        everybody(clients, "empty", each=lambda rank: {"gpu": self.devices[rank]}, tensor="shared", shape=[COUNT])
        for name in self.groups:
            everybody(clients, "rendezvous", tensor="shared", group=name, memory=f"{name}.shared")
        for client, reply in zip(clients, everybody(clients, "suspend_client", check=False)):
            self.assertEqual((reply.get("code"), reply["detail"]["reason"]), ("FAILED_PRECONDITION", "TENSOR_SHARED"))
            self.assertIn("group 'world' does not sleep", reply["message"])
            client.call("drop", memory="world.shared")
        self.check_states(rest="ready")
        for client in clients:
            client.call("free", tensor="shared")
            client.call("drop", memory="other.shared")
        everybody(clients, "suspend_client")
        everybody(clients, "resume_client")
        self.check_used(clients)


@needs_gpus(3)
class Deaths(ClientSuspendTest):
    def suspended(self, clients):
        everybody(clients, "suspend_client")
        return clients

    def test_a_rank_that_ends_asleep_is_named_and_the_others_wake_up(self):
        clients = self.suspended(self.several())
        clients[1].kill()
        wait_until(lambda: self.states() == {"world": "broken", "low": "broken", "high": "broken", "ends": "asleep"})
        others = [clients[0], clients[2]]
        for reply, known in zip(everybody(others, "resume_client", check=False), ("low", "high")):
            self.assertEqual((reply.get("code"), reply["detail"]["reason"]), ("UNAVAILABLE", "RANK_LOST"), reply)
            self.assertIn("group 'world' does not wake up", reply["message"])
            self.assertIn(f"(asleep: 'world', '{known}')", reply["message"])
        self.check_used(clients, ["ends"])
        # Once the broken groups are left, nothing hinders the call.
        for client, known in zip(others, ("low", "high")):
            for name in ("world", known):
                client.call("leave", group=name)
        for command in ("suspend_client", "resume_client"):
            everybody(others, command)
        self.check_used(clients, ["ends"])

    def test_a_broken_group_does_not_sleep_and_is_named(self):
        clients = self.several()
        clients[1].kill()
        wait_until(lambda: self.states()["world"] == self.states()["low"] == self.states()["high"] == "broken")
        for reply in everybody([clients[0], clients[2]], "suspend_client", check=False):
            self.assertEqual((reply.get("code"), reply["detail"]["ranks"]), ("UNAVAILABLE", [1]), reply)
            self.assertIn("group 'world' does not sleep", reply["message"])
        self.assertEqual(self.states()["ends"], "ready")

    def test_a_rank_killed_while_the_others_wait(self):
        for command in ("suspend_client", "resume_client"):
            clients = self.several()
            if command == "resume_client":
                self.suspended(clients)
            others = [clients[0], clients[2]]
            calls = [client.send(command, deadline_ms=50000) for client in others]
            clients[1].kill()
            for client, call in zip(others, calls):
                reply = client.reply(call, timeout=AT_ONCE + 50, check=False)
                self.assertEqual((reply.get("code"), reply["detail"].get("ranks")), ("UNAVAILABLE", [1]), reply)
                self.assertIn("group 'world'", reply["message"])
            self.daemon.close_clients()
            wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [], 60)
            self.assertEqual(self.segment_bytes(), 0)


@needs_gpus(3)
class Taken(ClientSuspendTest):
    """Others take the memory meanwhile: the quota of all jobs of the user."""

    groups = {"world": (0, 1, 2), "ends": (0, 2)}
    extra = ("--quotas-segment-bytes", "512MiB")
    quota = 512 << 20

    def test_what_is_missing_is_named_and_the_group_sleeps_on(self):
        clients = self.several()
        before = self.segment_bytes()
        everybody(clients, "suspend_client", keep=True)
        other = self.daemon.client("other")
        gpus = other.connect()["gpus"]
        self.join([other], "other", gpus=[gpus[1]])
        held = 0
        for held in itertools.count():
            if not other.call("allocate", memory=f"m{held}", group="other", shape=[1 << 24], check=False)["ok"]:
                break
        self.assertGreater(held, 1)
        self.assertGreater(self.segment_bytes() + before, self.quota)
        for _ in range(2):
            for reply in everybody(clients, "resume_client", check=False):
                self.assertEqual(reply.get("code"), "RESOURCE_EXHAUSTED", reply)
                self.assertIn("group 'world' does not wake up", reply["message"])
                self.assertEqual(reply["detail"]["limit"], self.quota)
            self.assertEqual(self.states()["world"], "asleep")
        other.close()
        wait_until(lambda: self.segment_bytes() + before <= self.quota)
        everybody(clients, "resume_client")
        self.check_used(clients)


@needs_gpus(3)
class Restarts(RestartTest, ClientSuspendTest):
    def test_tandemd_is_restarted_under_each_call(self):
        clients = self.several()
        for command in ("suspend_client", "resume_client"):
            calls = [client.send(command, deadline_ms=50000) for client in clients[:2]]
            self.restart()
            clients[2].call(command, deadline_ms=50000)
            for client, call in zip(clients, calls):
                client.reply(call)
        self.check_used(clients)


@needs_gpus(3)
class Orders(TandemTest):
    gpus = 3

    def test_ranks_that_have_joined_in_opposite_orders(self):
        told = self.run_ranks("client_suspend_rank.py", 3, str(RINGS))
        self.assertEqual(told, [""] * 3)


if __name__ == "__main__":
    unittest.main()
