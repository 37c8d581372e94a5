"""One flooder for each kind of thing that a client can make many of, beside another user's checked job, an operator and a new
client. Floods of connections and attaches are in test_floods.py; docs/operations.md, "Quotas", lists the bounds."""

import contextlib
import os
import socket
import threading
import time
import unittest
import urllib.error
import urllib.request

from floods import FLOODER, BesideAFlood
from harness import Client, host_only, wait_until
from test_rogue import Rogue

F32 = 0
KEY = "cm9ndWUtam9iLWtleS0wMQ=="
# All processes of the test may be in one cgroup, while users of a node have their own: those quotas are far away.
CGROUP = {
    "segment-bytes": 1 << 40,
    "registered-bytes": 1 << 40,
    "sessions": 256,
    "groups": 4096,
    "plans": 65536,
    "tensors": 262144,
    "descriptors": 16384,
    "calls": 2048,
}
FAR = [text for name, limit in CGROUP.items() for text in (f"--quotas-cgroup-{name}", str(limit))]

PAGES = 64 << 20  # bytes of symmetric memory and of registered memory that a user may have


@host_only("floods by hand")
@unittest.skipUnless(os.getuid() == 0, "runs clients of several users")
class FloodKinds(BesideAFlood):
    # Fewer groups than fill an emulated GPU's memory.
    flags = ["--metrics-listen", "127.0.0.1:0", "--quotas-groups", "200"]
    flags += FAR

    def flooder(self):
        rogue = Rogue(self.daemon, "flooder", user=FLOODER)
        rogue.attach()
        return rogue

    def outcomes(self, *rogues):
        total = {}
        for rogue in rogues:
            for name, count in rogue.call("flood_state")["outcomes"].items():
                total[name] = total.get(name, 0) + count
        return total

    def check_flood(self, clients, rogues, until, **flood):
        """Begins the flood; checks the others once `until` holds of its outcomes, and that it goes on beside them."""
        for rogue in rogues:
            rogue.call("flood", **flood)
        try:
            wait_until(lambda: until(self.outcomes(*rogues)), 60, "the flood does not come to its bound")
        except TimeoutError as error:
            raise AssertionError(f"{error}: {flood.get('method')}: {self.outcomes(*rogues)}") from error
        before = sum(self.outcomes(*rogues).values())
        self.check_others(clients)
        wait_until(lambda: sum(self.outcomes(*rogues).values()) > before, 60, "the flood does not go on")
        outcomes = self.outcomes(*rogues)
        for rogue in rogues:
            rogue.close()
        return outcomes

    @staticmethod
    def refused(reason, times=200):
        return lambda outcomes: outcomes.get(reason, 0) >= times

    @staticmethod
    def made(times):
        return lambda outcomes: outcomes.get("OK", 0) >= times

    def own_group(self, rogue):
        request = {"job_key": KEY, "name": f"own {rogue.pid}", "world_size": 1, "gpu_uuid": rogue.gpus[0]}
        return rogue.rpc("JoinGroup", request)["group_id"]

    def prepare_request(self, group):
        operands = [{"role": role, "alias_of": -1, "spec": {"dtype": F32, "shape": [64]}} for role in (1, 2)]
        return {"group_id": group, "key": "k {n}", "request": {"op": 1, "operands": operands}}

    def test_calls_that_wait(self):
        clients = self.job()
        rogues = [self.flooder() for _ in range(4)]
        for rogue in rogues:
            rogue.call("pile_up", count=250, gpu=rogue.gpus[0], name=f"pile of {rogue.pid}")
        # Joins that wait have all places of their user. More calls are refused.
        request = {"spec": {"dtype": F32, "shape": [64]}, "gpu_uuid": rogues[0].gpus[0]}
        self.check_flood(
            clients,
            rogues,
            self.refused("QUOTA_CALLS_PER_UID"),
            method="Empty",
            request=request,
            undo="Free",
            id_field="tensor_id",
        )

    def test_calls_without_a_session(self):
        clients = self.job()
        self.check_flood(
            clients, [self.flooder()], self.refused("NO_TOKEN"), method="Empty", token="", threads=8, request={}
        )

    def test_sessions(self):
        clients = self.job()
        rogue = Rogue(self.daemon, "flooder", user=FLOODER)
        refused = rogue.call("hold_sessions", runtime_dir=self.daemon.runtime_dir, count=200, check=False)
        self.assertEqual(refused["detail"]["reason"], "QUOTA_SESSIONS_PER_UID", refused)
        self.assertEqual(refused["detail"]["who"], f"uid {FLOODER}")
        self.check_others(clients)

    def test_groups(self):
        clients = self.job()
        rogues = [self.flooder(), self.flooder()]
        request = {"job_key": KEY, "name": "group {n}", "world_size": 1, "gpu_uuid": rogues[0].gpus[0]}
        self.check_flood(
            clients,
            rogues[:1],
            self.made(50),
            method="JoinGroup",
            request=request,
            undo="LeaveGroup",
            id_field="group_id",
        )
        self.check_flood(clients, rogues[1:], self.refused("QUOTA_GROUPS"), method="JoinGroup", request=request)

    def test_plans(self):
        clients = self.job()
        rogue = self.flooder()
        request = self.prepare_request(self.own_group(rogue))
        self.check_flood(
            clients,
            [rogue],
            self.made(100),
            method="Prepare",
            request=request,
            undo="ReleasePlan",
            id_field="plan.plan_id",
        )

    def test_launches_by_grpc(self):
        clients = self.job()
        rogues = [self.flooder() for _ in range(3)]
        floods = []
        for rogue in rogues:
            plan = rogue.rpc("Prepare", self.prepare_request(self.own_group(rogue)))["plan"]["plan_id"]
            floods.append({"plan_id": plan, "bindings": []})
        # Their outcomes are never asked for.
        for rogue, request in zip(rogues, floods):
            rogue.call("flood", method="Launch", request=request)
        reason = "QUOTA_PENDING_LAUNCHES"
        wait_until(
            lambda: any(self.outcomes(*rogues).get(name, 0) >= 200 for name in (reason, reason + "_PER_UID")),
            60,
            "no launch is refused",
        )
        self.check_others(clients)

    def test_tensors(self):
        clients = self.job()
        rogues = [self.flooder(), self.flooder()]
        request = {"spec": {"dtype": F32, "shape": [64]}, "gpu_uuid": rogues[0].gpus[0]}
        self.check_flood(clients, rogues, self.made(1000), method="Empty", request=request)

    def test_registrations(self):
        clients = self.job()
        flooder = Client(self.daemon, "flooder", user=FLOODER)
        flooder.connect()
        gpu = flooder.call("connect", runtime_dir=self.daemon.runtime_dir)["gpus"][0]
        replies, over = [], threading.Event()

        def flood():
            while not over.is_set():
                memory = str(len(replies))
                replies.append(flooder.call("register", memory=memory, gpu=gpu, bytes=4096, check=False))
                if len(replies) % 2:
                    flooder.call("drop", memory=memory)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            wait_until(lambda: len(replies) >= 500, 60, "too few registrations")
            self.check_others(clients)
        finally:
            over.set()
            thread.join()

    def test_channels(self):
        clients = self.job()
        rogues = [self.flooder() for _ in range(4)]
        for rogue in rogues:
            request = {"gpu_uuid": rogue.gpus[0]}
            rogue.call("flood", method="OpenChannel", request=request, threads=2)
        wait_until(lambda: self.refused("QUOTA_CHANNELS")(self.outcomes(*rogues)), 60, "no channel is refused")
        self.check_others(clients)

    def test_descriptors(self):
        clients = self.job()
        before = self.daemon.descriptors()
        rogues = [self.flooder() for _ in range(4)]
        self.check_flood(clients, rogues, self.made(200), method="transfer", count=60)
        # Unclaimed descriptors are closed after a while, and with the session.
        wait_until(lambda: self.daemon.descriptors() < before + 64, 30, "descriptors of ended transfers stay")

    def test_streams_of_events(self):
        clients = self.job()
        rogues = [self.flooder() for _ in range(2)]
        self.check_flood(clients, rogues, lambda outcomes: sum(outcomes.values()) >= 100, method="Events", request={})

    def test_names_and_long_texts(self):
        clients = self.job()
        rogues = [self.flooder() for _ in range(2)]
        request = {"job_key": KEY, "name": "n" * 100000, "world_size": 1, "gpu_uuid": rogues[0].gpus[0]}
        self.check_flood(clients, rogues, self.refused("BAD_FIELD"), method="JoinGroup", request=request)
        # Names of joins that fail are kept for ranks that come late, some of each user's.
        rogue = self.flooder()
        request = {"job_key": KEY, "name": "late {n}", "world_size": 2, "gpu_uuid": "none"}
        self.check_flood(
            clients, [rogue], lambda outcomes: sum(outcomes.values()) >= 2000, method="JoinGroup", request=request
        )

    def test_lines_of_the_log(self):
        clients = self.job()
        rogue = self.flooder()
        began = time.monotonic()
        request = {"job_key": KEY, "name": "group {n}", "world_size": 1, "gpu_uuid": rogue.gpus[0]}
        self.check_flood(
            clients,
            [rogue],
            self.made(700),
            method="JoinGroup",
            request=request,
            undo="LeaveGroup",
            id_field="group_id",
        )
        lines = [line for line in self.daemon.tail(100000).splitlines() if "group=" in line]
        self.assertLess(len(lines), 320 + 12 * (time.monotonic() - began))

    def test_connections_to_the_metrics(self):
        clients = self.job()
        port = self.daemon.metrics_port()
        with self.flood_port(port):
            self.check_others(clients)
            # Both come from one address, which shares its connections: the flood may push a probe out before it has asked.
            took, pushed_out = [], 0
            while len(took) < 3:
                began = time.monotonic()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=60) as answer:
                        self.assertEqual(answer.status, 200)
                except (ConnectionError, urllib.error.URLError):
                    pushed_out += 1
                    self.assertLess(pushed_out, 10)
                    continue
                took.append(time.monotonic() - began)
            print("livez beside a flood", [round(t, 3) for t in took], flush=True)
            self.assertLess(min(took), 4)  # a probe of Kubernetes waits for 5 s

    @contextlib.contextmanager
    def flood_port(self, port):
        """Idle connections, more and more of them."""
        held, over = [], threading.Event()

        def flood():
            while not over.is_set():
                try:
                    held.append(socket.create_connection(("127.0.0.1", port), timeout=1))
                except OSError:
                    continue
                if len(held) > 800:
                    held.pop(0).close()

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            wait_until(lambda: len(held) >= 600, 60, "too few connections")
            yield
        finally:
            over.set()
            thread.join()
            for one in held:
                one.close()


