"""Requests that are measured while they are prepared."""

import tempfile
import unittest

from harness import TandemTest, everybody, wait_until

NO_TABLES = tempfile.TemporaryDirectory(prefix="tandem-no-tables.")
unittest.addModuleCleanup(NO_TABLES.cleanup)
M, N, K = 256, 128, 64


def gather_matmul(**request):
    return {
        "op": "all_gather_matmul",
        "operands": [
            {"role": "a", "dtype": "bf16", "shape": [M // 2, K]},
            {"role": "b", "dtype": "bf16", "shape": [K, N]},
            {"role": "c", "dtype": "bf16", "shape": [M, N]},
        ],
        **request,
    }


class Autotune(TandemTest):
    gpus = 2
    extra = ("--tuning-dir", NO_TABLES.name)

    def entries(self):
        return self.daemon.ctl_json("tuning", "list").get("entries", [])

    def test_a_prepare_measures_once_for_the_node(self):
        clients = self.group(2)
        for reply in self.all_reduce_plan(clients, 4096, key="first", autotune=True):
            self.assertIn("measured fastest", reply["plan"]["reason"])
            self.assertIn("3 rounds", reply["plan"]["reason"])
        self.check_all_reduce(clients, 4096, key="first")
        entry = self.entries()[0]
        self.assertEqual(entry["shape"], [4096 * 4])
        measured = [candidate for candidate in entry["candidates"] if int(candidate["samples"]) == 3]
        self.assertGreater(len(measured), 1, entry)
        # The measurement's own plans and memory are gone.
        wait_until(lambda: len(self.daemon.ctl_json("plans")["plans"]) == 1, 60, "plans of the measurement stay")
        self.assertIn("measured fastest", self.all_reduce_plan(clients, 4096, key="second")[0]["plan"]["reason"])
        again = self.all_reduce_plan(clients, 4096, key="third", autotune=True)[0]["plan"]
        self.assertIn(entry["measured_at"], again["reason"])
        self.assertEqual(len(self.entries()), 1)

    def test_launches_on_the_ranks_own_streams_are_measured_there(self):
        clients = self.group(2)
        reply = self.all_reduce_plan(clients, 4096, autotune=True, placement="client")[0]
        self.assertIn("measured fastest", reply["plan"]["reason"])
        self.assertIn("client: asked for", reply["plan"]["placement"])
        self.assertEqual([entry["traits"] for entry in self.entries()], ["client"])
        self.check_all_reduce(clients, 4096)

    def test_a_norm_behind_a_sum_is_left_out_of_its_measurement(self):
        clients = self.group(2)
        rows = {"dtype": "f32", "shape": [64, 64]}
        operands = [{"role": role, **rows} for role in ("input", "output", "residual", "residual_output")]
        operands.append({"role": "norm_weight", "dtype": "f32", "shape": [64]})
        request = {"op": "all_reduce", "operands": operands, "norm_epsilon": 1e-6, "autotune": True}
        plan = everybody(clients, "prepare", group="tp", key="n", plan="n", request=request)[0]["plan"]
        self.assertIn("measured fastest", plan["reason"])
        self.assertEqual([entry["shape"] for entry in self.entries()], [[4096 * 4]])
        plain = self.all_reduce_plan(clients, 4096, key="plain", autotune=True)[0]["plan"]
        self.assertIn(self.entries()[0]["measured_at"], plain["reason"])
        self.assertEqual(len(self.entries()), 1)

    def test_a_groups_option_measures_all_its_requests(self):
        clients = self.group(2, options={"autotune": "prepare"})
        replies = everybody(clients, "prepare", group="tp", key="k", plan="k", request=gather_matmul())
        self.assertIn("measured fastest", replies[0]["plan"]["reason"])
        # A key that is prepared again is the same plan.
        again = everybody(clients, "prepare", group="tp", key="k", plan="k2", request=gather_matmul())
        self.assertEqual(again[0]["plan"]["plan_id"], replies[0]["plan"]["plan_id"])
        wrong = [self.daemon.client(f"wrong{rank}") for rank in range(2)]
        for client in wrong:
            client.connect()
        join = {"rank": 0, "world": 2, "name": "w", "job_key": self.job_key, "options": {"autotune": "always"}}
        failure = self.assertFails("INVALID_ARGUMENT", wrong[0].call, "join", **join)
        self.assertEqual(failure.detail["field"], "options")

    def test_what_cannot_be_measured_is_prepared_all_the_same(self):
        clients = self.group(2)
        one = {"op": "barrier", "autotune": True}
        plan = everybody(clients, "prepare", group="tp", key="b", plan="b", request=one)[0]["plan"]
        self.assertGreater(plan["plan_id"], 0)
        asked = gather_matmul(autotune=True, algorithm="ring")
        plan = everybody(clients, "prepare", group="tp", key="r", plan="r", request=asked)[0]["plan"]
        self.assertNotIn("measured", plan["reason"])
        wrong = {"op": "all_reduce", "autotune": True}
        replies = everybody(clients, "prepare", check=False, group="tp", key="x", plan="x", request=wrong)
        for reply in replies:
            self.assertEqual(reply["code"], "INVALID_ARGUMENT", reply)
            self.assertNotIn("autotune", reply["message"])
        self.assertEqual(self.entries(), [])

    def test_a_rank_that_dies_in_it_is_named(self):
        clients = self.group(2)
        call = clients[0].send("prepare", group="tp", key="k", plan="k", request=gather_matmul(autotune=True))
        clients[1].kill()
        failure = self.assertFails("UNAVAILABLE", clients[0].reply, call)
        self.assertEqual(failure.detail.get("ranks"), [1], failure.message)

    def test_a_measurement_without_time_names_its_reason(self):
        """Its launches take seconds: by the deadline they have not ended, or a rank has not come."""
        clients = self.group(2)
        operand = {"dtype": "f32", "shape": [32 << 20]}
        request = {
            "op": "all_reduce",
            "operands": [{"role": "input", **operand}, {"role": "output", **operand}],
            "autotune": True,
        }
        replies = everybody(
            clients, "prepare", check=False, group="tp", key="k", plan="k", request=request, deadline_ms=1500
        )
        for reply in replies:
            self.assertEqual(reply.get("code"), "DEADLINE_EXCEEDED", reply)
            self.assertIn(reply["detail"]["reason"], ("NOT_ENDED", "RANK_LATE", "GROUP_BUSY", "UNDER_WAY"), reply)
        self.all_reduce_plan(clients, key="good")
        self.check_all_reduce(clients, key="good")


class AutotuneWithoutMemory(TandemTest):
    gpus = 2
    extra = ("--tuning-dir", NO_TABLES.name, "--quotas-tensors", "1")

    def test_a_plan_warns_that_nothing_was_measured(self):
        request = gather_matmul(autotune=True)
        plan = everybody(self.group(2), "prepare", group="tp", key="k", plan="k", request=request)[0]["plan"]
        (warning,) = [text for text in plan["warnings"] if "autotune" in text]
        self.assertRegex(warning, "autotune has measured nothing: rank [01]: .*quota of tensors")


class AutotuneOff(TandemTest):
    gpus = 2
    extra = ("--tuning-dir", NO_TABLES.name, "--autotune=false")

    def test_a_node_may_keep_no_clients_times(self):
        clients = self.group(2)
        reply = self.all_reduce_plan(clients, 4096, autotune=True)[0]
        self.assertNotIn("measured", reply["plan"]["reason"])
        self.assertEqual(self.daemon.ctl_json("tuning", "list").get("entries", []), [])


if __name__ == "__main__":
    unittest.main()
