"""Groups, tensors, plans and launches that go well."""

import unittest

from harness import GPUS, TandemTest, everybody, offered, wait_until

MOST_RANKS = 4


class Basic(TandemTest):
    shares = True

    def test_all_reduce_on_every_world_size(self):
        for world in range(1, min(GPUS, 4) + 1):
            clients = self.group(world, name=f"w{world}")
            replies = self.all_reduce_plan(clients, group=f"w{world}")
            self.assertEqual(len({r["plan"]["algorithm"] for r in replies}), 1, "all ranks choose alike")
            for _ in range(3):
                self.check_all_reduce(clients)
            everybody(clients, "leave", group=f"w{world}")
            everybody(clients, "detach")

    def test_a_clean_detach_is_no_loss_of_the_daemon(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(8)]
        for client in clients:
            client.connect()
        everybody(clients, "detach")
        wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60, "sessions stay")
        for client in clients:
            self.assertEqual(client.call("events")["events"], [])

    def test_explicit_algorithms_and_their_refusal(self):
        clients = self.group(2)
        for algorithm in offered("one_shot", "two_shot", "nccl"):
            self.all_reduce_plan(clients, key=algorithm, algorithm=algorithm)
            self.check_all_reduce(clients, key=algorithm)
        for reply in self.prepare_all_reduce(clients, key="hcm", check=False, algorithm="hybrid_cube_mesh"):
            self.assertEqual(reply["code"], "FAILED_PRECONDITION")
            self.assertIn("hybrid", reply["message"])

    def test_prepare_is_idempotent(self):
        clients = self.group(2)
        first = self.all_reduce_plan(clients)
        again = self.prepare_all_reduce(clients[:1])[0]
        self.assertEqual(again["plan"]["plan_id"], first[0]["plan"]["plan_id"])

    def test_a_plan_on_several_streams(self):
        """Its launches follow one another, however far apart the streams are."""
        clients = self.group(3)
        self.all_reduce_plan(clients)
        for rank, client in enumerate(clients):
            client.call("fill", memory="ar.in", base=rank + 1)
        bindings = [["ar.in", 0], ["ar.out", 0]]
        calls = []
        for client in clients:  # the first waits for the others' launches, the next two for it
            for stream in ("s0", "s1", "s0", "s2"):
                calls.append((client, client.send("launch", plan="ar", stream=stream, bindings=bindings)))
        for client, call in calls:
            client.reply(call)
        for stream in ("s0", "s1", "s2"):
            everybody(clients, "sync", stream=stream)
        everybody(clients, "wait", plan="ar")
        for client in clients:
            self.assertEqual(client.call("read", memory="ar.out", count=4)["values"], [6.0] * 4)

    def test_launches_by_grpc(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        for rank, client in enumerate(clients):
            client.call("fill", memory="ar.in", base=rank + 1)
        everybody(clients, "launch_without_stream", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
        for client in clients:
            self.assertEqual(client.call("read", memory="ar.out", count=4)["values"], [3.0] * 4)
        failure = self.assertFails(
            "DEADLINE_EXCEEDED",
            clients[0].call,
            "launch_without_stream",
            plan="ar",
            launch_deadline_ms=300,
            bindings=[["ar.in", 0], ["ar.out", 0]],
        )
        self.assertIn("rank 1", failure.message)
        clients[0].call("wait", plan="ar")  # reported once

    def test_symmetric_tensors_signals_and_persistence(self):
        clients = self.group(3)
        first = everybody(clients, "allocate", memory="t", shape=[1000], persistent="weights")
        everybody(clients, "signal", memory="t", what="barrier", channel=0)
        put = [(0, 1), (1, 2), (2, 0)]
        for source, target in put:
            clients[source].call("signal", memory="t", what="put", peer=target, channel=1)
        for source, target in put:
            clients[target].call("signal", memory="t", what="wait", peer=source, channel=1)
        failure = self.assertFails(
            "DEADLINE_EXCEEDED", clients[0].call, "signal", memory="t", what="wait", peer=1, channel=2, deadline_ms=200
        )
        self.assertIn("1", failure.message)
        self.assertFails("OUT_OF_RANGE", clients[0].call, "signal", memory="t", what="put", peer=3)
        everybody(clients, "fill", memory="t", base=7)
        again = everybody(clients, "allocate", memory="t2", shape=[1000], persistent="weights")
        self.assertEqual([r["bytes"] for r in first], [r["bytes"] for r in again])
        for client in clients:
            self.assertEqual(client.call("read", memory="t2", count=2)["values"], [7.0, 7.0])

    def test_plans_share_workspace(self):
        clients = self.group(2)
        for index in range(5):
            replies = self.all_reduce_plan(clients, count=4096 * (index + 1), key=f"k{index}", algorithm="two_shot")
        plan = replies[0]["plan"]
        self.assertLess(plan["group_workspace_bytes"], plan["unshared_workspace_bytes"])
        for index in range(5):
            self.check_all_reduce(clients, count=4096 * (index + 1), key=f"k{index}")

    def test_two_groups_over_the_same_gpus_in_opposite_orders(self):
        clients = self.group(2, name="a")
        self.join(clients, name="b")
        for group in "ab":
            self.all_reduce_plan(clients, count=64, key=group, group=group)
        self.launch_in_opposite_orders(clients, 20)


if __name__ == "__main__":
    unittest.main()
