"""Clients that break the protocol: one clear error to them, and nobody else notices.

Every test has a bystander group on the same GPUs. At its end the bystanders' all-reduce must still be right, tandemd
and all engines must be the same processes, and tandemd's descriptors must be back where they were.
"""

import os
import subprocess
import unittest

from harness import BIN, CUDA, Client, Daemon, TandemTest, host_only, wait_until

# Orphaned transfers are closed after 5 s; half-open connections too.
ORPHANS = 60


class Rogue(Client):
    def __init__(self, daemon, name="rogue", user=None):
        self.daemon = daemon
        self.name = name
        self.next_id = 0
        self.replies = {}
        self.buffer = b""
        self.process = subprocess.Popen(
            [os.path.join(BIN, "tandem-test-rogue")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        daemon.clients.append(self)

    def open(self):
        """The lease socket, not attached."""
        return self.call("connect", runtime_dir=self.daemon.runtime_dir)

    def attach(self, **arguments):
        reply = self.call("attach", runtime_dir=self.daemon.runtime_dir, **arguments)
        self.gpus = reply["gpus"]
        return reply

    def rpc(self, method, request=None, **arguments):
        return self.call("call", method=method, request=request or {}, **arguments)["reply"]

    def own_group(self, tensor_bytes=1 << 16):
        """A separate group on GPU 0, with a symmetric tensor and a channel, all mapped."""
        self.group_id = self.rpc(
            "JoinGroup",
            {"job_key": "cm9ndWUtam9iLWtleS0wMQ==", "name": "rogue", "world_size": 1, "gpu_uuid": self.gpus[0]},
        )["group_id"]
        tensor = self.rpc("Empty", {"spec": {"dtype": 7, "shape": [tensor_bytes]}, "gpu_uuid": self.gpus[0]})
        if not CUDA:  # a GPU's memory is mapped by its driver, and the rogue has none
            self.call("map_tensor", tensor_id=int(tensor["tensor_id"]), group_id=int(self.group_id))
        self.call("map_channel", gpu=self.gpus[0], entries=16)


class RogueTest(TandemTest):
    gpus = 2

    def setUp(self):
        super().setUp()
        self.bystanders = self.group(2, name="bystanders", job_key="another-job-key-1")
        self.all_reduce_plan(self.bystanders, group="bystanders")
        self.check_all_reduce(self.bystanders)
        self.pids = (self.daemon.process.pid, sorted(self.daemon.engine_pids()))
        # gRPC opens a few descriptors on the first calls: an honest session first.
        self.rogue().attach()
        self.daemon.clients.pop().close()
        self.sessions(2)
        self.baseline = self.daemon.descriptors()

    def rogue(self):
        return Rogue(self.daemon)

    def sessions(self, count):
        wait_until(
            lambda: len(self.daemon.ctl_json("sessions").get("sessions", [])) == count,
            60,
            f"there are not {count} sessions",
        )

    def assertUnharmed(self):
        self.check_all_reduce(self.bystanders)
        self.assertIsNone(self.daemon.process.poll())
        self.assertEqual((self.daemon.process.pid, sorted(self.daemon.engine_pids())), self.pids)

    def assertGone(self, *rogues, timeout=ORPHANS):
        """Once the rogues have ended, nothing of them is left."""
        for rogue in rogues:
            rogue.close()
        self.assertUnharmed()
        self.sessions(2)
        wait_until(
            lambda: self.daemon.descriptors() <= self.baseline,
            timeout,
            f"descriptors: {self.daemon.descriptors()}, {self.baseline} before",
        )

    def assertRefused(self, rogue, code="INVALID_ARGUMENT"):
        """One refusal on the lease, then its end."""
        failure = self.assertFails(code, rogue.call, "read_lease")
        self.assertTrue(failure.message)
        self.assertFails("UNAVAILABLE", rogue.call, "read_lease")
        return failure


class Tokens(RogueTest):
    def test_forged_missing_and_malformed_tokens(self):
        rogue = self.rogue()
        token = rogue.attach()["token"]
        forged = ("0" if token[0] != "0" else "1") + token[1:]
        for bad, reason in (
            (forged, "SESSION_LOST"),
            ("", "NO_TOKEN"),
            ("12", "BAD_TOKEN"),
            ("zz" * 16, "BAD_TOKEN"),
            ("a" * 4000, "BAD_TOKEN"),
        ):
            with self.subTest(token=bad[:32]):
                for method in ("Empty", "JoinGroup", "Launch", "Detach"):
                    failure = self.assertFails("UNAUTHENTICATED", rogue.rpc, method, token=bad)
                    self.assertEqual(failure.detail["reason"], reason)
        self.assertFails("NOT_FOUND", rogue.rpc, "Free", {"tensor_id": 1})  # the session itself lives on
        self.assertGone(rogue)

    def test_a_token_of_an_earlier_daemon(self):
        earlier = Daemon(1)
        try:
            token = Rogue(earlier).attach()["token"]
        finally:
            earlier.stop()
        rogue = self.rogue()
        rogue.attach()
        failure = self.assertFails("UNAUTHENTICATED", rogue.rpc, "Empty", token=token)
        self.assertEqual(failure.detail["reason"], "SESSION_LOST")
        self.assertGone(rogue)

    def test_the_ids_of_others(self):
        tensor = self.bystanders[0].call("empty", tensor="mine", shape=[16])["tensor_id"]
        rogue = self.rogue()
        rogue.attach()
        rogue.own_group()
        self.assertFails("NOT_FOUND", rogue.rpc, "Free", {"tensor_id": tensor})
        for number in range(1, 64):
            for method, field in (
                ("LeaveGroup", "group_id"),
                ("ReleasePlan", "plan_id"),
                ("CloseChannel", "channel_id"),
                ("Deregister", "registration_id"),
            ):
                reply = rogue.call("call", method=method, request={field: number}, check=False)
                if not reply["ok"]:
                    self.assertEqual(reply["code"], "NOT_FOUND", (method, number, reply))
        self.assertGone(rogue)


class Lease(RogueTest):
    def test_protocol_versions(self):
        for low, high, code in (
            (3, 9, "FAILED_PRECONDITION"),
            (0, 0, "FAILED_PRECONDITION"),
            (2**32 - 1, 2**32 - 1, "FAILED_PRECONDITION"),
            (5, 1, "INVALID_ARGUMENT"),
        ):
            rogue = self.rogue()
            failure = self.assertFails(code, rogue.attach, min=low, max=high)
            self.assertIn("protocol", failure.message)
            self.assertGone(rogue)

    def test_malformed_packets(self):
        header = "4d444e54" + "00000000"  # magic, the body is inline
        for name, packet in (
            ("random", {"bytes": 300}),
            ("no header", {"hex": "00"}),
            ("half a header", {"hex": header[:16]}),
            ("length that lies", {"hex": header + "ff00000000000000" + "0a00"}),
            ("length that overflows", {"hex": header + "f" * 16}),
            ("no body in a memfd", {"hex": "4d444e54" + "01000000" + "1000000000000000"}),
            ("body in a socket", {"hex": "4d444e54" + "01000000" + "1000000000000000", "fds": 1}),
            ("longer than a packet", {"bytes": 60000}),
            ("bad protobuf", {"hex": "ffffffff", "framed": True}),
            ("nothing in it", {"hex": "", "framed": True}),
            ("too many descriptors", {"bytes": 16, "fds": 250}),
        ):
            for attached in (False, True):
                with self.subTest(packet=name, attached=attached):
                    rogue = self.rogue()
                    rogue.attach() if attached else rogue.open()
                    rogue.call("raw_lease", **packet)
                    self.assertRefused(rogue)
                    rogue.close()
        self.assertGone()

    def test_descriptors_before_attach_and_attach_twice(self):
        rogue = self.rogue()
        rogue.open()
        rogue.call("send_transfer", count=3)
        self.assertRefused(rogue, "FAILED_PRECONDITION")
        self.assertGone(rogue)

    def test_half_open_connections(self):
        rogue = self.rogue()
        rogue.call("half_open", runtime_dir=self.daemon.runtime_dir, count=100)
        rogue.call("half_open", grpc=True, count=100)
        self.assertUnharmed()
        honest = self.daemon.client("honest")
        honest.connect()
        honest.close()
        self.sessions(2)
        # Those of the lease socket end by the daemon; those of gRPC are its own.
        wait_until(lambda: self.daemon.descriptors() <= self.baseline + 110, ORPHANS, "the leases stay open")
        self.assertGone(rogue)


class Transfers(RogueTest):
    def register(self, rogue, transfer_id=1, chunks=(4096,)):
        return rogue.call(
            "call",
            method="RegisterTensor",
            check=False,
            request={
                "gpu_uuid": rogue.gpus[0],
                "bytes": sum(chunks),
                "transfer_id": transfer_id,
                "chunk_bytes": list(chunks),
            },
        )

    @host_only("registers the host's memory")
    def test_too_many_descriptors(self):
        rogue = self.rogue()
        rogue.attach()
        rogue.call("send_transfer", transfer_id=1, count=5, total=1025)
        reply = self.register(rogue, 1, [4096] * 1025)
        self.assertEqual((reply.get("code"), reply["detail"]["reason"]), ("INVALID_ARGUMENT", "TOO_MANY_DESCRIPTORS"))
        self.assertEqual(reply["detail"]["usage"], 1025)
        # The session goes on, with one descriptor, and with more than a message carries to the engine.
        rogue.call("send_transfer", transfer_id=2, count=1)
        self.assertTrue(self.register(rogue, 2)["ok"])
        rogue.call("send_transfer", transfer_id=3, count=200)
        reply = self.register(rogue, 3, [4096] * 200)
        self.assertTrue(reply["ok"], reply)
        self.assertGone(rogue)

    def test_orphans_are_closed(self):
        rogue = self.rogue()
        rogue.attach()
        held = self.daemon.descriptors()
        for transfer in range(10):
            rogue.call("send_transfer", transfer_id=transfer, count=20)
        for transfer in range(10, 20):  # never complete
            rogue.call("send_transfer", transfer_id=transfer, count=5, total=20)
        wait_until(lambda: self.daemon.descriptors() >= held + 200, 60, "the descriptors do not arrive")
        self.assertUnharmed()
        wait_until(lambda: self.daemon.descriptors() <= held, ORPHANS, "orphans stay open")
        reply = rogue.call("call", method="Free", request={"tensor_id": 1}, check=False)
        self.assertEqual(reply["code"], "NOT_FOUND")  # the session goes on
        self.assertGone(rogue)

    @host_only("registers the host's memory")
    def test_a_flood_of_transfers(self):
        # One transfer of 60 more than the quota, from three sessions of one user.
        quota = 4096
        rogues = [self.rogue() for _ in range(3)]
        for rogue in rogues:
            rogue.attach()
            for transfer in range(64):
                rogue.call("send_transfer", transfer_id=transfer, count=60, bytes=64)
        self.assertLess(self.daemon.descriptors() - self.baseline, quota + 60)
        reply = self.register(rogues[2], 63, [64] * 60)
        self.assertEqual((reply["code"], reply["detail"]["reason"]), ("RESOURCE_EXHAUSTED", "QUOTA_DESCRIPTORS"), reply)
        self.assertEqual(reply["detail"]["limit"], quota)
        self.assertUnharmed()
        # Once the orphans have been closed, there is room again.
        wait_until(lambda: self.daemon.descriptors() < self.baseline + 60, ORPHANS, "orphans stay open")
        # Another number: the refusal of the earlier ones is remembered as long as descriptors are, and they came last.
        rogues[2].call("send_transfer", transfer_id=100, count=1)
        reply = self.register(rogues[2], 100)
        self.assertTrue(reply["ok"], reply)
        self.assertGone(*rogues)

    @host_only("registers the host's memory")
    def test_claimed_twice(self):
        rogue = self.rogue()
        rogue.attach()
        rogue.call("send_transfer", transfer_id=1)
        self.assertTrue(self.register(rogue)["ok"])
        again = self.register(rogue)
        self.assertEqual((again["code"], again["detail"]["reason"]), ("NOT_FOUND", "NO_TRANSFER"))
        self.assertGone(rogue)

    def test_parts_that_contradict_each_other(self):
        rogue = self.rogue()
        rogue.attach()
        for transfer, second in (
            (1, {"total": 5}),
            (2, {"index": 0, "total": 4}),
            (3, {"index": 2**32 - 1, "total": 4}),
        ):
            rogue.call("send_transfer", transfer_id=transfer, count=2, total=4)
            rogue.call("send_transfer", transfer_id=transfer, count=2, **second)
            reply = self.register(rogue, transfer, [4096] * 4)
            self.assertEqual(reply["code"], "INVALID_ARGUMENT", reply)
            self.assertIn(f"transfer {transfer}", reply["message"])
        self.assertGone(rogue)


class Calls(RogueTest):
    def test_malformed_protobuf(self):
        rogue = self.rogue()
        rogue.attach()
        for method in ("JoinGroup", "Prepare", "RegisterTensor", "Launch", "Empty"):
            for body in ("ff" * 64, "0a" + "ff" * 9 + "01", "12ffffff7f00"):
                reply = rogue.call("call", method=method, hex=body, check=False)
                self.assertFalse(reply["ok"])
                self.assertIn(reply["code"], ("INTERNAL", "INVALID_ARGUMENT", "UNIMPLEMENTED"), reply)
        self.assertFails("UNIMPLEMENTED", rogue.call, "call", method="NoSuchMethod")
        reply = rogue.call("call", method="Empty", hex="00" * (5 << 20), check=False)
        self.assertEqual(reply["code"], "RESOURCE_EXHAUSTED", reply)
        self.assertGone(rogue)

    def test_fields_that_lie(self):
        rogue = self.rogue()
        rogue.attach()
        huge = 2**62
        gpu = rogue.gpus[0]
        for method, request in (
            ("Empty", {"gpu_uuid": gpu, "spec": {"shape": [huge, huge]}}),
            ("Empty", {"gpu_uuid": gpu, "spec": {"shape": [4], "strides": [-1]}}),
            ("Empty", {"gpu_uuid": gpu, "spec": {"dtype": 200, "shape": [4]}}),
            ("OpenChannel", {"gpu_uuid": gpu, "entries": 3}),
            ("OpenChannel", {"gpu_uuid": gpu, "entries": 2**31}),
            ("JoinGroup", {"job_key": "", "name": "x", "world_size": 1, "gpu_uuid": gpu}),
            (
                "JoinGroup",
                {"job_key": "cm9ndWUtam9iLWtleS0wMQ==", "name": "a\u0007b", "world_size": 1, "gpu_uuid": gpu},
            ),
            ("RegisterTensor", {"gpu_uuid": gpu, "bytes": 1, "ipc_handle": "AAAA"}),
        ):
            with self.subTest(method=method, request=request):
                failure = self.assertFails("INVALID_ARGUMENT", rogue.rpc, method, request)
                self.assertTrue(failure.detail["field"])
        self.assertGone(rogue)

    def test_calls_that_pile_up(self):
        rogue = self.rogue()
        rogue.attach()
        rogue.call("pile_up", count=300, gpu=rogue.gpus[0])
        self.assertUnharmed()
        honest = self.daemon.client("honest")
        honest.connect()
        honest.call("join", name="honest", world=1, rank=0)
        honest.close()
        self.assertGone(rogue)

    def test_a_client_that_never_reads(self):
        rogue = self.rogue()
        rogue.attach()
        group = rogue.rpc(
            "JoinGroup",
            {"job_key": "cm9ndWUtam9iLWtleS0wMQ==", "name": "deaf", "world_size": 1, "gpu_uuid": rogue.gpus[0]},
        )["group_id"]
        refused = None
        for _ in range(2000):
            spec = {"spec": {"dtype": 7, "shape": [64]}, "gpu_uuid": rogue.gpus[0]}
            tensor = rogue.rpc("Empty", spec)["tensor_id"]
            reply = rogue.call(
                "call", method="Rendezvous", check=False, request={"tensor_id": tensor, "group_id": group}
            )
            if not reply["ok"]:
                refused = reply
                break
        self.assertIsNotNone(refused, "the daemon keeps everything that a client does not read")
        self.assertEqual(refused["code"], "RESOURCE_EXHAUSTED", refused)
        self.assertGone(rogue, timeout=60)


class SharedMemory(RogueTest):
    MAPPED = ("ring", "words") if CUDA else ("ring", "words", "tensor")

    def start(self):
        rogue = self.rogue()
        rogue.attach()
        rogue.own_group()
        return rogue

    def assertEnded(self, rogue, word):
        wait_until(lambda: rogue.call("words")["released"], 60, "the channel is not ended")
        self.assertIn(word, rogue.call("words")["why"])

    def test_entries_that_lie(self):
        for kind, word in (
            ("sequence", "sequence"),
            ("bindings", "bindings"),
            ("entry_kind", "sequence"),
            ("slot", "captured slot"),
        ):
            with self.subTest(kind=kind):
                rogue = self.start()
                rogue.call("push", kind=kind)
                self.assertEnded(rogue, word)
                self.assertGone(rogue)

    def test_garbage_entries(self):
        rogue = self.start()
        rogue.call("push", kind="random", count=1000)
        self.assertEnded(rogue, "the ring")
        self.assertGone(rogue)

    def test_absurd_indexes(self):
        for producer in (2**64 - 1, 2**63, 17):
            with self.subTest(producer=producer):
                rogue = self.start()
                rogue.call("set_header", producer=producer)
                self.assertEnded(rogue, "the ring")
                self.assertGone(rogue)

    def test_captures_without_end(self):
        # Each entry is good, and there is always one more.
        rogue = self.start()
        rogue.call("push", kind="arm", count=16)
        rogue.call("set_header", producer=2**64 - 1)
        self.assertEnded(rogue, "claims more entries")
        self.assertGone(rogue)

    def test_a_full_ring(self):
        rogue = self.start()
        # The streams never reach them: the engine keeps what it has taken, the ring fills, and nobody waits for it.
        pushed = 0
        for _ in range(20):
            pushed += rogue.call("push", kind="launch", count=100, full=True)["pushed"]
            self.check_all_reduce(self.bystanders)
        self.assertLess(pushed, 100)
        self.assertGone(rogue)

    def test_launches_of_plans_of_others(self):
        rogue = self.start()
        for plan in range(1, 13):
            rogue.call("push", kind="launch", plan_id=plan)
        rogue.call("set_request", value=12)
        wait_until(lambda: rogue.call("words")["done"] == 12, 60, "launches without a plan do not end")
        self.assertGone(rogue)

    def test_scribbling_over_every_page(self):
        rogue = self.start()
        for _ in range(3):
            for what in reversed(self.MAPPED):
                self.assertGreater(rogue.call("scribble", what=what, rounds=20)["bytes"], 0)
                self.assertUnharmed()
        self.assertGone(rogue)

    def test_killed_while_it_scribbles(self):
        rogue = self.start()
        for what in self.MAPPED:
            rogue.send("scribble", what=what, rounds=20000)
        self.check_all_reduce(self.bystanders)
        rogue.kill()
        self.assertGone(rogue)


del RogueTest  # only its subclasses are tests

if __name__ == "__main__":
    unittest.main()
