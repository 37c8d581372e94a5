"""Groups, tensors, plans and launches that go well."""

import unittest

from harness import GPUS, TandemTest, everybody


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

    def test_explicit_algorithms_and_their_refusal(self):
        clients = self.group(2)
        for algorithm in ("one_shot", "two_shot", "nccl"):
            self.all_reduce_plan(clients, key=algorithm, algorithm=algorithm)
            self.check_all_reduce(clients, key=algorithm)
        operand = {"dtype": "f32", "shape": [256]}
        request = {"op": "all_reduce", "algorithm": "hybrid_cube_mesh",
                   "operands": [{"role": "input", **operand}, {"role": "output", **operand}]}
        for reply in everybody(clients, "prepare", key="hcm", request=request, check=False):
            self.assertEqual(reply["code"], "FAILED_PRECONDITION")
            self.assertIn("hybrid", reply["message"])

    def test_prepare_is_idempotent(self):
        clients = self.group(2)
        first = self.all_reduce_plan(clients)
        operand = {"dtype": "f32", "shape": [256]}
        request = {"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]}
        again = clients[0].call("prepare", key="ar", request=request)
        self.assertEqual(again["plan"]["plan_id"], first[0]["plan"]["plan_id"])

    def test_launches_by_grpc(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        for rank, client in enumerate(clients):
            client.call("fill", memory="ar.in", base=rank + 1)
        everybody(clients, "launch_direct", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
        for client in clients:
            self.assertEqual(client.call("read", memory="ar.out", count=4)["values"], [3.0] * 4)

    def test_symmetric_tensors_signals_and_persistence(self):
        clients = self.group(3)
        first = everybody(clients, "allocate", memory="t", shape=[1000], persistent="weights")
        everybody(clients, "signal", memory="t", what="barrier", channel=0)
        put = [(0, 1), (1, 2), (2, 0)]
        for source, target in put:
            clients[source].call("signal", memory="t", what="put", peer=target, channel=1)
        for source, target in put:
            clients[target].call("signal", memory="t", what="wait", peer=source, channel=1)
        failure = self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "signal", memory="t", what="wait", peer=1,
                                   channel=2, deadline_ms=200)
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
        operand = {"dtype": "f32", "shape": [64]}
        request = {"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]}
        for group in "ab":
            for memory in ("in", "out"):
                everybody(clients, "register", group=group, memory=f"{group}.{memory}", bytes=256)
            everybody(clients, "prepare", group=group, key=group, plan=group, request=request)
        for _ in range(20):
            for client, order in zip(clients, ("ab", "ba")):
                for group in order:
                    client.send("launch", plan=group, stream=f"s{group}",
                                bindings=[[f"{group}.in", 0], [f"{group}.out", 0]])
        for group in "ab":
            everybody(clients, "sync", stream=f"s{group}")
            everybody(clients, "wait", plan=group)


if __name__ == "__main__":
    unittest.main()
