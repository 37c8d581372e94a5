"""What only GPUs have: streams of every kind, memory of the program's own by its address, streams that share a hardware
queue or do not, and what a launch costs."""

import bisect
import unittest

from harness import TandemTest, cuda_only, everybody, own_gpus_only

MIB = 1 << 20
CHUNK = 2 * MIB  # PyTorch's smallest, and the driver's
MANY_CHUNKS = 150  # more than two messages of descriptors


@cuda_only
@own_gpus_only  # memory is registered by the GPU's name, not by a share's
class Cuda(TandemTest):
    gpus = 2
    shares = True

    def reduce(self, clients, key, bindings, count, **arguments):
        """One launch on bindings whose input is filled by rank; returns each rank's first and last sum."""
        everybody(clients, "launch", plan=key, bindings=bindings, **arguments)
        everybody(clients, "sync")
        everybody(clients, "wait", plan=key)
        return [
            [
                client.call("read", memory=bindings[1][0], offset=bindings[1][1] + 4 * index)["values"][0]
                for index in (0, count - 1)
            ]
            for client in clients
        ]

    def test_streams_of_every_kind(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        for kind in ("", "legacy", "per_thread"):
            everybody(clients, "launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], stream_kind=kind, times=20)
            everybody(clients, "wait", plan="ar")

    def test_memory_of_cuda_malloc(self):
        clients = self.group(2)
        count = 300000
        self.prepare_all_reduce(clients, count)
        everybody(clients, "cuda_malloc", allocation="small", bytes=1000)  # shares its 2 MiB with the next one
        everybody(clients, "cuda_malloc", allocation="in", bytes=5 * MIB + 4096)
        everybody(clients, "cuda_malloc", allocation="out", bytes=count * 4)
        everybody(clients, "cuda_register", allocation="in", memory="in", offset=4096, bytes=count * 4)
        everybody(clients, "cuda_register", allocation="out", memory="out", bytes=count * 4)
        for rank, client in enumerate(clients):
            client.call("fill", memory="in", base=rank + 1)
        self.assertEqual(self.reduce(clients, "ar", [["in", 0], ["out", 0]], count), [[3.0, 3.0]] * 2)

    def test_small_allocations_beside_each_other(self):
        clients = self.group(2)
        self.prepare_all_reduce(clients, 64)
        for index in range(4):
            everybody(clients, "cuda_malloc", allocation=f"a{index}", bytes=256)
            everybody(clients, "cuda_register", allocation=f"a{index}", memory=f"a{index}", bytes=256)
            for rank, client in enumerate(clients):
                client.call("fill", memory=f"a{index}", base=10 * index + rank)
        for index in (0, 2):
            self.assertEqual(
                self.reduce(clients, "ar", [[f"a{index}", 0], [f"a{index + 1}", 0]], 64), [[20.0 * index + 1] * 2] * 2
            )

    def test_freed_and_allocated_again_at_the_same_address(self):
        clients = self.group(2)
        count = MIB
        self.prepare_all_reduce(clients, count)
        everybody(clients, "register", memory="out", bytes=count * 4)
        last, same = None, 0
        for turn in range(4):
            addresses = [
                reply["address"] for reply in everybody(clients, "cuda_malloc", allocation="in", bytes=count * 4)
            ]
            same += addresses == last
            last = addresses
            everybody(clients, "cuda_register", allocation="in", memory=f"in{turn}", bytes=count * 4)
            for rank, client in enumerate(clients):
                client.call("fill", memory=f"in{turn}", base=10 * turn + rank)
            self.assertEqual(
                self.reduce(clients, "ar", [[f"in{turn}", 0], ["out", 0]], count), [[20.0 * turn + 1] * 2] * 2
            )
            everybody(clients, "cuda_free", allocation="in")
            for reply in everybody(clients, "cuda_check", memory=f"in{turn}", check=False):
                self.assertEqual(reply.get("detail", {}).get("reason"), "MEMORY_FREED", reply)
        self.assertGreater(same, 0, "the driver never gave the same address again: nothing was tested")
        # A launch on what was freed arrives, and fails on all ranks.
        replies = everybody(clients, "launch", plan="ar", bindings=[["in3", 0], ["out", 0]], check=False)
        for reply in replies:
            self.assertEqual(reply.get("detail", {}).get("reason"), "MEMORY_FREED", reply)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar", check=False)

    def test_launches_bound_to_addresses(self):
        clients = self.group(2)
        count = 4096
        self.prepare_all_reduce(clients, count)
        calls = []
        for rank, client in enumerate(clients):
            source = client.call("cuda_malloc", allocation="in", bytes=count * 8)["address"] + count * 4
            client.call("cuda_register", allocation="in", memory="in", offset=count * 4, bytes=count * 4)
            client.call("fill", memory="in", base=rank + 1)
            target = client.call("register", memory="out", bytes=count * 4)["address"]
            calls.append(client.send("launch", plan="ar", bindings=[[source, 0], [target, 0]], times=10))
        for client, call in zip(clients, calls):
            client.reply(call)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        for client in clients:
            self.assertEqual(client.call("read", memory="out", count=2)["values"], [3.0, 3.0])

    def ranks_with_queues(self, connections):
        """Two connected clients with so many hardware queues each."""
        clients = [
            self.daemon.client(f"rank{rank}", env={"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)})
            for rank in range(2)
        ]
        for client in clients:
            client.connect()
        return clients

    def test_two_groups_in_opposite_orders(self):
        clients = self.ranks_with_queues(32)
        for group in "ab":
            self.join(clients, name=group)
            self.all_reduce_plan(clients, key=group, group=group)
            self.check_all_reduce(clients, key=group)
        self.launch_in_opposite_orders(clients, 100)

    def test_one_hardware_queue(self):
        clients = self.ranks_with_queues(1)
        self.join(clients)
        for key in ("x", "y"):
            self.all_reduce_plan(clients, key=key)
            self.check_all_reduce(clients, key=key)
        # Alike on both ranks, on two streams that alias; and signals, whose copies go behind the launches.
        everybody(clients, "allocate", memory="t", shape=[64])
        for _ in range(50):
            for client in clients:
                for key in ("x", "y"):
                    client.send("launch", plan=key, stream=f"s{key}", bindings=[[f"{key}.in", 0], [f"{key}.out", 0]])
        everybody(clients, "signal", memory="t", what="barrier")
        for key in ("x", "y"):
            everybody(clients, "sync", stream=f"s{key}")
            everybody(clients, "wait", plan=key)

    def test_threads_and_streams(self):
        clients = self.group(2)
        keys = [f"k{index}" for index in range(4)]
        for key in keys:
            self.all_reduce_plan(clients, key=key)
        everybody(
            clients,
            "launch_threads",
            timeout=120,
            launches=[
                {"plan": key, "stream": f"s{key}", "times": 500, "bindings": [[f"{key}.in", 0], [f"{key}.out", 0]]}
                for key in keys
            ],
        )
        for key in keys:
            everybody(clients, "sync", stream=f"s{key}")
            everybody(clients, "wait", plan=key)
            self.check_all_reduce(clients, key=key)

    def test_what_a_launch_costs(self):
        clients = self.group(2)
        everybody(clients, "prepare", key="empty", plan="empty", request={"op": "empty", "operands": []})
        self.all_reduce_plan(clients)
        for plan, bindings in (("empty", []), ("ar", [["ar.in", 0], ["ar.out", 0]])):
            for times in (100, 200, 2000):
                replies = everybody(clients, "launch", plan=plan, bindings=bindings, times=times)
                everybody(clients, "sync")
                everybody(clients, "wait", plan=plan)
                print(
                    f"{plan}: {times} launches, CPU us a launch",
                    [round(1000 * reply["launch_ms"] / times, 2) for reply in replies],
                )


@cuda_only
@own_gpus_only
class ChunksOfMemory(TandemTest):
    """Tensors in ranges of addresses with separate memory behind each chunk, as PyTorch's expandable segments have them: they
    begin inside one chunk and end inside another."""

    gpus = 2
    shares = True

    def place(self, clients, name, offset, size):
        """Registers [offset, offset + size) of a new range of as many chunks as that needs."""
        needed = -(-(offset + size) // CHUNK)
        everybody(clients, "cuda_reserve", allocation=name, chunk=CHUNK, chunks=needed)
        everybody(clients, "cuda_map", allocation=name, count=needed)
        return everybody(clients, "cuda_register", allocation=name, memory=name, offset=offset, bytes=size)

    @staticmethod
    def cuts(offset, size, item=4):
        """The elements with which chunks begin, after 0."""
        return [0] + [at // item for at in range(CHUNK - offset % CHUNK, size, CHUNK)]

    def fill(self, clients, name, cuts, count, base):
        """Every chunk's part of f32 elements with separate values."""
        for rank, client in enumerate(clients):
            for part, (begin, end) in enumerate(zip(cuts, cuts[1:] + [count])):
                client.call(
                    "fill", memory=name, offset=begin * 4, count=end - begin, base=base + 1000 * part + rank, step=1
                )

    def check_sums(self, clients, name, cuts, count, base, places):
        """The all-reduce's output around `places`, for inputs that fill() wrote to `cuts`."""
        world = len(clients)
        for client in clients:
            for place in places:
                begin, end = max(0, place - 40), min(count, place + 40)
                values = client.call("read", memory=name, offset=begin * 4, count=end - begin)["values"]
                wanted = []
                for element in range(begin, end):
                    part = bisect.bisect_right(cuts, element) - 1
                    wanted.append(world * (base + 1000 * part + (element - cuts[part]) % 64) + world * (world - 1) // 2)
                self.assertEqual(values, wanted, f"around element {place}")

    def reduce(self, clients, key, bindings, **arguments):
        everybody(clients, "launch", plan=key, **bindings, **arguments)
        everybody(clients, "sync")
        everybody(clients, "wait", plan=key)

    def test_all_reduce(self):
        clients = self.group(2)
        count = 3 * CHUNK // 4 + 100
        offsets = {"in": CHUNK // 2 + 4, "out": CHUNK - 1000}
        cuts = {name: self.cuts(offset, count * 4) for name, offset in offsets.items()}
        self.assertEqual([len(of_one) for of_one in cuts.values()], [4, 4])
        for name, offset in offsets.items():
            self.place(clients, name, offset, count * 4)
        for turn, algorithm in enumerate(("one_shot", "two_shot", "nccl")):
            with self.subTest(algorithm=algorithm):
                self.prepare_all_reduce(clients, count, key=algorithm, algorithm=algorithm)
                self.fill(clients, "in", cuts["in"], count, 10 * turn)
                everybody(clients, "fill", memory="out", base=-7)
                self.reduce(clients, algorithm, {"bindings": [["in", 0], ["out", 0]]})
                self.check_sums(clients, "out", cuts["in"], count, 10 * turn, cuts["in"] + cuts["out"] + [count])

    def test_more_chunks_than_a_message_carries(self):
        clients = self.group(2)
        size = MANY_CHUNKS * CHUNK - 512
        count = size // 4
        self.place(clients, "in", 256, size)
        cuts = self.cuts(256, size)
        self.assertEqual(len(cuts), MANY_CHUNKS)
        operand = {"dtype": "f32", "shape": [count]}
        in_place = [{"role": "input", **operand}, {"role": "output", "alias_of": 0, **operand}]
        self.prepare_all_reduce(clients, count, operands=in_place)
        self.fill(clients, "in", cuts, count, 0)
        self.reduce(clients, "ar", {"bindings": [["in", 0], ["in", 0]]})
        self.check_sums(clients, "in", cuts, count, 0, cuts + [count])

    def gather_and_multiply(self, clients, algorithm, dtype):
        """c = gathered a times b, all three across chunks. Of b all is zero but the rows on both sides of a's cut within a row,
        and b's own cut lies in that middle row."""
        item = {"f32": 4, "bf16": 2}[dtype]
        world, k, n = len(clients), 2048, 64
        m = 3 * MIB // k // item
        a_offset = CHUNK // 2 + 512
        a_cuts = self.cuts(a_offset, m * k * item, item)
        middle = a_cuts[1] % k
        shapes = {"a": (m, k), "b": (k, n), "c": (m * world, n)}
        offsets = {"a": a_offset, "b": CHUNK - (middle * n + n // 2) * item, "c": CHUNK - (m * n + n // 2) * item}
        for role, (rows, columns) in shapes.items():
            self.place(clients, f"{algorithm}.{role}", offsets[role], rows * columns * item)
            self.assertGreater(len(self.cuts(offsets[role], rows * columns * item, item)), 1, role)
        key = f"{algorithm}.{dtype}"
        plan = everybody(
            clients,
            "prepare",
            key=key,
            plan=key,
            request={
                "op": "all_gather_matmul",
                "algorithm": algorithm,
                "operands": [{"role": role, "dtype": dtype, "shape": list(shape)} for role, shape in shapes.items()],
            },
        )[0]["plan"]
        self.assertEqual(plan["algorithm"], algorithm)
        for rank, client in enumerate(clients):
            for part, (begin, end) in enumerate(zip(a_cuts, a_cuts[1:] + [m * k])):
                client.call(
                    "fill",
                    memory=f"{algorithm}.a",
                    dtype=dtype,
                    offset=begin * item,
                    count=end - begin,
                    base=rank + 1 + part,
                )
        everybody(clients, "fill", memory=f"{algorithm}.b", dtype=dtype, base=0)
        for first, value in ((middle - 8, 1), (middle, 2)):
            everybody(
                clients, "fill", memory=f"{algorithm}.b", dtype=dtype, offset=first * n * item, count=8 * n, base=value
            )
        everybody(clients, "fill", memory=f"{algorithm}.c", dtype=dtype, base=-7)
        self.reduce(clients, key, {"bindings": [[f"{algorithm}.{role}", 0] for role in shapes]})

        def wanted(row):
            rank, row = divmod(row, m)
            return sum(
                (rank + 1 + bisect.bisect_right(a_cuts, row * k + x) - 1) * (1 if x < middle else 2)
                for x in range(middle - 8, middle + 8)
            )

        near = {0, m - 1} | {max(0, cut // k + step) for cut in a_cuts for step in (-1, 0, 1)}
        for client in clients:
            for row in sorted(rank * m + row for rank in range(world) for row in near if row < m):
                values = client.call("read", memory=f"{algorithm}.c", dtype=dtype, offset=row * n * item, count=n)[
                    "values"
                ]
                self.assertEqual(values, [float(wanted(row))] * n, f"row {row}")

    def test_all_gather_matmul(self):
        clients = self.group(2)
        for algorithm in ("unfused", "pipeline", "ring"):
            with self.subTest(algorithm=algorithm):
                self.gather_and_multiply(clients, algorithm, "f32")

    def test_fused_all_gather_matmul(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        offers = self.join(clients)[0]["offers"]
        if not any(offer["algorithm"] == "fused" and offer["available"] for offer in offers):
            self.skipTest("the engines have no fused kernels")
        self.gather_and_multiply(clients, "fused", "bf16")

    def test_a_chunk_that_has_been_replaced(self):
        clients = self.group(2)
        count = 2 * CHUNK // 4
        cuts = self.cuts(4096, count * 4)
        self.assertEqual(len(cuts), 3)
        addresses = [reply["address"] for reply in self.place(clients, "in", 4096, count * 4)]
        everybody(clients, "register", memory="out", bytes=count * 4)
        self.prepare_all_reduce(clients, count)
        by_handle = {"bindings": [["in", 0], ["out", 0]]}
        by_address = {"each": lambda rank: {"bindings": [[addresses[rank], 0], ["out", 0]]}}
        places = cuts + [count]
        self.fill(clients, "in", cuts, count, 0)
        for bindings in (by_handle, by_address):
            everybody(clients, "fill", memory="out", base=-7)
            self.reduce(clients, "ar", bindings)
            self.check_sums(clients, "out", cuts, count, 0, places)
        # One rank's middle chunk, then all ranks': the handle is dead, and nothing is computed.
        for changed in (clients[:1], clients):
            everybody(changed, "cuda_unmap", allocation="in", first=1)
            everybody(changed, "cuda_map", allocation="in", first=1)
            everybody(clients, "fill", memory="out", base=-7)
            replies = everybody(clients, "launch", plan="ar", check=False, **by_handle)
            for client, reply in zip(clients, replies):
                if client in changed:
                    self.assertEqual(reply.get("detail", {}).get("reason"), "MEMORY_FREED", reply)
            everybody(clients, "sync")
            for client, reply in zip(clients, everybody(clients, "wait", plan="ar", check=False)):
                self.assertTrue(client in changed or not reply["ok"], reply)
                for place in places:
                    begin = min(place, count - 40)
                    values = client.call("read", memory="out", offset=begin * 4, count=40)["values"]
                    self.assertEqual(values, [-7.0] * 40, "a launch that was refused has written")
        # The memory at the address now is taken, by a new registration.
        self.fill(clients, "in", cuts, count, 50)
        self.reduce(clients, "ar", by_address)
        self.check_sums(clients, "out", cuts, count, 50, places)
        # Without memory there the launch is refused, on all ranks, and with it again the next one is right.
        everybody(clients, "cuda_unmap", allocation="in", first=2)
        everybody(clients, "fill", memory="out", base=-7)
        for reply in everybody(clients, "launch", plan="ar", check=False, **by_address):
            self.assertEqual(reply.get("code"), "OUT_OF_RANGE", reply)
            self.assertIn("is not mapped from", reply["message"])
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar", check=False)
        everybody(clients, "cuda_map", allocation="in", first=2)
        self.fill(clients, "in", cuts, count, 90)
        self.reduce(clients, "ar", by_address)
        self.check_sums(clients, "out", cuts, count, 90, places)

    def test_chunks_that_cannot_be_registered(self):
        (client,) = self.group(1, name="one")
        client.call("cuda_reserve", allocation="r", chunk=CHUNK, chunks=3)
        client.call("cuda_map", allocation="r", first=0)
        client.call("cuda_map", allocation="r", first=1, exportable=False)
        register = {"allocation": "r", "memory": "r", "offset": CHUNK - 4096}
        failure = self.assertFails("INVALID_ARGUMENT", client.call, "cuda_register", bytes=8192, **register)
        self.assertEqual(failure.detail.get("reason"), "NOT_REGISTRABLE", failure)
        self.assertIn("was not created to be exported", failure.message)
        client.call("cuda_unmap", allocation="r", first=1)
        failure = self.assertFails("OUT_OF_RANGE", client.call, "cuda_register", bytes=8192, **register)
        self.assertIn("is not mapped from", failure.message)
        client.call("cuda_register", bytes=4096, **register)  # what comes before the hole
        client.call("cuda_map", allocation="r", first=1)
        client.call("cuda_register", bytes=8192, **register)


if __name__ == "__main__":
    unittest.main()
