"""Nothing of a launch runs before its last rank has arrived: by the queue, and by the trace of all engines."""

import json
import unittest

from harness import CUDA, TandemTest, everybody, offered, wait_until


class LateRank(TandemTest):
    """For a rank that has not arrived the engines wait: nothing of the launch runs, on no GPU."""

    shares = True
    held_us = 6000
    # The GPUs' clocks are set against the CPU's by measurement; the trace has fractions of microseconds in binary.
    clock_us = 1000 if CUDA else 0.001

    def queue_of(self, gpu):
        return [entry for entry in self.daemon.ctl_json("queue")["entries"] if entry["gpu_uuid"] == gpu]

    def hold(self, gpu, late):
        """Returns when `gpu`'s launch has waited for rank `late` alone for so long, by its engine's own clock."""
        seen = []

        def long_enough():
            entries = self.queue_of(gpu)
            if len(entries) == 1 and entries[0]["late_ranks"] == [late]:
                seen.append(entries[0]["since_seconds"])
            return bool(seen) and (seen[-1] - seen[0]) * 1e6 >= self.held_us

        wait_until(long_enough, 60, f"no launch waits for rank {late}")

    def slices(self, plan_id, launch):
        """The slices of a launch by GPU, once all launches are there: [wait, launch, steps of all lanes]."""

        def read():
            events = json.loads(self.daemon.ctl("trace").stdout)["traceEvents"]
            return [
                event
                for event in events
                if event.get("ph") == "X"
                and (
                    event["tid"] == plan_id
                    if event["cat"] == "wait"
                    else event["args"]["plan"] == plan_id and event["args"]["launch"] == launch
                )
            ]

        wait_until(
            lambda: len([event for event in read() if event["cat"] == "launch"]) == 2, 20, "no trace of the launch"
        )
        return read()

    def late_by_turns(self, algorithm):
        clients = self.group(2, name=algorithm)
        gpus = [
            member["gpu_uuid"]
            for group in self.daemon.ctl_json("groups")["groups"]
            if group["name"] == algorithm
            for member in group["members"]
        ]
        rows = {gpu: index for index, gpu in enumerate(e["gpu_uuid"] for e in self.daemon.engines())}
        plan = self.all_reduce_plan(clients, group=algorithm, algorithm=algorithm)[0]["plan"]
        for launch, late in ((1, 1), (2, 0)):  # both are sampled: their steps are in the trace
            early = 1 - late
            everybody(clients, "pause")
            everybody(clients, "launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
            clients[early].call("resume")
            self.hold(gpus[early], late)
            clients[late].call("resume")
            everybody(clients, "sync")
            everybody(clients, "wait", plan="ar")
            self.check(self.slices(plan["plan_id"], launch), rows[gpus[early]], rows[gpus[late]])
        everybody(clients, "detach")
        self.daemon.close_clients()

    def check(self, slices, early, late):
        def of(gpu, category):
            return [event for event in slices if event["pid"] == gpu and event["cat"] == category]

        waits, run = of(early, "wait"), of(early, "launch")[0]
        self.assertTrue(waits, "no wait of the early rank in the trace")
        # An earlier launch's wait ended before.
        wait = max(waits, key=lambda event: event["ts"])
        end = wait["ts"] + wait["dur"]
        self.assertGreaterEqual(wait["dur"] + self.clock_us, self.held_us)
        self.assertGreaterEqual(wait["dur"], 5000)
        arrived = min(event["ts"] for event in slices if event["pid"] == late and event["ts"] > wait["ts"])
        self.assertGreaterEqual(arrived + self.clock_us, wait["ts"] + self.held_us, "the late rank was not late")
        self.assertGreaterEqual(run["ts"] + self.clock_us, arrived, "the launch ran before all had arrived")
        steps = [event for event in slices if event["cat"] == "step"]
        self.assertTrue(any(event["pid"] == early for event in steps), "no step of the early rank in the trace")
        for step in steps:
            self.assertGreaterEqual(step["ts"] + self.clock_us, arrived, f"{step} ran before all had arrived")
            if step["pid"] == early:
                self.assertGreaterEqual(step["ts"] + self.clock_us, end, f"{step} lies inside the wait")

    def test_nothing_runs_before_the_late_rank_has_arrived(self):
        for algorithm in offered("one_shot", "two_shot", "nccl"):
            with self.subTest(algorithm=algorithm):
                self.late_by_turns(algorithm)


if __name__ == "__main__":
    unittest.main()
