"""The fused algorithm from a client's side: on offer where every engine has its kernels, planned when it is asked for,
right, and gone with its ranks. Emulated GPUs claim the kernels and run their programs step by step; on GPUs (Hopper) the
kernels run."""

import os
import signal
import time
import unittest

from harness import CUDA, GPUS, TandemTest, everybody, host_only, own_gpus_only, wait_until
from operation_cases import OperationsTest, Slot, add, matmul, ramp

MOST_RANKS = 3
OPS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
# Survivors end so long after a kill. Emulated kernels run on the CPU, so a busy machine adds seconds.
AT_ONCE = 1.0 if CUDA else 10.0
EMULATED = () if CUDA else ("--testing-emulated-fused",)


def fused_offers(reply):
    return {offer["op"]: offer for offer in reply["offers"] if offer["algorithm"] == "fused"}


def gather_request(m, n, k, world, algorithm="fused", dtype="bf16"):
    return {
        "op": "all_gather_matmul",
        "algorithm": algorithm,
        "operands": [
            {"role": "a", "dtype": dtype, "shape": [m, k]},
            {"role": "b", "dtype": dtype, "shape": [k, n]},
            {"role": "c", "dtype": dtype, "shape": [m * world, n]},
        ],
    }


class FusedTest(OperationsTest):
    """Rules for launches by engines and on the ranks' own streams."""

    extra = EMULATED + ("--testing-verify-plans", "--fused-kernels", "explicit")
    placement = "engine"

    def fused_group(self, world, **arguments):
        return self.group(world, options={"placement": self.placement}, **arguments)

    def check_sums(self, world):
        m, n, k = 5, 16, 8
        clients = self.fused_group(world, name=f"w{world}")
        a = [ramp(rank + 1, 0, m * k) for rank in range(world)]
        whole = [ramp(rank + 1, 0, m * k * world) for rank in range(world)]
        b = ramp(1, 0, k * n)
        ones = lambda rank: (1, 0)
        value = lambda rank: (rank + 1, 0)
        gathered = sum(a, [])
        self.run_op(
            clients,
            "all_gather_matmul",
            [
                Slot("a", (m, k), value, dtype="bf16"),
                Slot("b", (k, n), ones, dtype="bf16"),
                Slot("c", (m * world, n), dtype="bf16", expect=lambda rank: matmul(gathered, b, m * world, k, n)),
                Slot("gathered_a", (m * world, k), dtype="bf16", expect=lambda rank: gathered),
            ],
            f"g{world}",
            group=f"w{world}",
            algorithm="fused",
        )
        total = add(*[matmul(part, b, m * world, k, n) for part in whole])
        self.run_op(
            clients,
            "matmul_reduce_scatter",
            [
                Slot("a", (m * world, k), value, dtype="bf16"),
                Slot("b", (k, n), ones, dtype="bf16"),
                Slot("c", (m, n), dtype="bf16", expect=lambda rank: total[rank * m * n : (rank + 1) * m * n]),
            ],
            f"s{world}",
            group=f"w{world}",
            algorithm="fused",
        )
        # Any number of rows: ranks own equal parts, or the last one fewer, or none; in bf16 the skinny kernel, in f32 the other.
        for rows, out in (
            (m * world, "bf16"),
            (m * world - 1, "bf16"),
            (m * world - 1, "f32"),
            (1, "bf16"),
            (1, "f32"),
        ):
            self.run_op(
                clients,
                "matmul_all_reduce",
                [
                    Slot("a", (rows, k), value, dtype="bf16"),
                    Slot("b", (k, n), ones, dtype="bf16"),
                    Slot("c", (rows, n), dtype=out, expect=lambda rank: total[: rows * n]),
                ],
                f"r{world}.{rows}.{out}",
                group=f"w{world}",
                algorithm="fused",
            )
        everybody(clients, "leave", group=f"w{world}")
        everybody(clients, "detach")

    def fused_plan(self, clients, key="n", m=64, n=64, k=64):
        world = len(clients)
        for name, rows, columns in (("a", m, k), ("b", k, n), ("c", m * world, n)):
            everybody(clients, "register", memory=f"{key}.{name}", bytes=rows * columns * 2)
            everybody(clients, "fill", memory=f"{key}.{name}", dtype="bf16", base=1)
        replies = everybody(clients, "prepare", key=key, plan=key, request=gather_request(m, n, k, world))
        self.assertIn(f"{self.placement}: ", replies[0]["plan"]["placement"])
        return [[f"{key}.{name}", 0] for name in ("a", "b", "c")]

    def check_fused(self, clients, bindings, key="n", k=64):
        everybody(clients, "launch", plan=key, bindings=bindings)
        everybody(clients, "sync")
        everybody(clients, "wait", plan=key)
        for client in clients:
            values = client.call("read", memory=f"{key}.c", dtype="bf16", count=4)["values"]
            self.assertEqual(values, [float(k)] * 4)

    def dies_before_its_launch(self):
        """The last rank, while the others wait for it."""
        world = min(3, GPUS)
        clients = self.fused_group(world)
        bindings = self.fused_plan(clients)
        self.check_fused(clients, bindings)
        for client in clients[:-1]:
            client.call("launch", plan="n", bindings=bindings)
        clients[-1].kill()
        for client in clients[:-1]:
            reply = client.call("sync", deadline_ms=50000, check=False)
            reply = client.call("wait", plan="n", check=False) if reply["ok"] else reply
            self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
            self.assertIn(f"rank {world - 1}", reply["message"])
        # The survivors' group is gone; the node serves the next one.
        again = self.fused_group(2, job_key=self.job_key + "-again")
        self.check_fused(again, self.fused_plan(again))

    def dies_among_launches(self):
        """Each rank in turn, at another moment. Kernels on GPUs are long enough that some die within."""
        world = min(3, GPUS)
        size = {"m": 512, "n": 4096, "k": 4096} if CUDA else {}
        times = 2000  # seconds of work, so that some is left at the kill on a busy machine too
        for round_number in range(6):
            victim = round_number % world
            clients = self.fused_group(world, name="tp", job_key=f"{self.job_key}-{round_number}")
            bindings = self.fused_plan(clients, **size)
            self.check_fused(clients, bindings, k=size.get("k", 64))
            calls = [client.send("launch", plan="n", bindings=bindings, times=times) for client in clients]
            time.sleep(0.003 * round_number)
            clients[victim].kill()
            killed = time.monotonic()
            for rank, (client, call_id) in enumerate(zip(clients, calls)):
                if rank == victim:
                    continue
                reply = client.reply(call_id, timeout=60, check=False)
                if reply["ok"]:
                    reply = client.call("sync", deadline_ms=30000, check=False)
                if reply["ok"]:
                    reply = client.call("wait", plan="n", check=False)
                self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
                self.assertIn(f"rank {victim}", reply["message"])
            self.assertLess(time.monotonic() - killed, AT_ONCE)
            for rank, client in enumerate(clients):
                if rank != victim:
                    client.close()


