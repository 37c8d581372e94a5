"""Shared by plans and groups: the bulk area of large programs, and a GPU between groups."""

import contextlib
import threading
import time
import unittest

from harness import CUDA, TandemTest, everybody, wait_until


class Bulk(TandemTest):
    shares = True
    gpus = 2
    rows, inner, columns = 2560, 4096, 8

    def prepare(self, clients, key):
        """all_gather→matmul whose gathered A is over 32 MiB, the limit of the workspace in halves."""
        rows, inner, columns = self.rows, self.inner, self.columns
        for memory, count in (("a", rows * inner), ("b", inner * columns), ("c", 2 * rows * columns)):
            everybody(clients, "register", memory=f"{key}.{memory}", bytes=count * 4)
        return everybody(
            clients,
            "prepare",
            key=key,
            plan=key,
            request={
                "op": "all_gather_matmul",
                "algorithm": "pipeline",
                "operands": [
                    {"role": "a", "dtype": "f32", "shape": [rows, inner]},
                    {"role": "b", "dtype": "f32", "shape": [inner, columns]},
                    {"role": "c", "dtype": "f32", "shape": [2 * rows, columns]},
                ],
            },
        )

    def test_programs_in_the_bulk_area_take_turns(self):
        clients = self.group(2)
        for key in ("first", "second"):
            self.prepare(clients, key)
        pools = self.daemon.ctl_json("groups")["groups"][0]
        self.assertGreater(pools["bulk_bytes"], 32 << 20)
        for rank, client in enumerate(clients):
            for scale, key in ((1, "first"), (10, "second")):
                client.call("fill", memory=f"{key}.a", base=scale * (rank + 1))
                client.call("fill", memory=f"{key}.b", base=1)
        # Back to back and alternating: each program's next START waits for all ranks to have ended the area's last user.
        for _ in range(3):
            for key in ("first", "second"):
                everybody(clients, "launch", plan=key, bindings=[[f"{key}.{m}", 0] for m in "abc"])
        everybody(clients, "sync")
        for scale, key in ((1, "first"), (10, "second")):
            everybody(clients, "wait", plan=key)
            for client in clients:
                for rank in range(2):
                    offset = rank * self.rows * self.columns * 4
                    values = client.call("read", memory=f"{key}.c", offset=offset, count=16)["values"]
                    self.assertEqual(values, [scale * (rank + 1) * self.inner] * 16)


class Fairness(TandemTest):
    shares = True
    gpus = 1

    def solo(self, name):
        client = self.daemon.client(name)
        client.connect()
        client.call("join", name=name, world=1, rank=0)
        self.all_reduce_plan([client], group=name, count=1 << 20)
        return client

    def flood_plan(self, client):
        """A plan that takes milliseconds on this backend, and its bindings. A GPU is through with 200 sums of 4 MiB before
        anybody can look: there it is a product of 1.1 TFLOP."""
        if not CUDA:
            return "ar", [["ar.in", 0], ["ar.out", 0]]
        size = 8192
        for role in "abc":
            client.call("register", group="flood", memory=role, bytes=size * size * 2)
        client.call(
            "prepare",
            group="flood",
            key="product",
            plan="product",
            request={
                "op": "all_gather_matmul",
                "operands": [{"role": role, "dtype": "bf16", "shape": [size, size]} for role in "abc"],
            },
        )
        return "product", [[role, 0] for role in "abc"]

    @contextlib.contextmanager
    def flooding(self, client, plan, bindings):
        """Launches without end for as long as the block runs: however fast the machine, its ring is full."""
        ended = threading.Event()
        failures = []

        def launch():
            try:
                while not ended.is_set():
                    client.call("launch", plan=plan, times=100, bindings=bindings)
            except Exception as failure:  # a thread's own would only be printed
                failures.append(failure)

        thread = threading.Thread(target=launch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        self.assertEqual(failures, [])

    def test_a_group_with_little_to_do_is_not_held_up_by_one_that_floods(self):
        flood, quick = self.solo("flood"), self.solo("quick")
        bindings = [["ar.in", 0], ["ar.out", 0]]
        plan, flood_bindings = self.flood_plan(flood)
        start = time.monotonic()
        quick.call("launch", plan="ar", bindings=bindings)
        quick.call("sync")
        alone = time.monotonic() - start
        queue = lambda: [e["group_name"] for e in self.daemon.ctl_json("queue")["entries"]]
        waits = []
        with self.flooding(flood, plan, flood_bindings):
            wait_until(lambda: "flood" in queue(), 60, "the flood does not show in the queue")
            for _ in range(5):
                start = time.monotonic()
                quick.call("launch", plan="ar", bindings=bindings)
                quick.call("sync")
                waits.append(time.monotonic() - start)
            wait_until(lambda: "flood" in queue(), 60, "the flood ended")
        flood.call("sync")
        # A fair GPU makes the quick one wait for the programs that have started, at most two, not for the whole flood.
        limit = max(0.1 if CUDA else 0.5, 20 * alone)  # behind a ring full of products it would be 0.3 s
        self.assertLess(sorted(waits)[2], limit, f"alone {alone}, beside the flood {waits}")
        quick.call("wait", plan="ar")
        flood.call("wait", plan=plan)


if __name__ == "__main__":
    unittest.main()
