"""Kill −9 of a client before, during and after every control call: its partner learns it by name, bystanders notice
nothing, and the daemon keeps nothing."""

import random
import time
import unittest

from harness import CUDA, TandemTest, wait_until

AR = {
    "op": "all_reduce",
    "operands": [{"role": "input", "dtype": "f32", "shape": [256]}, {"role": "output", "dtype": "f32", "shape": [256]}],
}
BINDINGS = [["in", 0], ["out", 0]]

# (name, command, arguments, whether all ranks must call). `connect` stands before them.
CALLS = [
    ("join", "join", {"world": 2, "name": "victims", "group": "tp"}, True),
    ("empty", "empty", {"tensor": "t", "shape": [1000]}, False),
    ("rendezvous", "rendezvous", {"tensor": "t", "memory": "t"}, True),
    ("register", "register", {"memory": "in", "bytes": 1024}, False),
    ("register", "register", {"memory": "out", "bytes": 1024}, False),
    ("prepare", "prepare", {"key": "k", "plan": "k", "request": AR}, True),
    # The first launch opens the channel.
    ("launch", "launch", {"plan": "k", "bindings": BINDINGS, "times": 20}, True),
    ("wait", "wait", {"plan": "k"}, False),
    ("launch_without_stream", "launch_without_stream", {"plan": "k", "bindings": BINDINGS}, True),
    ("prepare in the client", "prepare", {"key": "c", "plan": "c", "request": {**AR, "placement": "client"}}, True),
    ("renew", "renew", {}, True),
    ("free", "free", {"tensor": "t"}, False),
    ("deregister", "drop", {"memory": "in"}, False),
    ("release", "release", {"plan": "k"}, False),
    ("leave", "leave", {}, False),
    ("detach", "detach", {}, False),
]


class KillEveryCall(TandemTest):
    gpus = 2

    def usage(self):
        stats = self.daemon.ctl_json("stats")
        return {
            "descriptors": self.daemon.descriptors(),
            "engine descriptors": [self.daemon.descriptors_of(pid) for pid in self.daemon.engine_pids()],
            **{key: stats.get(key, 0) for key in ("sessions", "groups", "plans", "segment_bytes")},
        }

    def settles(self, baseline):
        """The usage comes back to the baseline. tandemd closes idle connections meanwhile, so it may have fewer descriptors. CUDA opens
        one of its own now and then; a leak of one in each of the forty rounds would show all the same."""
        spare = 4 if CUDA else 0

        def settled():
            usage = self.usage()
            engines = zip(usage.pop("engine descriptors"), baseline["engine descriptors"])
            if usage.pop("descriptors") > baseline["descriptors"]:
                return False
            return usage == {key: baseline[key] for key in usage} and all(
                abs(now - then) <= spare for now, then in engines
            )

        wait_until(settled, 60, f"usage stays at {self.usage()}, not {baseline}")

    def run_call(self, client, rank, call, comes=True):
        """`comes`: whether the other rank does, which a join without it cannot hear of."""
        _, command, arguments, _ = call
        own = {
            "join": {"rank": rank, "deadline_ms": 50000 if comes else 1500},
            "empty": {"gpu": self.gpu_uuids[rank]},
        }.get(command, {})
        return client.send(command, **arguments, **own)

    def finish_call(self, client, call, call_id):
        """Its reply; for a launch, that of the stream's end."""
        reply = client.reply(call_id, timeout=60, check=False)
        if call[0] == "launch":
            client.call("sync", deadline_ms=50000)
            if reply["ok"]:
                reply = client.call("wait", plan="k", check=False)
        return reply

    def assertInTime(self, reply, call, started):
        """The partner's answer to a call that the victim did not finish."""
        self.assertLess(time.monotonic() - started, 25, f"{call[0]} takes too long")
        if not reply["ok"]:
            wanted = ("UNAVAILABLE", "DEADLINE_EXCEEDED") if call[0] == "join" else ("UNAVAILABLE",)
            self.assertIn(reply["code"], wanted, (call[0], reply))
            self.assertIn("rank 1", reply["message"], call[0])

    def one(self, index, phase):
        call = CALLS[index]
        partner, victim = self.daemon.client("partner"), self.daemon.client("victim")
        self.gpu_uuids = partner.connect()["gpus"]
        victim.connect()
        for earlier in CALLS[:index]:
            ids = [self.run_call(c, rank, earlier) for rank, c in enumerate((partner, victim))]
            for client, call_id in zip((partner, victim), ids):
                reply = self.finish_call(client, earlier, call_id)
                self.assertTrue(reply["ok"], (earlier[0], reply))
        if phase == "before":
            victim.kill()
        mine = self.run_call(partner, 0, call, comes=phase == "after")
        started = time.monotonic()
        if phase == "during":
            self.run_call(victim, 1, call)
            time.sleep(random.choice((0, 0.0005, 0.002, 0.005)))
            victim.kill()
        elif phase == "after":
            self.finish_call(victim, call, self.run_call(victim, 1, call))
        reply = self.finish_call(partner, call, mine)
        if phase == "after":
            victim.kill()  # no sooner: a launch may end on one rank before it does on the other
            self.assertTrue(reply["ok"], (call[0], reply))
        else:
            self.assertInTime(reply, call, started)
            if phase == "before" and call[3]:
                self.assertFalse(reply["ok"], f"{call[0]} went well without rank 1")
        if call[0] not in ("join", "leave", "detach"):
            # However the call ended, the group is broken now, and names the rank.
            wait_until(
                lambda: not partner.call("prepare", key="other", request=AR, deadline_ms=1500, check=False)["ok"]
            )
            failure = self.assertFails("UNAVAILABLE", partner.call, "prepare", key="other", request=AR)
            self.assertIn("rank 1", failure.message)
        for client in (partner, victim):
            client.close()
            self.daemon.clients.remove(client)

    def test_before_during_and_after_every_call(self):
        random.seed(3)
        bystanders = self.group(2, name="bystanders", job_key="another-job-key-1")
        self.all_reduce_plan(bystanders, group="bystanders")
        self.check_all_reduce(bystanders)
        self.one(len(CALLS) - 1, "after")  # what is made once and kept
        wait_until(lambda: self.usage()["sessions"] == 2, 60)
        baseline = self.usage()
        for phase in ("before", "during", "after"):
            for index in range(len(CALLS)):
                with self.subTest(phase=phase, call=CALLS[index][0]):
                    self.one(index, phase)
            self.check_all_reduce(bystanders)
            self.settles(baseline)
        self.check_all_reduce(bystanders)

    def test_during_connect(self):
        baseline = None
        for index in range(30):
            client = self.daemon.client("victim")
            client.send("connect", runtime_dir=self.daemon.runtime_dir, name="victim")
            time.sleep(random.uniform(0, 0.02))
            client.kill()
            client.close()
            self.daemon.clients.remove(client)
            if index == 4:
                wait_until(lambda: self.usage()["sessions"] == 0, 60)
                baseline = self.usage()
        self.settles(baseline)


if __name__ == "__main__":
    unittest.main()
