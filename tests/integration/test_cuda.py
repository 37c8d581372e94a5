"""What only GPUs have: streams of every kind, memory of the program's own by its address, streams that share a hardware
queue or do not, and what a launch costs."""

import unittest

from harness import TandemTest, cuda_only, everybody

MIB = 1 << 20


@cuda_only
class Cuda(TandemTest):
    gpus = 2
    shares = True

    def reduce(self, clients, key, bindings, count, **arguments):
        """One launch on bindings whose input is filled by rank; returns each rank's first and last sum."""
        everybody(clients, "launch", plan=key, bindings=bindings, **arguments)
        everybody(clients, "sync")
        everybody(clients, "wait", plan=key)
        return [[client.call("read", memory=bindings[1][0], offset=bindings[1][1] + 4 * index)["values"][0]
                 for index in (0, count - 1)] for client in clients]

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
            self.assertEqual(self.reduce(clients, "ar", [[f"a{index}", 0], [f"a{index + 1}", 0]], 64),
                             [[20.0 * index + 1] * 2] * 2)

    def test_freed_and_allocated_again_at_the_same_address(self):
        clients = self.group(2)
        count = MIB
        self.prepare_all_reduce(clients, count)
        everybody(clients, "register", memory="out", bytes=count * 4)
        last, same = None, 0
        for turn in range(4):
            addresses = [reply["address"] for reply in everybody(clients, "cuda_malloc", allocation="in",
                                                                 bytes=count * 4)]
            same += addresses == last
            last = addresses
            everybody(clients, "cuda_register", allocation="in", memory=f"in{turn}", bytes=count * 4)
            for rank, client in enumerate(clients):
                client.call("fill", memory=f"in{turn}", base=10 * turn + rank)
            self.assertEqual(self.reduce(clients, "ar", [[f"in{turn}", 0], ["out", 0]], count),
                             [[20.0 * turn + 1] * 2] * 2)
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
        clients = [self.daemon.client(f"rank{rank}", env={"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)})
                   for rank in range(2)]
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
        everybody(clients, "launch_threads", timeout=120, launches=[
            {"plan": key, "stream": f"s{key}", "times": 500, "bindings": [[f"{key}.in", 0], [f"{key}.out", 0]]}
            for key in keys])
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
                print(f"{plan}: {times} launches, CPU us a launch",
                      [round(1000 * reply["launch_ms"] / times, 2) for reply in replies])


if __name__ == "__main__":
    unittest.main()
