"""determinism = batch with real processes: a row's bytes, whatever else is in the batch (determinism_rank.py), and what is refused."""

import json
import unittest

from harness import TandemTest, everybody, host_only, needs_gpus

MOST_RANKS = 4

PRODUCT = {
    "op": "matmul_all_reduce",
    "operands": [
        {"role": "a", "dtype": "f32", "shape": [8, 16]},
        {"role": "b", "dtype": "f32", "shape": [16, 8]},
        {"role": "c", "dtype": "f32", "shape": [8, 8]},
    ],
}
ALONG_K = {
    "op": "all_gather_matmul",
    "dim": 1,
    "on_unfused": "allow",
    "operands": [
        {"role": "a", "dtype": "f32", "shape": [8, 16]},
        {"role": "b", "dtype": "f32", "shape": [32, 8]},
        {"role": "c", "dtype": "f32", "shape": [8, 8]},
    ],
}


def all_reduce(**more):
    tensor = {"dtype": "f32", "shape": [8, 16]}
    return {"op": "all_reduce", "operands": [{"role": "input", **tensor}, {"role": "output", **tensor}], **more}


class ComparedBits(TandemTest):
    gpus = 4

    def check(self, world, program="determinism_rank.py", kinds=("sum", "norm", "residual")):
        told = self.run_ranks(program, world)
        replies = [json.loads(text) for text in told]
        self.assertGreater(replies[0]["launches"], 200)
        for kind in kinds:
            rows = {}
            for rank, reply in enumerate(replies):
                for row, data in reply["bits"][kind].items():
                    self.assertEqual(data, rows.setdefault(row, data), f"{kind}: row {row} of rank {rank}")
            self.assertGreater(len(set(rows.values())), 20, kind)


class Bits(ComparedBits):
    @host_only("its ranks read memory of the host backend")
    @needs_gpus(2)
    def test_a_row_has_the_same_bits_on_two_ranks(self):
        self.check(2)

    @host_only("its ranks read memory of the host backend")
    @needs_gpus(3)
    def test_a_row_has_the_same_bits_on_three_ranks(self):
        self.check(3)

    @host_only("its ranks read memory of the host backend")
    @needs_gpus(4)
    def test_a_row_has_the_same_bits_on_four_ranks(self):
        self.check(4)


@host_only("its ranks read memory of the host backend")
class BitsOfProducts(ComparedBits):
    extra = ("--testing-emulated-fused",)

    def check_products(self, world):
        kinds = [
            f"{t} {kind}"
            for t in ("bf16", "f16", "f32", "f8e4m3")
            for kind in ("product", "sum", "norm", "residual", "biased")
        ]
        self.check(world, "determinism_products_rank.py", kinds)

    @needs_gpus(2)
    def test_a_row_of_a_product_has_the_same_bits_on_two_ranks(self):
        self.check_products(2)

    @needs_gpus(3)
    def test_a_row_of_a_product_has_the_same_bits_on_three_ranks(self):
        self.check_products(3)

    @needs_gpus(4)
    def test_a_row_of_a_product_has_the_same_bits_on_four_ranks(self):
        self.check_products(4)


@host_only("its ranks read memory of the host backend")
class Runs(TandemTest):
    """determinism = run: two jobs with other delays and streams give the same bits (determinism_run_rank.py)."""

    gpus = 4
    extra = ("--testing-emulated-fused",)

    def check(self, world):
        runs = [
            [json.loads(text) for text in self.run_ranks("determinism_run_rank.py", world, seed)]
            for seed in ("one", "two")
        ]
        self.assertEqual(runs[0], runs[1])
        ranks = runs[0]
        self.assertEqual([rank["refused"] for rank in ranks], [ranks[0]["refused"]] * world)
        ways = ranks[0]["digests"]
        for op in ("all_reduce", "norm", "reduce_scatter", "all_gather", "matmul_all_reduce", "matmul_reduce_scatter"):
            for placement in ("engine", "client"):
                of_op = {way for way in ways if way.startswith(f"{op} by ") and way.endswith(f" {placement}")}
                self.assertTrue(of_op, f"{op} in the {placement}")
        for rank in ranks:
            alike = {way: digest for way, digest in rank["digests"].items() if "scatter" not in way}
            self.assertEqual(alike, {way: ways[way] for way in alike})

    @needs_gpus(2)
    def test_two_runs_of_two_ranks_give_the_same_bits(self):
        self.check(2)

    @needs_gpus(4)
    def test_two_runs_of_four_ranks_give_the_same_bits(self):
        self.check(4)


