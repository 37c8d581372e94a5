"""Families: one plan whose launches have any number of rows up to a bound, prepared once by all ranks together."""

import os
import random
import signal
import unittest

from harness import TandemTest, everybody, needs_gpus

MOST_RANKS = 4
COLUMNS = 24
BOUND = 96
UNTOUCHED = -7.0
AR = [["ar.in", 0], ["ar.out", 0]]


def matrix(role, rows, columns, dtype="f32"):
    return {"role": role, "dtype": dtype, "shape": [rows, columns]}


class Families(TandemTest):
    gpus = 4

    def prepare(self, clients, key, request, bytes_by_slot, check=True, each=None):
        """Prepares a family on memory of its own: key.0, key.1, … by slot."""
        for slot, size in enumerate(bytes_by_slot):
            everybody(clients, "register", group="tp", memory=f"{key}.{slot}", bytes=size)
        return everybody(
            clients,
            "prepare",
            group="tp",
            key=key,
            plan=key,
            check=check,
            each=each or (lambda rank: {"request": {"max_rows": BOUND, **request}}),
        )

    def all_reduce(self, clients, key="ar", **request):
        operands = [matrix("input", 8, COLUMNS), matrix("output", 8, COLUMNS)]
        return self.prepare(
            clients, key, {"op": "all_reduce", "operands": operands, **request}, [BOUND * COLUMNS * 4] * 2
        )

    def bindings(self, key, slots):
        return [[f"{key}.{slot}", 0] for slot in range(slots)]

    def check_all_reduce(self, clients, rows, key="ar", make=None):
        """One launch of `rows` rows: their sums, and nothing behind them."""
        for rank, client in enumerate(clients):
            client.call("fill", memory=f"{key}.0", base=rank + 1, step=1)
            client.call("fill", memory=f"{key}.1", base=UNTOUCHED, step=0)
        make = make or (lambda: everybody(clients, "launch", plan=key, bindings=self.bindings(key, 2), rows=rows))
        make()
        everybody(clients, "sync")
        everybody(clients, "wait", plan=key)
        world, count = len(clients), rows * COLUMNS
        sums = [world * (world + 1) / 2 + world * (i % 64) for i in range(count)]
        for client in clients:
            values = client.call("read", memory=f"{key}.1", count=BOUND * COLUMNS)["values"]
            self.assertEqual(values[:count], sums, f"{rows} rows")
            self.assertEqual(set(values[count:]) - {UNTOUCHED}, set(), f"{rows} rows")

    @needs_gpus(4)
    def test_any_number_of_rows_in_any_order_without_the_daemon(self):
        clients = self.group(4)
        (reply, *_) = self.all_reduce(clients)
        self.assertEqual(reply["plan"]["max_rows"], BOUND)
        ends = [entry["last"] for entry in reply["plan"]["rows"]]
        self.assertEqual((ends, ends[-1]), (sorted(ends), BOUND))
        # Nobody but the ranks has a part in launches of numbers that nobody has seen.
        still = [self.daemon.process.pid, *self.daemon.engine_pids()]
        try:
            for pid in still:
                os.kill(pid, signal.SIGSTOP)
            order = [0, 1, BOUND, *random.Random(1).sample(range(2, BOUND), 20)]
            for rows in [*order, *order[:5]]:
                self.check_all_reduce(clients, rows)
        finally:
            for pid in still:
                os.kill(pid, signal.SIGCONT)

    def test_a_capture_of_a_number_that_was_never_launched(self):
        clients = self.group(2)
        self.all_reduce(clients)
        for rows in (5, 17):
            launches = [{"plan": "ar", "bindings": self.bindings("ar", 2), "rows": rows}] * 2
            everybody(clients, "capture", graph=f"g{rows}", launches=launches)
        for rows in (17, 5, 17):
            self.check_all_reduce(clients, rows, make=lambda rows=rows: everybody(clients, "replay", graph=f"g{rows}"))
        self.check_all_reduce(clients, 6)

    def test_gathers_scatters_and_products(self):
        clients = self.group(2)
        k, n = 8, 12
        requests = {
            "ag": ("all_gather", [matrix("input", 2, COLUMNS), matrix("output", 4, COLUMNS)]),
            "rs": ("reduce_scatter", [matrix("input", 4, COLUMNS), matrix("output", 2, COLUMNS)]),
            "mm_ar": ("matmul_all_reduce", [matrix("a", 4, k), matrix("b", k, n), matrix("c", 4, n)]),
            "mm_rs": ("matmul_reduce_scatter", [matrix("a", 4, k), matrix("b", k, n), matrix("c", 2, n)]),
            "ag_mm": ("all_gather_matmul", [matrix("a", 4, k), matrix("b", k, n), matrix("c", 8, n)]),
        }
        for key, (op, operands) in requests.items():
            sizes = [(2 * BOUND + 1) * COLUMNS * 4] * len(operands)
            self.prepare(clients, key, {"op": op, "operands": operands}, sizes)
        for rows in (2, BOUND, 34, 0, 58):
            for key, (op, operands) in requests.items():
                for rank, client in enumerate(clients):
                    client.call("fill", memory=f"{key}.0", base=rank + 1, step=0)
                    client.call("fill", memory=f"{key}.{len(operands) - 1}", base=UNTOUCHED, step=0)
                    if "matmul" in op:
                        client.call("fill", memory=f"{key}.1", base=2, step=0)
                everybody(clients, "launch", plan=key, bindings=self.bindings(key, len(operands)), rows=rows)
                everybody(clients, "sync")
                everybody(clients, "wait", plan=key)
                width = operands[-1]["shape"][1]
                out_rows = rows * operands[-1]["shape"][0] // operands[0]["shape"][0]
                for client in clients:
                    values = client.call("read", memory=f"{key}.{len(operands) - 1}", count=(out_rows + 1) * width)[
                        "values"
                    ]
                    if op == "all_gather":
                        expected = [1.0] * (rows * width) + [2.0] * (rows * width)
                    elif op == "all_gather_matmul":
                        expected = [2.0 * k] * (rows * width) + [4.0 * k] * (rows * width)
                    else:
                        expected = [3.0 * (2 * k if "matmul" in op else 1)] * (out_rows * width)
                    self.assertEqual(values, expected + [UNTOUCHED] * width, f"{op}, {rows} rows")

    def test_numbers_that_the_family_has_not(self):
        clients = self.group(2)
        self.all_reduce(clients)
        for rows, code in ((BOUND + 1, "OUT_OF_RANGE"), (-3, "INVALID_ARGUMENT")):
            failure = self.assertFails(
                code, clients[1].call, "launch", plan="ar", bindings=self.bindings("ar", 2), rows=rows
            )
            self.assertEqual(failure.detail["field"], "rows", failure.message)
            everybody(clients, "renew")
            self.check_all_reduce(clients, 3)
        # Memory for the launch's rows is enough, and less is not.
        everybody(clients, "register", group="tp", memory="short", bytes=10 * COLUMNS * 4)
        bindings = [["short", 0], ["ar.1", 0]]
        everybody(clients, "launch", plan="ar", bindings=bindings, rows=10)
        everybody(clients, "wait", plan="ar")
        failure = self.assertFails("OUT_OF_RANGE", clients[0].call, "launch", plan="ar", bindings=bindings, rows=11)
        self.assertEqual(failure.detail["field"], "bindings[0]", failure.message)
        everybody(clients, "renew")
        self.check_all_reduce(clients, 11)

    def test_ranks_with_unlike_rows_are_named(self):
        clients = self.group(2)
        self.all_reduce(clients)
        for client, rows in zip(clients, (7, 8)):
            client.call("launch", plan="ar", bindings=self.bindings("ar", 2), rows=rows)
        everybody(clients, "sync", deadline_ms=50000)
        for client in clients:
            failure = self.assertFails("INVALID_ARGUMENT", client.call, "wait", plan="ar")
            self.assertEqual(failure.detail["reason"], "LAUNCH_MISMATCH", failure.message)
            self.assertEqual((failure.detail["ranks"], failure.detail["field"]), ([1], "rows"), failure.message)
            self.assertIn("rank 1 launched rows 8, rank 0 rows 7", failure.message)
        everybody(clients, "renew")
        self.check_all_reduce(clients, 8)

    def test_bounds_must_agree_and_engines_run_no_families(self):
        clients = self.group(2)
        operands = [matrix("input", 8, COLUMNS), matrix("output", 8, COLUMNS)]
        unlike = self.prepare(
            clients, "x", {}, [], check=False,
            each=lambda rank: {"request": {"op": "all_reduce", "operands": operands, "max_rows": 16 + rank}},
        )  # fmt: skip
        for reply in unlike:
            self.assertEqual((reply["code"], reply["detail"]["field"]), ("INVALID_ARGUMENT", "max_rows"), reply)
        for reply in self.prepare(
            clients, "e", {"op": "all_reduce", "operands": operands, "placement": "engine"}, [], check=False
        ):
            self.assertEqual(reply["detail"]["reason"], "FAMILY_OF_ENGINES", reply)
        for client in clients:
            client.call("register", group="tp", memory="one.in", bytes=4 * COLUMNS * 8)
        self.all_reduce_plan(clients, count=8 * COLUMNS, key="one.x", placement="client")
        failure = self.assertFails(
            "INVALID_ARGUMENT",
            clients[0].call,
            "launch",
            plan="one.x",
            bindings=[["one.x.in", 0], ["one.x.out", 0]],
            rows=4,
        )
        self.assertEqual((failure.detail["reason"], failure.detail["field"]), ("NOT_A_FAMILY", "rows"))


if __name__ == "__main__":
    unittest.main()
