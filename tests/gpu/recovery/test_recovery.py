"""Recovery on GPUs, with and without MPS: engines and clients that are killed or fault, between and inside launches.

What must be right is tested with time to spare; how long it took is held to the goals by figures.WhatItTook, the last class,
so that a slow return and a wrong one are told apart.

Every test has a group "tp" with a rank on GPU 0 (the one that things happen to) and one on GPU 1, a group "solo" of its own
on GPU 1 that must never notice, and a neighbour on each GPU that is no client of Tandem. A test leaves a healthy node
behind: the next one begins by checking that.
"""

import os
import signal
import time
import unittest

from figures import (
    RELEASED_WITHIN_SECONDS,
    measured,
    note,
)
from gpu_node import NOBODY, GpuDaemon, Mps, Neighbour, gpu_count, memory_used, wait_until
from harness import CallFailed, everybody

COUNT = 1 << 16
ALL_REDUCE = {"plan": "ar", "bindings": [["in", 0], ["out", 0]]}


class Recovery:
    mps_wanted = False

    @classmethod
    def setUpClass(cls):
        if gpu_count() < 2:
            raise unittest.SkipTest("needs two GPUs")
        cls.mps = Mps() if cls.mps_wanted else None
        cls.daemon = None

    @classmethod
    def tearDownClass(cls):
        if cls.daemon:
            cls.daemon.stop()
        if cls.mps:
            cls.mps.stop()

    def setUp(self):
        self.neighbours = []
        self.incarnations = {}  # of groups, by name
        cls = type(self)
        if cls.daemon and (
            cls.daemon.process.poll() is not None or any(engine["state"] != "ready" for engine in cls.daemon.engines())
        ):
            cls.daemon.stop()
            cls.daemon = None
        if cls.daemon is None:
            cls.daemon = GpuDaemon(cls.mps)
            note(f"start to all engines ready: {cls.daemon.start_seconds:.2f} s")
        self.uuids = [engine["gpu_uuid"] for engine in self.daemon.engines()]
        self.generations = [engine["generation"] for engine in self.daemon.engines()]
        self.addCleanup(self.clear)

    def clear(self):
        result = self._outcome.result
        failed = [text for test, text in result.failures + result.errors if test.id() == self.id()]
        if failed:  # at once: a run that is cut short prints no summary
            print(f"--- {self.id()}\n{failed[-1]}--- tandemd's log\n{self.daemon.tail(40)}", flush=True)
            if self.mps:
                print(self.mps.log(), flush=True)
        for one in self.neighbours + self.daemon.clients:
            one.close()
        self.neighbours.clear()
        self.daemon.clients.clear()

    # --- actors

    def client(self, name, **arguments):
        client = self.daemon.client(name, **arguments)
        client.connect()
        return client

    def neighbour(self, gpu, **arguments):
        neighbour = Neighbour(self.daemon, gpu, **arguments)
        self.neighbours.append(neighbour)
        return neighbour

    def group(self, name, gpus, **arguments):
        """Clients that have joined, with an all-reduce from and to symmetric memory, and the troublemakers' kernels loaded."""
        clients = [self.client(f"{name}{rank}", **arguments) for rank in range(len(gpus))]
        self.form(clients, name, gpus)
        return clients

    def form(self, clients, name, gpus):
        """The same for clients that are connected."""
        replies = everybody(
            clients,
            "join",
            each=lambda rank: {
                "rank": rank,
                "world": len(gpus),
                "name": name,
                "group": name,
                "job_key": "0123456789abcdef",
                "gpu": self.uuids[gpus[rank]],
                "launch_deadline_ms": 20000,
            },
        )
        self.incarnations[name] = replies[0]["incarnation"]
        everybody(clients, "cuda_prepare")
        for memory in ("in", "out"):
            everybody(clients, "allocate", group=name, memory=memory, shape=[COUNT])
        operand = {"dtype": "f32", "shape": [COUNT], "symmetric": True}
        everybody(
            clients,
            "prepare",
            group=name,
            key="ar",
            plan="ar",
            request={"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]},
        )
        for rank, client in enumerate(clients):
            client.call("fill", memory="in", base=rank + 1, step=1)
        self.check(clients)

    def check(self, clients):
        """One launch, and the sums that it must give: `in` has what group() wrote, whoever has died since."""
        everybody(clients, "launch", **ALL_REDUCE)
        everybody(clients, "sync", deadline_ms=20000)
        everybody(clients, "wait", plan="ar")
        world = len(clients)
        for client in clients:
            values = client.call("read", memory="out", count=128)["values"]
            self.assertEqual(values, [world * (world + 1) / 2 + world * (i % 64) for i in range(128)])

    def stage(self):
        self.tp = self.group("tp", [0, 1])
        # A tensor whose both parts the rank on GPU 1 is to find again, whatever happens to its group.
        everybody(self.tp, "empty", each=lambda rank: {"gpu": self.uuids[rank]}, tensor="kept", shape=[COUNT])
        everybody(self.tp, "rendezvous", group="tp", tensor="kept", memory="kept")
        for rank, client in enumerate(self.tp):
            client.call("fill", memory="kept", base=100 * (rank + 1), step=1)
        self.tp[1].call("peer", memory="kept", peer=0, name="kept of 0")
        self.contents_are_kept(self.tp[1])
        self.solo = self.group("solo", [1])
        self.near, self.far = self.neighbour(0), self.neighbour(1)

    def keep_busy(self, size=8192, times=200):
        """Programs that keep kernels on both GPUs for half a second at least: products, one after another."""
        shapes = {"a": [size, size], "b": [size, size], "c": [2 * size, size]}
        for memory, shape in shapes.items():
            everybody(self.tp, "register", group="tp", memory=f"busy.{memory}", bytes=shape[0] * shape[1] * 2)
        everybody(
            self.tp,
            "prepare",
            group="tp",
            key="busy",
            plan="busy",
            request={
                "op": "all_gather_matmul",
                "operands": [{"role": role, "dtype": "bf16", "shape": shape} for role, shape in shapes.items()],
            },
        )
        everybody(
            self.tp,
            "launch",
            plan="busy",
            stream="busy",
            times=times,
            bindings=[["busy.a", 0], ["busy.b", 0], ["busy.c", 0]],
        )
        time.sleep(0.2)  # into the middle

    # --- expectations

    def others_never_noticed(self):
        """GPU 1's engine, its group and its neighbour."""
        self.check(self.solo)
        self.assertIsNone(self.far.lost())
        self.assertEqual(self.daemon.engine(1)["generation"], self.generations[1])

    def only_the_culprit_fell(self):
        self.assertIsNone(self.near.lost())
        self.assertEqual(self.daemon.engine(0)["generation"], self.generations[0])
        self.others_never_noticed()

    def contents_are_kept(self, survivor):
        """The bytes that stage() wrote to both ranks' parts of a tensor, as the rank on GPU 1 has them mapped: one lies on GPU
        0."""
        for memory, base in (("kept", 200), ("kept of 0", 100)):
            for offset in (0, (COUNT - 128) * 4):
                values = survivor.call("read", memory=memory, offset=offset, count=128)["values"]
                self.assertEqual(values, [base + i % 64 for i in range(128)], memory)

    def joins_again(self, survivor):
        """With a new process on GPU 0 the rank on GPU 1 forms its group anew, in the session that it had; its memory is what
        it was, also for its engine."""
        survivor.call("check")
        incarnation = self.incarnations["tp"]
        self.tp = [self.client("tp0 again"), survivor]
        self.form(self.tp, "tp", [0, 1])
        self.assertEqual(self.incarnations["tp"], incarnation + 1)
        self.contents_are_kept(survivor)
        survivor.call(
            "join", rank=0, world=1, name="alone", group="alone", job_key="0123456789abcdef", gpu=self.uuids[1]
        )
        survivor.call("rendezvous", group="alone", tensor="kept", memory="kept alone")
        operand = {"dtype": "f32", "shape": [COUNT], "symmetric": True}
        survivor.call("allocate", group="alone", memory="copy", shape=[COUNT])
        survivor.call(
            "prepare",
            group="alone",
            key="copy",
            plan="copy",
            request={"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]},
        )
        survivor.call("launch", plan="copy", bindings=[["kept alone", 0], ["copy", 0]])
        survivor.call("sync", deadline_ms=20000)
        survivor.call("wait", plan="copy")
        self.assertEqual(survivor.call("read", memory="copy", count=128)["values"], [200 + i % 64 for i in range(128)])

    def group_broke(self, client, within=3.0):
        """The rank on GPU 1 gets the failure, by an event and by its calls."""
        begun = time.monotonic()

        def told():
            return [event for event in client.call("events")["events"] if event["kind"] == "group_broken"]

        wait_until(told, within, "nobody told the survivor")
        note(f"survivor told after {time.monotonic() - begun:.3f} s")
        self.assertEqual(told()[0]["code"], "UNAVAILABLE", told())
        with self.assertRaises(CallFailed) as caught:
            client.call("launch", **ALL_REDUCE)
            client.call("sync", deadline_ms=20000)
            client.call("wait", plan="ar")
        self.assertEqual(caught.exception.code, "UNAVAILABLE", caught.exception.message)
        return told()[0]["message"]

    def doctor_names(self, pid):
        wait_until(lambda: self.daemon.finding("engine_blocked"), 10, "doctor does not say that the engine waits")
        finding = self.daemon.finding("engine_blocked")[0]
        note(f"doctor: {finding['message']}")
        self.assertIn(f"pid {pid} ", finding["message"])
        self.assertEqual(finding["severity"], "FAILURE")

    def all_of_gpu_0_fell(self, survivor):
        """Under MPS: everything on GPU 0 has lost its context; the engine waits for the last of them, whom doctor names."""
        begun = time.monotonic()
        wait_until(
            lambda: self.daemon.engine(0)["blocked"] or self.daemon.engine(0)["generation"] > self.generations[0],
            10,
            "the engine has not noticed",
        )
        note(f"engine out after {time.monotonic() - begun:.3f} s: {self.daemon.engine(0)['last_exit']}")
        wait_until(lambda: self.near.lost() is not None, 5, "the neighbour has not noticed")
        note(f"the neighbour's error: {self.near.lost()}")
        note(f"the survivor's: {self.group_broke(survivor)}")
        self.doctor_names(self.near.pid)
        self.contents_are_kept(survivor)  # while no engine has GPU 0
        self.others_never_noticed()

    def back_after_the_last_end(self, end):
        """`end` ends the last processes; the engine must be ready soon after."""
        end()
        seconds = self.daemon.wait_engine(0, self.generations[0])
        measured("engine ready after the last affected process's end", seconds)
        self.others_never_noticed()
        self.joins_again(self.tp[1])  # and a new process works on GPU 0

    def back_to(self, before, slack=64):
        """Every process but tandemd's ends, and the GPUs have what they had."""
        self.clear()
        wait_until(
            lambda: all(now <= then + slack for now, then in zip(memory_used(), before)),
            20,
            f"memory does not come back to {before} MiB",
        )
        note(f"memory in use before {before[:2]}, after {memory_used()[:2]} MiB")

    # --- engines

    def test_engine_killed_between_launches(self):
        self.stage()
        begun = time.monotonic()
        os.kill(self.daemon.engine(0)["pid"], signal.SIGKILL)
        self.daemon.wait_engine(0, self.generations[0])
        measured("engine killed to ready", time.monotonic() - begun)
        self.assertIsNone(self.near.lost(), "no kernel was running")
        for client in self.tp:
            wait_until(
                lambda c=client: any(event["kind"] == "engine_restarted" for event in c.call("events")["events"]),
                10,
                "no rank is told of the restart",
            )
        # Each rank gets ABORTED from one call; then its launches belong to the new generation.
        for client, reply in zip(self.tp, everybody(self.tp, "launch", check=False, **ALL_REDUCE)):
            if reply["ok"]:
                client.call("sync", deadline_ms=20000)
                reply = client.call("wait", plan="ar", check=False)
            self.assertEqual(reply.get("code"), "ABORTED", reply)
        self.check(self.tp)  # memory has kept its contents: `in` was written before
        self.contents_are_kept(self.tp[1])
        self.others_never_noticed()

    def test_engine_killed_inside_a_launch(self):
        self.stage()
        self.keep_busy()
        begun = time.monotonic()
        os.kill(self.daemon.engine(0)["pid"], signal.SIGKILL)
        # Under MPS a kernel that runs when its process is killed may take everybody else on the GPU with it: a long one does, short
        # ones were seen to end first. Both are right, as long as all know which it was.
        wait_until(
            lambda: self.near.lost() is not None
            or self.daemon.engine(0)["state"] == "ready"
            and self.daemon.engine(0)["generation"] > self.generations[0],
            20,
            "neither fallen nor back",
        )
        if self.mps and self.near.lost() is not None:
            note(f"neighbour lost {time.monotonic() - begun:.3f} s after the engine's kill -9: {self.near.lost()}")
            self.doctor_names(self.near.pid)
            self.others_never_noticed()
            self.tp[0].close()
            self.group_broke(self.tp[1])
            self.tp[1].call("sync", stream="busy", deadline_ms=20000)  # no stream hangs
            self.back_after_the_last_end(self.near.close)
            return
        self.daemon.wait_engine(0, self.generations[0])
        measured("engine killed in a launch to ready", time.monotonic() - begun)
        for client in self.tp:
            client.call("sync", stream="busy", deadline_ms=20000)  # no stream hangs
            self.assertEqual(client.call("wait", plan="busy", check=False).get("code"), "ABORTED")
        self.assertIsNone(self.near.lost())
        everybody(self.tp, "wait", check=False, plan="ar")
        self.check(self.tp)
        self.others_never_noticed()

    # --- clients

    def test_client_faults(self):
        self.stage()
        reply = self.tp[0].call("cuda_fault", check=False)
        note(f"the culprit's own error: {reply.get('message')}")
        self.assertEqual(reply["code"], "ABORTED")
        if not self.mps:
            self.tp[0].close()
            self.group_broke(self.tp[1])
            self.only_the_culprit_fell()
            self.joins_again(self.tp[1])
            return
        self.all_of_gpu_0_fell(self.tp[1])
        self.tp[0].close()

        def evict():  # ends the neighbour, the last one on GPU 0
            out = self.daemon.ctl("evict", "--gpu", "0").stdout
            note(f"evict: {out.strip()}")
            self.assertIn(str(self.near.pid), out)
            self.assertIsNotNone(self.near.process.wait(5))

        self.back_after_the_last_end(evict)

    def test_client_killed_inside_a_kernel(self):
        self.stage()
        self.tp[0].call("cuda_spin", milliseconds=3000)
        time.sleep(0.1)
        self.tp[0].kill()
        if self.mps:
            self.all_of_gpu_0_fell(self.tp[1])
            self.back_after_the_last_end(self.near.close)
            return
        self.group_broke(self.tp[1])
        self.only_the_culprit_fell()

    def test_client_killed_while_it_waits_with_memory_registered(self):
        before = memory_used()
        self.stage()
        self.tp[0].call("cuda_malloc", allocation="mine", bytes=64 << 20)
        self.tp[0].call("cuda_register", allocation="mine", memory="mine", bytes=64 << 20)
        self.tp[0].call("launch", **ALL_REDUCE)  # its peer never comes: the stream waits on a word
        time.sleep(0.2)
        self.tp[0].kill()
        self.group_broke(self.tp[1])
        self.only_the_culprit_fell()
        self.back_to(before)

    def test_a_third_process_faults(self):
        """One that is no client of Tandem, and another user's."""
        self.stage()
        culprit = self.neighbour(0, uid=NOBODY if os.getuid() == 0 else None)
        note(f"the culprit's own error: {culprit.ask('fault')['name']}")
        if not self.mps:
            self.check(self.tp)
            self.only_the_culprit_fell()
            return
        self.all_of_gpu_0_fell(self.tp[1])
        self.tp[0].close()
        culprit.close()
        self.back_after_the_last_end(self.near.close)

    # --- the daemon

    def test_zz_tandemd_is_killed(self):
        self.stage()
        engines = [engine["pid"] for engine in self.daemon.engines()]
        waiter = self.tp[0]
        waiter.call("launch", **ALL_REDUCE)  # its peer never comes
        self.assertEqual(waiter.call("sync", deadline_ms=50, check=False).get("code"), "DEADLINE_EXCEEDED")
        begun = time.monotonic()
        self.daemon.process.kill()
        self.daemon.process.wait()
        waiter.call("sync", deadline_ms=20000)
        measured("tandemd killed to a waiting stream's going on", time.monotonic() - begun, RELEASED_WITHIN_SECONDS)
        # The client's watchdog or the engine has released it. The next calls return the reason.
        why = "the daemon at .* is gone|the engine ended with its daemon"
        for call, arguments in (("wait", {"plan": "ar"}), ("launch", ALL_REDUCE)):
            reply = waiter.call(call, check=False, **arguments)
            if reply["ok"]:  # a launch that has overtaken the news is let go on in its turn
                waiter.call("sync", deadline_ms=20000)
                reply = waiter.call("wait", plan="ar", check=False)
            self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
            self.assertRegex(reply["message"], why)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 10, "engines outlive tandemd")
        note(f"all engines gone {time.monotonic() - begun:.2f} s after tandemd")
        for client in self.tp + self.solo:
            client.call("sync", deadline_ms=10000)
            self.assertFalse(client.call("launch", check=False, **ALL_REDUCE)["ok"])
        self.assertIsNone(self.near.lost())
        self.assertIsNone(self.far.lost())
        self.clear()
        self.daemon.stop()
        type(self).daemon = GpuDaemon(self.mps)
        self.check(self.group("tp", [0, 1]))

    # --- users

    @unittest.skipIf(os.getuid() != 0, "needs root")
    def test_a_client_of_another_user(self):
        clients = self.group("tp", [0, 1], uid=NOBODY)
        session = self.daemon.ctl_json("sessions")["sessions"][0]
        self.assertEqual(session["uid"], NOBODY)
        plan = self.daemon.ctl_json("plans")["plans"][0]["info"]
        note(f"placement: {plan['placement']}")
        if self.mps:
            self.assertEqual(session["mps"], self.mps.pipe)
            self.assertFalse(plan["slow_placement"])
            self.assertFalse(self.daemon.finding("mps_sharing"))
        else:
            self.assertTrue(plan["slow_placement"])
            self.assertEqual(self.daemon.finding("mps")[0]["severity"], "WARNING")
        self.check(clients)


class RecoveryWithMps(Recovery, unittest.TestCase):
    mps_wanted = True

    def test_a_client_outside_mps_is_told_what_it_costs(self):
        outside = self.daemon.client("outside", env={"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})
        outside.connect()
        for strictness, ok in (("error", False), ("warn", True)):
            reply = outside.call(
                "join",
                check=False,
                rank=0,
                world=1,
                name="out",
                group="out",
                job_key="0123456789abcdef",
                gpu=self.uuids[0],
                on_slow_placement=strictness,
            )
            self.assertEqual(reply["ok"], ok, reply)
        self.assertEqual(len(self.daemon.finding("mps_sharing")), 1)


class RecoveryWithoutMps(Recovery, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main(verbosity=2)
