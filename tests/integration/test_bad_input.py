"""Requests that are wrong or that disagree: one clear error to those concerned, and nothing else changes."""

import os
import subprocess
import tempfile
import unittest

from harness import BIN, Daemon, TandemTest, everybody, host_only


def request(op="all_reduce", shape=(256,), dtype="f32", **more):
    operand = {"dtype": dtype, "shape": list(shape)}
    return {"op": op, "operands": [{"role": "input", **operand}, {"role": "output", **operand}], **more}


class Disagreement(TandemTest):
    def test_ranks_that_disagree_learn_the_field_and_each_value(self):
        clients = self.group(2)
        for name, first, second in [
            ("shape", request(), request(shape=(255,))),
            ("dtype", request(), request(dtype="bf16")),
            ("op", request(), request(op="broadcast")),
            ("reduce_op", request(), request(reduce_op="avg")),
            ("wire", request(), request(wire="f32")),
            ("algorithm", request(algorithm="one_shot"), request(algorithm="two_shot")),
            ("root", request(op="broadcast", root=0), request(op="broadcast", root=1)),
        ]:
            with self.subTest(field=name):
                replies = everybody(
                    clients, "prepare", key=name, check=False, each=lambda rank: {"request": (first, second)[rank]}
                )
                for reply in replies:
                    self.assertEqual(reply["code"], "INVALID_ARGUMENT", reply)
                    self.assertIn(name, reply["message"])
                    self.assertIn("rank 0", reply["message"])
                    self.assertIn("rank 1", reply["message"])
        self.all_reduce_plan(clients, key="good")
        self.check_all_reduce(clients, key="good")

    def test_tags_that_differ_fail_the_launch_on_all_ranks(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        everybody(
            clients,
            "launch",
            plan="ar",
            bindings=[["ar.in", 0], ["ar.out", 0]],
            each=lambda rank: {"tag": f"step {rank}"},
        )
        everybody(clients, "sync")
        for reply in everybody(clients, "wait", plan="ar", check=False):
            self.assertEqual(reply["code"], "INVALID_ARGUMENT", reply)
        self.check_all_reduce(clients)

    def test_groups_that_do_not_fit(self):
        clients = [self.daemon.client(f"rank{r}") for r in range(2)]
        gpu = [client.connect() for client in clients][0]["gpus"][0]
        for world, rank, code in (
            (9, 0, "INVALID_ARGUMENT"),
            (0, 0, "INVALID_ARGUMENT"),
            (2, 2, "OUT_OF_RANGE"),
            (2, -1, "OUT_OF_RANGE"),
        ):
            self.assertFails(code, clients[0].call, "join", name="bad", world=world, rank=rank, gpu=gpu)
        self.assertFails("INVALID_ARGUMENT", clients[0].call, "join", name="key", world=1, rank=0, job_key="short")
        self.assertFails("NOT_FOUND", clients[0].call, "join", name="gpu", world=1, rank=0, gpu="GPU-nobody")
        replies = everybody(
            clients,
            "join",
            name="w",
            check=False,
            each=lambda rank: {"rank": rank, "world": (2, 3)[rank], "deadline_ms": 50000},
        )
        for reply in replies:
            self.assertFalse(reply["ok"])
            self.assertIn("world", reply["message"])
            self.assertLess(reply["ms"], 25000, "the answer must come at once")

    def test_two_jobs_may_use_one_name(self):
        ours = self.group(2, name="tp", job_key="job-key-number-001")
        theirs = self.group(2, name="tp", job_key="job-key-number-002")
        self.all_reduce_plan(ours)
        self.all_reduce_plan(theirs)
        ours[1].kill()
        self.check_all_reduce(theirs)

    def test_a_stranger_with_a_wrong_job_key_meets_nobody(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        stranger = self.daemon.client("stranger")
        stranger.connect()
        self.assertFails(
            "DEADLINE_EXCEEDED",
            stranger.call,
            "join",
            name="tp",
            rank=1,
            world=2,
            job_key="a-guessed-job-key",
            deadline_ms=300,
        )
        self.check_all_reduce(clients)


class Released(TandemTest):
    gpus = 2
    shares = True

    def test_a_launch_after_the_release_names_it(self):
        for placement in ("engine", "client"):
            with self.subTest(placement=placement):
                clients = self.group(2, name=placement)
                self.all_reduce_plan(clients, key=placement, group=placement, placement=placement)
                self.check_all_reduce(clients, key=placement)
                bindings = [[f"{placement}.in", 0], [f"{placement}.out", 0]]
                everybody(clients, "release", plan=placement)
                for client in clients:
                    for call in ("launch", "release"):
                        failure = self.assertFails(
                            "FAILED_PRECONDITION", client.call, call, plan=placement, bindings=bindings
                        )
                        self.assertEqual(failure.detail["reason"], "PLAN_RELEASED")
                        self.assertIn(placement, failure.message)
                # The key is free again.
                self.prepare_all_reduce(clients, key=placement, group=placement, placement=placement)
                self.check_all_reduce(clients, key=placement)


class Memory(TandemTest):
    gpus = 2

    @host_only("of the host's memory")
    def test_descriptors_that_are_no_good_memory(self):
        client = self.group(1)[0]
        for kind, word in (("file", "memfd"), ("unsealed", "F_SEAL_SHRINK"), ("small", "bytes")):
            failure = self.assertFails("INVALID_ARGUMENT", client.call, "register_foreign", kind=kind, bytes=65536)
            self.assertIn(word, failure.message)
        self.all_reduce_plan([client])
        self.check_all_reduce([client])

    def test_sizes_that_overflow(self):
        client = self.group(1)[0]
        huge = 2**62
        self.assertFails("INVALID_ARGUMENT", client.call, "empty", tensor="t", shape=[huge, huge])
        self.assertFails("INVALID_ARGUMENT", client.call, "empty", tensor="t", shape=[-1])
        self.assertFails("INVALID_ARGUMENT", client.call, "prepare", key="k", request=request(shape=(huge, huge)))

    def test_bindings_are_checked(self):
        client = self.group(1)[0]
        self.all_reduce_plan([client])
        for bindings in (
            [["ar.in", 0], ["ar.out", 4]],
            [["ar.in", 2**63], ["ar.out", 0]],
            [["ar.in", 0]],
            [["ar.in", 2], ["ar.out", 0]],
        ):
            reply = client.call("launch", plan="ar", bindings=bindings, check=False)
            client.call("sync", deadline_ms=50000)
            if reply["ok"]:
                reply = client.call("wait", plan="ar", check=False)
            self.assertIn(reply.get("code"), ("OUT_OF_RANGE", "INVALID_ARGUMENT"), (bindings, reply))
        self.check_all_reduce([client])

    def test_foreign_and_stale_ids(self):
        first, second = self.daemon.client("first"), self.daemon.client("second")
        for client in (first, second):
            client.connect()
        client = self.group(1)[0]
        tensor = client.call("empty", tensor="t", shape=[16])["tensor_id"]
        self.assertFails("NOT_FOUND", second.call, "free", tensor_id=tensor)
        self.assertFails("NOT_FOUND", second.call, "free", tensor_id=99999999)
        client.call("free", tensor="t")
        self.assertFails("NOT_FOUND", client.call, "free", tensor="t")


class Limits(unittest.TestCase):
    def daemon(self, *extra):
        daemon = Daemon(1, extra)
        self.addCleanup(daemon.stop)
        return daemon

    def test_quotas_name_limit_and_usage(self):
        daemon = self.daemon("--quotas-sessions", "2", "--quotas-sessions-per-uid", "2")
        clients = [daemon.client() for _ in range(3)]
        clients[0].connect()
        clients[1].connect()
        reply = clients[2].call("connect", runtime_dir=daemon.runtime_dir, check=False)
        self.assertEqual(reply["code"], "RESOURCE_EXHAUSTED", reply)
        self.assertEqual(reply["detail"]["limit"], 2)

    @host_only("fills an emulated GPU")
    def test_no_room_for_memory(self):
        daemon = self.daemon("--emulated-memory-bytes", str(64 << 20))
        client = daemon.client()
        client.connect()
        client.call("join", name="solo", world=1, rank=0)
        reply = client.call("allocate", group="solo", memory="t", shape=[2**28], check=False)
        self.assertEqual(reply["code"], "RESOURCE_EXHAUSTED", reply)
        client.call("allocate", group="solo", memory="t", shape=[1024])

    def test_a_wrong_configuration_is_refused_by_name(self):
        for extra, word in ((("--hardware-queues", "33"), "32"), (("--nonsense",), "nonsense")):
            daemon = Daemon(1, extra, wait=False)
            self.addCleanup(daemon.stop)
            self.assertNotEqual(daemon.process.wait(60), 0)
            self.assertIn(word, daemon.tail())

    def test_check_config_reads_the_topology_file_too(self):
        def check(text):
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(text)
                file.flush()
                return subprocess.run(
                    [os.path.join(BIN, "tandemd"), "--check-config", f"--topology-file={file.name}"],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )

        fixture = os.path.join(os.path.dirname(__file__), "../fixtures/topology/emulated-4.toml")
        with open(fixture, encoding="utf-8") as file:
            good = check(file.read())
        self.assertEqual((good.returncode, good.stdout), (0, "configuration is valid\n"), good.stderr)
        bad = check("links = 7\n")
        self.assertEqual(bad.returncode, 2)
        self.assertIn("topology_file", bad.stderr)
        self.assertIn("links", bad.stderr)


if __name__ == "__main__":
    unittest.main()
