"""Launches that an engine's end cuts off: whether they had started, what a retry needs, and plans that may be repeated as they are."""

import os
import random
import signal
import time
import unittest

from harness import TandemTest, everybody, host_only, wait_until

COUNT = 500_000
ROUNDS = 50
IN_PLACE = {
    "op": "all_reduce",
    "operands": [
        {"role": "input", "dtype": "f32", "shape": [COUNT]},
        {"role": "output", "dtype": "f32", "shape": [COUNT], "alias_of": 0},
    ],
}
APART = {
    "op": "all_reduce",
    "operands": [
        {"role": "input", "dtype": "f32", "shape": [COUNT]},
        {"role": "output", "dtype": "f32", "shape": [COUNT]},
    ],
}


@host_only("it counts on the host backend's times")
class Retry(TandemTest):
    gpus = 2
    extra = (
        "--supervisor-crash-loop-count",
        "1000",
        "--supervisor-backoff-initial-ms",
        "20",
        "--supervisor-backoff-max-ms",
        "20",
    )

    def ranks(self, request, bindings, **more):
        """Two ranks with a plan; their memories are "in" and "out"."""
        self.bindings = bindings
        self.clients = self.group(2, launch_deadline_ms=30000)
        for name in ("in", "out"):
            everybody(self.clients, "register", memory=name, bytes=4 * COUNT)
        return everybody(self.clients, "prepare", key="p", plan="p", request={**request, **more})

    def restore(self):
        everybody(self.clients, "fill", each=lambda rank: {"base": rank + 1, "step": 1}, memory="in")

    def launch(self, clients=None):
        """Each rank's outcome of one launch."""
        clients = clients or self.clients
        replies = everybody(clients, "launch", plan="p", bindings=self.bindings, check=False)
        everybody(clients, "sync", deadline_ms=60000)
        waits = everybody(clients, "wait", plan="p", check=False)
        return [wait if reply["ok"] else reply for reply, wait in zip(replies, waits)]

    def launch_and_kill(self, seconds):
        """The same, with an engine or both killed after so long."""
        engines = self.daemon.engines()
        victims = random.choice(([0], [1], [0, 1]))
        calls = [client.send("launch", plan="p", bindings=self.bindings) for client in self.clients]
        time.sleep(seconds)  # the moment of the fault, which is to be any
        for gpu in victims:
            os.kill(engines[gpu]["pid"], signal.SIGKILL)
        replies = [client.reply(call, check=False) for client, call in zip(self.clients, calls)]
        everybody(self.clients, "sync", deadline_ms=60000)
        waits = everybody(self.clients, "wait", plan="p", check=False)
        killed = {engines[gpu]["pid"] for gpu in victims}
        wait_until(lambda: not killed & set(self.daemon.engine_pids()), 60, "no new engine")
        self.daemon.wait_engines()
        return [wait if reply["ok"] else reply for reply, wait in zip(replies, waits)]

    def hear(self, outcomes):
        """All ranks hear of the restart: those whose launch ended well, by a launch that is not made, or cut off."""
        for client, outcome in zip(self.clients, outcomes):
            if outcome["ok"]:
                outcome = self.launch([client])[0]
            self.assertEqual(outcome["code"], "ABORTED", outcome)
            self.assertEqual(outcome["detail"]["reason"], "ENGINE_RESTARTED", outcome)

    def check(self, memory):
        for client in self.clients:
            self.assertEqual(client.call("differs", memory=memory, base=3, step=2)["count"], 0)

    def check_untouched(self, rank):
        self.assertEqual(self.clients[rank].call("differs", memory="in", base=rank + 1, step=1)["count"], 0)

    def duration(self):
        """Seconds that a launch takes, with its calls."""
        self.restore()
        begin = time.monotonic()
        self.assertTrue(all(outcome["ok"] for outcome in self.launch()))
        return time.monotonic() - begin

    def test_a_retry_that_restores_its_operands_is_right(self):
        self.ranks(IN_PLACE, [["in", 0], ["in", 0]])
        longest = min(self.duration() for _ in range(3))  # else most kills come too late on a busy machine
        cut_off = started = 0
        for _ in range(ROUNDS):
            self.restore()
            outcomes = self.launch_and_kill(random.uniform(0, longest))
            failed = [outcome for outcome in outcomes if not outcome["ok"]]
            cut_off += bool(failed)
            for outcome in failed:
                self.assertEqual(outcome["code"], "ABORTED", outcome)
                started += outcome["detail"]["started"] is True
                if outcome["detail"]["started"] is False:
                    # No operand was written on any rank: not on this one, at least.
                    self.check_untouched(outcomes.index(outcome))
            self.hear(outcomes)
            self.restore()
            again = self.launch()
            self.assertTrue(all(outcome["ok"] for outcome in again), again)
            self.check("in")
        print(f"{ROUNDS} rounds: {cut_off} launches cut off, {started} statuses of one that had started")
        self.assertGreater(cut_off, 0)
        self.assertGreater(started, 0)

    def test_a_launch_that_waits_for_a_rank_has_not_started(self):
        self.ranks(IN_PLACE, [["in", 0], ["in", 0]])
        self.restore()
        self.clients[0].call("launch", plan="p", bindings=self.bindings)
        wait_until(lambda: self.daemon.ctl_json("queue")["entries"], 60, "the launch does not arrive")
        self.daemon.kill_engine(1)
        self.clients[0].call("sync", deadline_ms=60000)
        outcome = self.clients[0].call("wait", plan="p", check=False)
        self.assertEqual(outcome["code"], "ABORTED", outcome)
        self.assertIs(outcome["detail"]["started"], False, outcome)
        self.check_untouched(0)

    def test_a_restartable_plan_is_repeated_with_the_same_operands(self):
        self.ranks(APART, [["in", 0], ["out", 0]], restartable=True)
        longest = min(self.duration() for _ in range(3))  # else most kills come too late on a busy machine
        self.restore()
        for _ in range(10):
            outcomes = self.launch_and_kill(random.uniform(0, longest))
            self.hear(outcomes)
            again = self.launch()
            self.assertTrue(all(outcome["ok"] for outcome in again), again)
            self.check("out")

    def test_a_restartable_plan_is_not_in_place(self):
        clients = self.group(2)
        replies = everybody(
            clients, "prepare", key="p", plan="p", check=False, request={**IN_PLACE, "restartable": True}
        )
        for reply in replies:
            self.assertEqual(reply["code"], "FAILED_PRECONDITION", reply)
            self.assertEqual(reply["detail"]["reason"], "NOT_RESTARTABLE")
            self.assertEqual(reply["detail"]["field"], "operands[1].alias_of")
            self.assertIn("alias_of -1", reply["message"])
        # All ranks must agree.
        calls = [
            client.send("prepare", key="q", plan="q", request={**APART, "restartable": rank == 0})
            for rank, client in enumerate(clients)
        ]
        for client, call in zip(clients, calls):
            reply = client.reply(call, check=False)
            self.assertEqual(reply["detail"]["reason"], "FIELD_MISMATCH", reply)
            self.assertEqual(reply["detail"]["field"], "restartable")


