"""rounding = once | model with real processes: bytes by each algorithm and placement, and errors (rounding_rank.py); what must agree."""

import json
import unittest

from harness import TandemTest, everybody, host_only, needs_gpus

MOST_RANKS = 3


def normed(**more):
    tensor = {"dtype": "bf16", "shape": [8, 16]}
    roles = ("input", "output", "residual", "residual_output")
    operands = [{"role": role, **tensor} for role in roles]
    return {
        "op": "all_reduce",
        "operands": [*operands, {"role": "norm_weight", "dtype": "bf16", "shape": [16]}],
        **more,
    }


class Values(TandemTest):
    gpus = 3

    def check(self, world):
        told = self.run_ranks("rounding_rank.py", world)
        for text in told:
            errors = json.loads(text)
            self.assertEqual(text, told[0])
            for dtype in ("bf16", "f16"):
                self.assertLess(errors[dtype]["once"], 0.9 * errors[dtype]["model"], errors)
            self.assertEqual(errors["f32"]["once"], errors["f32"]["model"])

    @host_only("its ranks read memory of the host backend")
    @needs_gpus(2)
    def test_one_rounding_is_nearer_on_two_ranks(self):
        self.check(2)

    @host_only("its ranks read memory of the host backend")
    @needs_gpus(3)
    def test_one_rounding_is_nearer_on_three_ranks(self):
        self.check(3)


class Field(TandemTest):
    def prepare(self, clients, key, **arguments):
        return everybody(clients, "prepare", group="tp", key=key, plan=key, **arguments)

    def test_ranks_that_ask_for_different_roundings_hear_the_field_and_both(self):
        clients = self.group(2)
        replies = self.prepare(
            clients, "unlike", check=False, each=lambda rank: {"request": normed(rounding=("once", "model")[rank])}
        )
        for reply in replies:
            self.assertEqual(reply["detail"]["reason"], "FIELD_MISMATCH", reply)
            self.assertEqual(reply["detail"]["field"], "rounding", reply)
            for text in ("rank 0", "once", "rank 1", "model"):
                self.assertIn(text, reply["message"])

    def test_a_plan_reports_its_rounding(self):
        clients = self.group(2)
        for reply in self.prepare(clients, "once", request=normed()):
            self.assertEqual(reply["plan"]["rounding"], "once")
        replies = self.prepare(clients, "model", request=normed(rounding="model"))
        for reply in replies:
            self.assertEqual(reply["plan"]["rounding"], "model")
        listed = self.daemon.ctl("plans", str(replies[0]["plan"]["plan_id"])).stdout
        self.assertRegex(listed, r"rounding +model")


if __name__ == "__main__":
    unittest.main()
