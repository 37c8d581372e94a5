"""Quotas of every kind, full queues, and what a configuration may say: RESOURCE_EXHAUSTED or one clear sentence."""

import os
import subprocess
import unittest

from harness import BIN, Daemon, everybody, host_only

AR = {
    "op": "all_reduce",
    "operands": [{"role": "input", "dtype": "f32", "shape": [64]}, {"role": "output", "dtype": "f32", "shape": [64]}],
}
MIB = 1 << 20


class Limits(unittest.TestCase):
    def daemon(self, *extra, gpus=1, **arguments):
        daemon = Daemon(gpus, extra, **arguments)
        self.addCleanup(daemon.stop)
        return daemon

    def client(self, daemon, join=True, name="tp"):
        client = daemon.client()
        client.connect()
        if join:
            client.call("join", name=name, group="tp", world=1, rank=0)
        return client

    def assertExhausted(self, reply, limit, word):
        self.assertEqual(reply.get("code"), "RESOURCE_EXHAUSTED", reply)
        self.assertEqual(reply["detail"]["limit"], limit, reply)
        self.assertGreater(reply["detail"]["usage"], 0, reply)
        self.assertIn(word, reply["message"])

    def test_sessions_of_the_node_and_of_a_uid(self):
        for flags in (("--quotas-sessions", "2", "--quotas-sessions-per-uid", "2"), ("--quotas-sessions-per-uid", "2")):
            daemon = self.daemon(*flags)
            first = self.client(daemon, join=False)
            self.client(daemon, join=False)
            third = daemon.client()
            reply = third.call("connect", runtime_dir=daemon.runtime_dir, check=False)
            self.assertExhausted(reply, 2, "sessions")
            first.call("detach")
            third.connect()

    def test_groups(self):
        client = self.client(self.daemon("--quotas-groups", "1"))
        reply = client.call("join", name="more", world=1, rank=0, check=False)
        self.assertExhausted(reply, 1, "groups")
        client.call("leave")
        client.call("join", name="more", world=1, rank=0)

    def test_plans(self):
        client = self.client(self.daemon("--quotas-plans", "1"))
        client.call("prepare", key="a", request=AR)
        self.assertExhausted(client.call("prepare", key="b", request=AR, check=False), 1, "plans")
        client.call("release", plan="a")
        client.call("drop", plan="a")
        client.call("prepare", key="b", request=AR)

    def test_plan_bytes(self):
        client = self.client(self.daemon("--quotas-plan-bytes", "8KiB"))
        replies = [client.call("prepare", key=f"{i}", request=AR, check=False) for i in range(100)]
        refused = next(reply for reply in replies if not reply["ok"])
        self.assertTrue(replies[0]["ok"], "one plan fits")
        self.assertExhausted(refused, 8192, "plan bytes")
        client.call("release", plan="0")
        client.call("drop", plan="0")
        client.call("prepare", key="again", request=AR)

    def test_tensors(self):
        client = self.client(self.daemon("--quotas-tensors", "2"))
        client.call("empty", tensor="a", shape=[16])
        client.call("register", memory="b", bytes=4096)
        self.assertExhausted(client.call("empty", tensor="c", shape=[16], check=False), 2, "tensors")
        self.assertExhausted(client.call("register", memory="c", bytes=4096, check=False), 2, "tensors")
        client.call("free", tensor="a")
        client.call("empty", tensor="c", shape=[16])

    def test_descriptors(self):
        client = self.client(self.daemon("--quotas-descriptors", "16"))
        for index in range(32):
            reply = client.call("register", memory=str(index), bytes=4096, check=False)
            if not reply["ok"]:
                break
        self.assertExhausted(reply, 16, "descriptors")
        client.call("drop", memory="0")
        client.call("register", memory="0", bytes=4096)

    def test_symmetric_memory(self):
        client = self.client(self.daemon("--quotas-segment-bytes", "16MiB"))
        for index in range(64):
            reply = client.call("allocate", memory=str(index), shape=[MIB // 2], check=False)  # 2 MiB each
            if not reply["ok"]:
                break
        self.assertExhausted(reply, 16 * MIB, "segment")
        client.call("check")

    def test_registered_memory(self):
        client = self.client(self.daemon("--quotas-registered-bytes", "4MiB"))
        client.call("register", memory="a", bytes=3 * MIB)
        self.assertExhausted(client.call("register", memory="b", bytes=2 * MIB, check=False), 4 * MIB, "registered")
        client.call("drop", memory="a")
        client.call("register", memory="b", bytes=2 * MIB)

    def test_a_cgroup_has_quotas_beside_its_uids(self):
        # All clients of this test are in its cgroup, whatever that is; the uid's quotas are far away.
        daemon = self.daemon(
            "--quotas-cgroup-sessions", "2", "--quotas-cgroup-plans", "1", "--quotas-cgroup-registered-bytes", "4MiB"
        )
        first = self.client(daemon)
        cgroup = daemon.ctl_json("sessions")["sessions"][0]["cgroup"]
        if not cgroup:
            self.skipTest("/proc names no cgroup on this machine")
        second = self.client(daemon, name="other")
        third = daemon.client()
        refusals = [third.call("connect", runtime_dir=daemon.runtime_dir, check=False)]
        self.assertExhausted(refusals[0], 2, "sessions per cgroup")
        first.call("prepare", key="a", request=AR)
        refusals.append(second.call("prepare", key="b", request=AR, check=False))
        self.assertExhausted(refusals[1], 1, "plans")
        second.call("register", memory="a", bytes=3 * MIB)
        refusals.append(first.call("register", memory="b", bytes=2 * MIB, check=False))
        self.assertExhausted(refusals[2], 4 * MIB, "registered")
        self.assertEqual([reply["detail"]["who"] for reply in refusals], [f"cgroup {cgroup}"] * 3)
        first.call("detach")
        third.connect()
        second.call("prepare", key="b", request=AR)

    @host_only("fills an emulated GPU")
    def test_no_room_for_memory_on_one_rank_fails_all_and_leaves_the_group_whole(self):
        daemon = self.daemon("--emulated-memory-bytes", str(64 * MIB), gpus=2)
        clients = [daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        everybody(clients, "join", each=lambda rank: {"rank": rank, "world": 2, "name": "tp"})
        for reply in everybody(clients, "allocate", memory="t", shape=[32 * MIB], check=False):
            self.assertEqual(reply["code"], "RESOURCE_EXHAUSTED", reply)
        everybody(clients, "allocate", memory="t", shape=[1000])

    def test_a_full_queue(self):
        daemon = self.daemon(gpus=2)
        clients = [daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        everybody(clients, "join", each=lambda rank: {"rank": rank, "world": 2, "name": "tp"})
        for memory in ("in", "out"):
            everybody(clients, "register", memory=memory, bytes=256)
        everybody(clients, "prepare", key="ar", plan="ar", request=AR)
        # Rank 1 does not come: rank 0's queue fills and says so within the launch's deadline. Nothing is lost by it.
        launch = {"plan": "ar", "bindings": [["in", 0], ["out", 0]]}
        made = clients[0].call("launch", times=100, **launch)["made"]
        full = clients[0].call("launch", times=10000, launch_deadline_ms=2000, check=False, **launch)
        self.assertIn(full.get("code"), ("RESOURCE_EXHAUSTED",), full)
        self.assertEqual(full["detail"]["reason"], "RING_FULL", full)
        self.assertLess(full["ms"], 10000)
        # The daemon and the engines serve others meanwhile and afterwards.
        other = self.client(daemon, name="solo")
        other.call("prepare", key="solo", request=AR)
        made += full["made"]
        clients[1].call("launch", times=made, **launch)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")


class Configuration(unittest.TestCase):
    def tandemd(self, *arguments):
        return subprocess.run([os.path.join(BIN, "tandemd"), *arguments], capture_output=True, text=True, timeout=60)

    def check(self, text):
        path = f"/tmp/tandem-config.{os.getpid()}.toml"
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        with open(path, "w") as file:
            file.write(text)
        return self.tandemd("--config", path, "--check-config")

    def test_errors_name_the_key_and_the_limits(self):
        for text, words in (
            ("emulated_gpus = 9\n", ("emulated_gpus", "8")),
            ("emulated_gpu = 2\n", ("emulated_gpu", "emulated_gpus")),
            ('emulated_gpus = "two"\n', ("emulated_gpus",)),
            ('runtime_dir = "relative"\n', ("runtime_dir",)),
            ("[quotas]\nsessions = 0\n", ("quotas.sessions",)),
            ("[quotas]\nsession = 3\n", ("session",)),
            ('backend = "rocm"\n', ("backend", "host")),
            ("emulated_gpus = \n", ("1",)),
        ):
            with self.subTest(text=text):
                result = self.check(text)
                self.assertNotEqual(result.returncode, 0, text)
                for word in words:
                    self.assertIn(word, result.stdout + result.stderr)

    def test_a_topology_file_that_is_not_there(self):
        daemon = Daemon(1, ("--topology-file", "/nonexistent.toml"), wait=False)
        self.addCleanup(daemon.stop)
        self.assertNotEqual(daemon.process.wait(60), 0)
        self.assertIn("/nonexistent.toml", daemon.tail())

    def test_a_good_configuration_passes_and_prints_itself(self):
        self.assertEqual(self.check("emulated_gpus = 2\n[quotas]\ngroups = 7\n").returncode, 0)
        printed = self.tandemd("--print-config", "--hardware-queues", "3")
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn("hardware_queues = 3", printed.stdout)
        self.assertEqual(self.check(printed.stdout).returncode, 0)

    def test_a_stale_socket_is_replaced(self):
        first = Daemon(1)
        self.addCleanup(first.stop)
        first.process.kill()
        first.process.wait()
        for directory, name in (
            (first.runtime_dir, "lease.sock"),
            (first.runtime_dir, "client.sock"),
            (first.admin_dir, "admin.sock"),
        ):
            self.assertTrue(os.path.exists(os.path.join(directory, name)))
        second = Daemon(1, runtime_dir=first.runtime_dir)
        self.addCleanup(second.stop)
        self.assertEqual(second.ctl("stats").returncode, 0)
        second.client().connect()


if __name__ == "__main__":
    unittest.main()