@host_only("floods by hand")
@unittest.skipUnless(os.getuid() == 0, "runs clients of several users")
class FloodsOfPages(BesideAFlood):
    flags = ["--quotas-segment-bytes", str(PAGES), "--quotas-registered-bytes", str(PAGES), *FAR]

    def flood_memory(self, make, **arguments):
        """Makes memory up to the flooder's quota and touches its pages, drops all, and so on, beside the others."""
        clients = self.job()
        before = self.daemon.ctl_json("stats")["segment_bytes"]
        flooder = Client(self.daemon, "flooder", user=FLOODER)
        flooder.connect()
        flooder.call("join", name="own", group="own", world=1, rank=0, job_key="0123456789-flooder")
        made, refused, over = [], [], threading.Event()

        def flood():
            held = 0
            while not over.is_set():
                memory = str(held)
                reply = flooder.call(make, memory=memory, check=False, **arguments)
                if reply["ok"]:
                    flooder.call("fill", memory=memory, base=1, step=0)
                    made.append(memory)
                    held += 1
                    continue
                refused.append(reply)
                for index in range(held):
                    flooder.call("drop", memory=str(index))
                held = 0

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            wait_until(lambda: len(refused) >= 3, 60, "the flooder does not come to its quota")
            count = len(made)
            self.check_others(clients)
            wait_until(lambda: len(made) > count, 60, f"the flood has ended: {count} made, {refused[-1]}")
        finally:
            over.set()
            thread.join()
        for reply in refused:
            self.assertEqual((reply["code"], reply["detail"]["limit"]), ("RESOURCE_EXHAUSTED", PAGES), reply)
            self.assertEqual(reply["detail"]["who"], f"uid {FLOODER}")
        flooder.close()
        wait_until(lambda: self.daemon.ctl_json("stats")["segment_bytes"] <= before, 30, "pages stay")

    def test_pages_of_symmetric_memory(self):
        self.flood_memory("allocate", group="own", shape=[PAGES // 4 // 4])

    def test_pages_of_registered_memory(self):
        self.flood_memory("register", group="own", bytes=PAGES // 4)


if __name__ == "__main__":
    unittest.main()