class Fused(FusedTest):
    shares = True

    def test_on_offer_and_planned_when_asked_for(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        offers = fused_offers(self.join(clients)[0])
        self.assertEqual(set(offers), set(OPS))
        for offer in offers.values():
            self.assertTrue(offer["available"], offer)
        # By choice it is not taken, however large the product, where the operator has said so.
        plan = everybody(clients, "prepare", key="auto", request=gather_request(4096, 8192, 8192, 2, "auto"))[0]["plan"]
        self.assertNotEqual(plan["algorithm"], "fused")
        self.assertIn("fused = explicit", dict(plan["refused"])["fused"])
        plan = everybody(clients, "prepare", key="asked", request=gather_request(4096, 8192, 8192, 2))[0]["plan"]
        self.assertEqual((plan["algorithm"], plan["reason"], plan["fused"]), ("fused", "asked for", True))
        # A request that the kernels refuse gets the reason.
        for reply in everybody(clients, "prepare", key="odd", check=False, request=gather_request(16, 16, 12, 2)):
            self.assertEqual(reply["code"], "FAILED_PRECONDITION")
            self.assertIn("K is no multiple of 16 bytes", reply["message"])

    def test_sums_of_two_ranks_are_right(self):
        self.check_sums(2)

    def test_sums_of_three_ranks_are_right(self):
        self.check_sums(3)

    def test_a_rank_that_dies_before_its_launch_ends_the_others(self):
        self.dies_before_its_launch()

    def test_a_rank_that_dies_among_launches_ends_the_others(self):
        self.dies_among_launches()

    def test_an_engine_that_dies_is_told_once_and_the_plan_goes_on(self):
        clients = self.fused_group(2)
        bindings = self.fused_plan(clients)
        self.check_fused(clients, bindings)
        killed = self.daemon.engine_pids()
        self.daemon.kill_engine(1)
        wait_until(lambda: len(set(self.daemon.engine_pids()) - set(killed)) == 1, 60, "no new engine")
        self.daemon.wait_engines(60)
        for client in clients:
            reply = client.call("launch", plan="n", bindings=bindings, check=False)
            if reply["ok"]:
                client.call("sync", deadline_ms=30000)
                reply = client.call("wait", plan="n", check=False)
            self.assertEqual(reply.get("code"), "ABORTED", reply)
            client.call("wait", plan="n")
        self.check_fused(clients, bindings)


class FusedInClients(FusedTest):
    """The same kernels on the ranks' own streams."""

    placement = "client"

    def test_sums_of_two_ranks_are_right(self):
        self.check_sums(2)

    def test_sums_of_three_ranks_are_right(self):
        self.check_sums(3)

    def test_a_rank_that_dies_before_its_launch_ends_the_others(self):
        self.dies_before_its_launch()

    def test_a_rank_that_dies_among_launches_ends_the_others(self):
        self.dies_among_launches()

    def test_an_engine_that_dies_changes_nothing(self):
        clients = self.fused_group(2)
        bindings = self.fused_plan(clients)
        self.check_fused(clients, bindings)
        for rank in range(2):
            self.daemon.kill_engine(rank)
            self.check_fused(clients, bindings)

    def test_a_rank_that_stands_still_is_named(self):
        clients = self.fused_group(2, launch_deadline_ms=4000)
        bindings = self.fused_plan(clients)
        self.check_fused(clients, bindings)
        os.kill(clients[1].pid, signal.SIGSTOP)
        try:
            clients[0].call("launch", plan="n", bindings=bindings)
            clients[0].call("sync", deadline_ms=50000, check=False)
            failure = self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "wait", plan="n", deadline_ms=50000)
            self.assertEqual(failure.detail.get("ranks"), [1], failure.message)
        finally:
            os.kill(clients[1].pid, signal.SIGCONT)


