"""Every operation by every algorithm through the daemon, with sums checked in Python; then the same under modes of the
host backend that bring out missing waits."""

import unittest

from harness import everybody, host_only
from operation_cases import OperationsTest

MOST_RANKS = 4


class Operations(OperationsTest):
    shares = True

    def test_two_ranks(self):
        self.all_operations(2)

    def test_three_ranks(self):
        self.all_operations(3)

    def test_four_ranks(self):
        self.all_operations(4)

    def all_operations(self, world):
        clients = self.group(world)
        self.collectives(world, clients)
        self.in_place(world, clients)
        self.matmuls(world, clients)

    def test_two_streams_and_two_threads(self):
        clients = self.group(2)
        for key in ("x", "y"):
            self.all_reduce_plan(clients, key=key, count=1024)
        for client in clients:
            for key in ("x", "y"):
                client.call("fill", memory=f"{key}.in", base=1)
        # Two plans on two streams; then one plan from both threads on one stream, where ranks need not agree on the order.
        for work in ((("x", "s1"), ("y", "s2")), (("x", "s"), ("x", "s"))):
            everybody(
                clients,
                "launch_threads",
                launches=[
                    {"plan": key, "stream": stream, "times": 50, "bindings": [[f"{key}.in", 0], [f"{key}.out", 0]]}
                    for key, stream in work
                ],
            )
            for stream in {stream for _, stream in work}:
                everybody(clients, "sync", stream=stream)
            for key in {key for key, _ in work}:
                everybody(clients, "wait", plan=key)
                for client in clients:
                    self.assertEqual(client.call("read", memory=f"{key}.out", count=1024)["values"], [2.0] * 1024)


@host_only("delays are the host backend's")
class LateVisibility(OperationsTest):
    extra = ("--testing-visibility-delay-us", "200")

    def test_results_do_not_depend_on_when_copies_become_visible(self):
        clients = self.group(3)
        self.collectives(3, clients)
        self.matmuls(3, clients)


@host_only("engines on GPUs set their hardware queues themselves")
class OneHardwareQueue(OperationsTest):
    extra = ("--hardware-queues", "1")

    def test_all_lanes_share_one_queue(self):
        clients = self.group(3)
        self.collectives(3, clients)
        self.matmuls(3, clients)


if __name__ == "__main__":
    unittest.main()