class Promise(TandemTest):
    def prepare(self, clients, key, request=None, **arguments):
        if request is not None:
            arguments["request"] = request
        return everybody(clients, "prepare", group="tp", key=key, plan=key, **arguments)

    def test_ranks_that_ask_for_different_promises_hear_the_field_and_both(self):
        clients = self.group(2)
        replies = self.prepare(
            clients,
            "unlike",
            check=False,
            each=lambda rank: {"request": all_reduce(determinism=("run", "batch")[rank])},
        )
        for reply in replies:
            self.assertEqual(reply["detail"]["reason"], "FIELD_MISMATCH", reply)
            self.assertEqual(reply["detail"]["field"], "determinism", reply)
            for text in ("rank 0", "run", "rank 1", "batch"):
                self.assertIn(text, reply["message"])

    def test_products_keep_it_but_for_a_gather_along_k_which_says_why(self):
        clients = self.group(2)
        for level in ("run", "batch"):
            for reply in self.prepare(clients, level, {**PRODUCT, "determinism": level, "on_unfused": "allow"}):
                self.assertEqual(reply["plan"]["determinism"], level)
        for reply in self.prepare(clients, "along K", {**ALONG_K, "determinism": "batch"}, check=False):
            self.assertEqual(reply["code"], "FAILED_PRECONDITION", reply)
            self.assertEqual(reply["detail"]["reason"], "DETERMINISM_REFUSED", reply)
            self.assertEqual(reply["detail"]["field"], "determinism", reply)
            self.assertIn("each rank's part of K apart", reply["message"])

    def test_the_groups_option_holds_for_plans_that_ask_for_less(self):
        clients = self.group(2, options={"determinism": "batch"})
        for level in ("off", "run", "batch"):
            for reply in self.prepare(clients, level, all_reduce(determinism=level)):
                self.assertEqual(reply["plan"]["determinism"], "batch")
        for reply in self.prepare(clients, "along K", ALONG_K, check=False):
            self.assertEqual(reply["detail"]["reason"], "DETERMINISM_REFUSED", reply)
        listed = self.daemon.ctl(
            "plans", str(self.prepare(clients, "shown", all_reduce())[0]["plan"]["plan_id"])
        ).stdout
        self.assertRegex(listed, r"determinism +batch")

    def test_an_unknown_promise_is_refused(self):
        client = self.daemon.client()
        client.connect()
        failure = self.assertFails(
            "INVALID_ARGUMENT", client.call, "join", name="tp", world=1, rank=0, options={"determinism": "always"}
        )
        self.assertIn("off, run, batch", failure.message)


class ByConfiguration(TandemTest):
    extra = ("--determinism", "run")

    def test_the_daemons_key_is_the_groups_default(self):
        clients = self.group(2)
        for reply in everybody(clients, "prepare", group="tp", key="ar", plan="ar", request=all_reduce()):
            self.assertEqual(reply["plan"]["determinism"], "run")
        others = self.group(2, name="free", options={"determinism": "off"})
        for reply in everybody(others, "prepare", group="free", key="ar", plan="ar", request=all_reduce()):
            self.assertEqual(reply["plan"]["determinism"], "off")


if __name__ == "__main__":
    unittest.main()
