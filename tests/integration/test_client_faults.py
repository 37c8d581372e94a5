"""Clients that die, stop, or never come: the others learn it in time and by name, and nobody else is disturbed."""

import signal
import time
import unittest

from harness import TandemTest, everybody, needs_gpus, own_gpus_only, wait_until

MOST_RANKS = 3

# Makes all of a client's streams share one hardware queue.
ONE_QUEUE = {"TANDEM_HOST_QUEUES": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}

AR = {
    "op": "all_reduce",
    "operands": [{"role": "input", "dtype": "f32", "shape": [256]}, {"role": "output", "dtype": "f32", "shape": [256]}],
}


class ClientFaults(TandemTest):
    shares = True

    def bystanders(self):
        """Another job on the same GPUs, which must never notice anything."""
        clients = self.group(2, name="bystanders", job_key="another-job-key-1")
        self.all_reduce_plan(clients, group="bystanders")
        self.check_all_reduce(clients)
        return clients

    def assertNamed(self, reply, rank, pid=None):
        self.assertEqual(reply["code"], "UNAVAILABLE", reply)
        self.assertIn(f"rank {rank}", reply["message"])
        if pid is not None:
            self.assertEqual((reply["detail"]["ranks"], reply["detail"]["pid"]), ([rank], pid), reply)

    def members(self, name):
        """The ranks that have come to the group, or to the join that is to make it."""
        groups = [group for group in self.daemon.ctl_json("groups").get("groups", []) if group["name"] == name]
        return sorted(member.get("rank", 0) for group in groups for member in group.get("members", []))

    def test_killed_while_another_waits_in_each_call(self):
        self.killed_while_others_wait(2, "rendezvous", "prepare", "launch")

    @needs_gpus(3)
    def test_killed_while_others_wait_in_each_call(self):
        # Somebody must be waiting in join besides the one that is killed and the one that never comes.
        self.killed_while_others_wait(3, "join", "rendezvous", "prepare", "launch")

    def killed_while_others_wait(self, world, *phases):
        bystanders = self.bystanders()
        for phase in phases:
            with self.subTest(phase=phase):
                clients = [self.daemon.client(f"rank{r}") for r in range(world)]
                for client in clients:
                    client.connect()
                victim, others = clients[-1], clients[:-1]
                if phase == "join":
                    # The victim has asked to join and dies before the third comes.
                    call = victim.send("join", rank=2, world=3, name="g" + phase)
                    waiting = [clients[0].send("join", rank=0, world=3, name="g" + phase, deadline_ms=50000)]
                    others = clients[:1]
                else:
                    self.join(clients, name="g" + phase, group="tp")
                    if phase == "rendezvous":
                        waiting = [c.send("allocate", memory="t", shape=[64], group="tp") for c in others]
                    elif phase == "prepare":
                        waiting = [c.send("prepare", key="k", request=AR) for c in others]
                    else:
                        self.all_reduce_plan(clients)
                        for client in others:
                            client.call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
                        waiting = [c.send("sync", deadline_ms=50000) for c in others]
                if phase == "join":  # one that never came is another test
                    wait_until(lambda phase=phase: self.members("g" + phase) == [0, 2], 60, "the joins do not arrive")
                else:
                    time.sleep(0.2)
                start = time.monotonic()
                victim.kill()
                for client, call in zip(others, waiting):
                    reply = client.reply(call, check=False)
                    self.assertLess(time.monotonic() - start, 25, "the survivors wait too long")
                    if phase == "launch":
                        self.assertTrue(reply["ok"], reply)
                        reply = client.call("wait", plan="ar", check=False)
                    self.assertNamed(reply, world - 1, victim.process.pid)
                self.check_all_reduce(bystanders)
                for client in clients:
                    client.close()

    def test_killed_after_each_call_leaves_nothing(self):
        bystanders = self.bystanders()
        baseline = self.daemon.ctl_json("stats")
        steps = [
            lambda c: c.connect(),
            lambda c: c.call("join", rank=0, world=1, name="solo"),
            lambda c: c.call("allocate", memory="t", group="solo", shape=[100000]),
            lambda c: c.call("register", memory="ar.in", group="solo", bytes=1024),
            lambda c: c.call("prepare", key="ar", group="solo", plan="ar", request=AR),
            lambda c: c.call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.in", 0]], check=False),
        ]
        for last in range(len(steps)):
            client = self.daemon.client("victim")
            for step in steps[: last + 1]:
                step(client)
            client.kill()
        keys = ("sessions", "groups", "plans", "segment_bytes")
        wait_until(
            lambda: all(self.daemon.ctl_json("stats")[k] == baseline[k] for k in keys),
            60,
            "the daemon keeps what dead clients had",
        )
        self.check_all_reduce(bystanders)

    def test_memory_keeps_its_contents_when_its_group_breaks(self):
        count = 1000
        gpus = [engine["gpu_uuid"] for engine in self.daemon.engines()][:2]
        clients = self.group(2, gpus=gpus)
        everybody(clients, "empty", each=lambda rank: {"gpu": gpus[rank]}, tensor="t", shape=[count])
        everybody(clients, "rendezvous", tensor="t", memory="t")
        for rank, client in enumerate(clients):
            client.call("fill", memory="t", base=100 * (rank + 1), step=1)
        survivor = clients[1]
        survivor.call("peer", memory="t", peer=0, name="t of 0")

        def both_are_kept():
            for memory, base in (("t", 200.0), ("t of 0", 100.0)):
                values = survivor.call("read", memory=memory, count=count)["values"]
                self.assertEqual(values, [base + i % 64 for i in range(count)], memory)

        both_are_kept()
        clients[0].kill()
        wait_until(lambda: any(event["kind"] == "group_broken" for event in survivor.call("events")["events"]), 60)
        survivor.call("check")
        both_are_kept()
        again = self.daemon.client("rank0 again")
        again.connect()
        self.join([again, survivor], group="again", gpus=gpus)
        self.all_reduce_plan([again, survivor], group="again")
        self.check_all_reduce([again, survivor])
        both_are_kept()
        # The survivor's engine has its part too: the same tensor in another group.
        survivor.call("join", world=1, rank=0, name="alone", job_key=self.job_key, gpu=gpus[1])
        survivor.call("rendezvous", group="alone", tensor="t", memory="t alone")
        survivor.call("allocate", group="alone", memory="copy", shape=[count])
        operand = {"dtype": "f32", "shape": [count], "symmetric": True}
        survivor.call(
            "prepare",
            group="alone",
            key="copy",
            plan="copy",
            request={"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]},
        )
        survivor.call("launch", plan="copy", bindings=[["t alone", 0], ["copy", 0]])
        survivor.call("sync")
        survivor.call("wait", plan="copy")
        values = survivor.call("read", memory="copy", count=count)["values"]
        self.assertEqual(values, [200.0 + i % 64 for i in range(count)])

    def test_a_broken_group_opens_its_next_incarnation(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        clients[1].kill()
        wait_until(
            lambda: any(e["kind"] in ("rank_lost", "group_broken") for e in clients[0].call("events")["events"]),
            60,
            "no event tells of the loss",
        )
        reply = clients[0].call("prepare", key="other", request=AR, check=False)
        self.assertNamed(reply, 1)
        successor = self.daemon.client("successor")
        successor.connect()
        replies = self.join([clients[0], successor])
        self.assertEqual([r["incarnation"] for r in replies], [2, 2])
        self.all_reduce_plan([clients[0], successor], key="again")
        self.check_all_reduce([clients[0], successor], key="again")

    def test_a_clean_end_is_no_death(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        clients[1].call("leave")
        clients[1].call("detach")
        wait_until(lambda: any(e["kind"] == "rank_left" for e in clients[0].call("events")["events"]), 60)
        self.assertFalse(any(e["kind"] == "rank_lost" for e in clients[0].call("events")["events"]))
        reply = clients[0].call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], check=False)
        if reply["ok"]:
            clients[0].call("sync")
            reply = clients[0].call("wait", plan="ar", check=False)
        self.assertFalse(reply["ok"], "a launch after a rank has left must fail")
        self.assertIn("rank 1", reply["message"])

    def test_a_dropped_client_is_no_death(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        clients[1].send("exit")  # without leave and detach: the client goes, then the process
        clients[1].process.wait(60)
        wait_until(lambda: any(e["kind"] == "rank_left" for e in clients[0].call("events")["events"]), 60)
        self.assertFalse(any(e["kind"] == "rank_lost" for e in clients[0].call("events")["events"]))
        failure = self.assertFails("UNAVAILABLE", clients[0].call, "prepare", key="other", request=AR)
        self.assertIn("rank 1", failure.message)
        self.assertIn("has left", failure.message)

    @needs_gpus(3)
    def test_all_ranks_hear_of_the_rank_that_never_comes(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(3)]
        for client in clients:
            client.connect()
        join = {"world": 3, "name": "late", "job_key": self.job_key, "deadline_ms": 4000}
        calls = []
        for rank, client in enumerate(clients[:2]):
            calls.append(client.send("join", rank=rank, **join))
            time.sleep(0.2)
        replies = [client.reply(call, check=False) for client, call in zip(clients, calls)]
        start = time.monotonic()
        replies.append(clients[2].call("join", rank=2, check=False, **{**join, "deadline_ms": 50000}))
        self.assertLess(time.monotonic() - start, 25, "the late rank waits for ranks that have gone")
        for reply in replies:
            self.assertEqual(reply["code"], "DEADLINE_EXCEEDED", reply)
            self.assertEqual(reply["message"], replies[0]["message"])
            self.assertIn("rank 2 did not join within", reply["message"])
            self.assertEqual((reply["detail"]["reason"], reply["detail"]["who"]), ("RANK_LATE", "rank 2"))
        self.join(clients, name="late")

    def test_a_rank_that_never_comes(self):
        first, second = self.daemon.client("rank0"), self.daemon.client("rank1")
        first.connect()
        second.connect()
        failure = self.assertFails(
            "DEADLINE_EXCEEDED", first.call, "join", rank=0, world=2, name="late", deadline_ms=400
        )
        self.assertIn("rank 1", failure.message)
        clients = [first, second]
        self.join(clients)
        failure = self.assertFails("DEADLINE_EXCEEDED", first.call, "prepare", key="k", request=AR, deadline_ms=400)
        self.assertIn("rank 1", failure.message)
        failure = self.assertFails("DEADLINE_EXCEEDED", first.call, "allocate", memory="t", shape=[8], deadline_ms=400)
        self.assertIn("rank 1", failure.message)

    def test_a_rank_that_never_launches(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        clients[0].call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], launch_deadline_ms=6000)
        wait_until(
            lambda: [1] in [e["late_ranks"] for e in self.daemon.ctl_json("queue")["entries"]],
            60,
            "tandemctl queue does not say who is late",
        )
        clients[0].call("sync")
        failure = self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "wait", plan="ar")
        self.assertIn("rank 1", failure.message)

    def test_a_stopped_client_holds_up_nobody_else(self):
        bystanders = self.bystanders()
        clients = self.group(2)
        self.all_reduce_plan(clients)
        clients[1].kill(signal.SIGSTOP)
        clients[0].call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], launch_deadline_ms=1000)
        for _ in range(5):
            self.check_all_reduce(bystanders)
        clients[0].call("sync")
        self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "wait", plan="ar")
        clients[1].kill(signal.SIGCONT)
        clients[1].call("check")

    def test_stopped_in_control_calls(self):
        bystanders = self.bystanders()
        clients = self.group(2)
        self.all_reduce_plan(clients)
        clients[1].kill(signal.SIGSTOP)
        for call, arguments in (("prepare", {"key": "k", "request": AR}), ("allocate", {"memory": "t", "shape": [64]})):
            failure = self.assertFails("DEADLINE_EXCEEDED", clients[0].call, call, deadline_ms=500, **arguments)
            self.assertIn("rank 1", failure.message)
        self.check_all_reduce(bystanders)
        clients[1].kill(signal.SIGCONT)
        self.check_all_reduce(clients)

    def test_a_matmul_that_waits_for_chunks_ends_with_its_group(self):
        bystanders = self.bystanders()
        clients = self.group(2)
        shapes = {"a": [8, 4], "b": [4, 4], "c": [8, 4], "chunk_signals": [2]}
        for role, shape in shapes.items():
            everybody(clients, "register", memory=role, bytes=4 * shape[0] * (shape[1] if len(shape) > 1 else 1))
        everybody(
            clients,
            "prepare",
            key="async",
            plan="async",
            request={
                "op": "async_input_matmul",
                "operands": [
                    {"role": role, "dtype": "i32" if role == "chunk_signals" else "f32", "shape": shape}
                    for role, shape in shapes.items()
                ],
            },
        )
        # Nobody ever sets the signals.
        everybody(clients, "launch", plan="async", bindings=[[role, 0] for role in shapes])
        wait_until(lambda: any(e.get("awaits") for e in self.daemon.ctl_json("queue")["entries"]), 60)
        clients[1].kill()
        clients[0].call("sync", deadline_ms=50000)
        self.assertNamed(clients[0].call("wait", plan="async", check=False), 1)
        self.check_all_reduce(bystanders)

    def test_opposite_orders_on_one_hardware_queue_end_by_their_deadline(self):
        clients = [self.daemon.client(f"rank{rank}", env=ONE_QUEUE) for rank in range(2)]
        for client in clients:
            client.connect()
        for group in "ab":
            self.join(clients, name=group)
            self.all_reduce_plan(clients, key=group, group=group)
            self.check_all_reduce(clients, key=group)
        for client, order in zip(clients, ("ab", "ba")):
            for group in order:
                client.call(
                    "launch",
                    plan=group,
                    stream=f"s{group}",
                    launch_deadline_ms=1000,
                    bindings=[[f"{group}.in", 0], [f"{group}.out", 0]],
                )
        replies = []
        for group in "ab":
            everybody(clients, "sync", stream=f"s{group}", deadline_ms=50000)
            replies += everybody(clients, "wait", plan=group, check=False)
        failed = [reply for reply in replies if not reply["ok"]]
        self.assertTrue(failed, "streams that share a queue cannot have crossed")
        for reply in failed:
            self.assertEqual(reply["code"], "DEADLINE_EXCEEDED", reply)
            self.assertRegex(reply["message"], "rank [01]")
        for group in "ab":
            everybody(clients, "renew", group=group)
            self.check_all_reduce(clients, key=group)

    def test_killed_mid_launch_under_load(self):
        bystanders = self.bystanders()
        clients = self.group(3)
        self.all_reduce_plan(clients, count=65536)
        everybody(clients, "launch", plan="ar", times=20, bindings=[["ar.in", 0], ["ar.out", 0]])
        # More than any machine ends in the pause: the remaining ranks launch until they get the failure.
        calls = [c.send("launch", plan="ar", times=10**7, bindings=[["ar.in", 0], ["ar.out", 0]]) for c in clients]
        time.sleep(0.05)
        clients[0].kill()
        for client, call in zip(clients[1:], calls[1:]):
            self.assertNamed(client.reply(call, check=False), 0)
            client.call("sync", deadline_ms=50000)
        self.check_all_reduce(bystanders)

    @own_gpus_only  # NCCL's
    def test_killed_while_collectives_of_nccl_run(self):
        # So many bytes that a collective is under way nearly all the time.
        bystanders = self.bystanders()
        clients = self.group(2, options={"nccl.min_ctas": "2", "nccl.max_ctas": "4"})
        self.assertEqual(self.all_reduce_plan(clients, count=1 << 20, algorithm="nccl")[0]["plan"]["algorithm"], "nccl")
        self.check_all_reduce(clients)
        bindings = [["ar.in", 0], ["ar.out", 0]]
        # More than any machine ends: the remaining rank launches until it gets the failure.
        calls = [c.send("launch", plan="ar", times=10**7, bindings=bindings) for c in clients]
        wait_until(lambda: any(e["state"] == "started" for e in self.daemon.ctl_json("queue")["entries"]), 60)
        clients[1].kill()
        self.assertNamed(clients[0].reply(calls[0], check=False), 1)
        clients[0].call("sync", deadline_ms=50000)
        self.check_all_reduce(bystanders)
        # The next incarnation has another communicator.
        successor = self.daemon.client("successor")
        successor.connect()
        clients[1] = successor
        self.join(clients, options={"nccl.min_ctas": "2", "nccl.max_ctas": "4"})
        self.all_reduce_plan(clients, count=1 << 20, key="again", algorithm="nccl")
        self.check_all_reduce(clients, key="again")

    @own_gpus_only
    def test_an_option_of_nccl_that_is_none_is_refused_by_its_name(self):
        for options, words in (
            ({"nccl.min_cta": "2"}, "there is no group option 'nccl.min_cta'"),
            ({"nccl.min_ctas": "two"}, "group option 'nccl.min_ctas' is no number: 'two'"),
            ({"nccl.blocking": "2"}, "group option 'nccl.blocking' is 0 or 1"),
        ):
            clients = self.group(2, name=words, group="tp", options=options)
            everybody(clients, "register", memory="ar.in", bytes=1024)
            for reply in self.prepare_all_reduce(clients, algorithm="nccl", check=False):
                self.assertEqual(reply.get("code"), "INVALID_ARGUMENT", reply)
                self.assertIn(words, reply["message"])
            # A plan without a communicator is not refused.
            self.all_reduce_plan(clients, key="other", algorithm="one_shot")
            self.check_all_reduce(clients, key="other")


if __name__ == "__main__":
    unittest.main()