@host_only("what a daemon without the kernels says")
class NotFused(TandemTest):
    def test_the_host_backend_says_why_not(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        offers = fused_offers(self.join(clients)[0])
        self.assertEqual(set(offers), set(OPS))
        for offer in offers.values():
            self.assertFalse(offer["available"])
            self.assertEqual(offer["reason"], "the engine of rank 0 has no fused kernels: it runs the host backend")
        for reply in everybody(clients, "prepare", key="n", check=False, request=gather_request(64, 64, 64, 2)):
            self.assertEqual(reply["code"], "FAILED_PRECONDITION")
            self.assertIn("it runs the host backend", reply["message"])


@own_gpus_only  # where ranks share one it is no own choice
class FusedByChoice(TandemTest):
    extra = EMULATED + ("--fused-kernels", "auto")

    def test_the_operator_lets_plans_take_it(self):
        clients = self.group(2)
        # Few rows, whose kernel is far ahead of whatever reads B twice or waits for a collective.
        plan = everybody(clients, "prepare", key="auto", request=gather_request(32, 8192, 8192, 2, "auto"))[0]["plan"]
        self.assertEqual(plan["algorithm"], "fused", plan)
        self.assertIn("predicted fastest", plan["reason"])


if __name__ == "__main__":
    unittest.main()