class Warnings(TandemTest):
    gpus = 2

    def test_an_unfused_plan_warns_once(self):
        clients = self.group(2)
        request = {
            "op": "matmul_reduce_scatter",
            "algorithm": "unfused",
            "operands": [
                {"role": "a", "dtype": "f32", "shape": [8, 4]},
                {"role": "b", "dtype": "f32", "shape": [4, 8]},
                {"role": "c", "dtype": "f32", "shape": [4, 8]},
            ],
        }
        for key, on_unfused, expected in (("default", None, 1), ("warn", "warn", 1), ("allow", "allow", 0)):
            more = {"on_unfused": on_unfused} if on_unfused else {}
            replies = everybody(clients, "prepare", key=key, plan=key, request={**request, **more})
            everybody(clients, "prepare", key=key, plan=key, request={**request, **more})  # the same plan again
            for client, reply in zip(clients, replies):
                warnings = [text for text in reply["plan"]["warnings"] if "runs unfused" in text]
                self.assertEqual(len(warnings), expected, reply["plan"])
                if expected:
                    wait_until(lambda: self.events(client, key), 60, "no event")
                self.assertEqual(len(self.events(client, key)), expected)
            with open(self.daemon.log_path, errors="replace") as log:
                lines = [line for line in log if "runs unfused" in line]
            # The log has one line for plans that differ in their numbers alone.
            self.assertEqual(["key 'default'" in line for line in lines], [True], lines)

    @staticmethod
    def events(client, key):
        events = client.call("events")["events"]
        return [event for event in events if event["kind"] == "plan_warning" and f"'{key}'" in event["message"]]


if __name__ == "__main__":
    unittest.main()
