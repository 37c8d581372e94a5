"""MPS servers on GPUs: a spare one, fifty rounds of clients and engines that are killed, and how many processes one takes."""

import os
import signal
import time
import unittest

from figures import (
    ROUNDS_WITHIN_SECONDS,
    measured,
    note,
)
from gpu_node import GpuDaemon, Mps, Neighbour, NoContext, gpu_count, memory_used, wait_until
from harness import everybody


@unittest.skipIf(gpu_count() < 1, "needs a GPU")
class SpareServer(unittest.TestCase):
    """With a spare MPS server an engine need not wait for those who fell with it."""

    def test_the_engine_comes_back_beside_the_lingering(self):
        usual, spare = Mps(), Mps()
        self.addCleanup(usual.stop)
        self.addCleanup(spare.stop)
        daemon = GpuDaemon(usual, extra=("--mps-spare-pipe-directory", spare.pipe))
        self.addCleanup(daemon.stop)
        lingering, culprit = Neighbour(daemon, 0), Neighbour(daemon, 0, watch=False)
        self.addCleanup(lingering.close)
        self.addCleanup(culprit.close)
        generation = daemon.engine(0)["generation"]
        begun = time.monotonic()
        culprit.ask("fault")
        daemon.wait_engine(0, generation)
        note(f"fault to an engine on the spare server: {time.monotonic() - begun:.2f} s")
        self.assertEqual(daemon.engine(0)["mps"], spare.pipe)
        self.assertIsNone(lingering.process.poll())
        # Once they have gone, the engine's next life is under the usual server.
        lingering.process.kill()
        culprit.process.kill()
        lingering.process.wait()
        culprit.process.wait()
        time.sleep(1.0)  # the server lets go of them after their ends
        generation = daemon.engine(0)["generation"]
        os.kill(daemon.engine(0)["pid"], signal.SIGKILL)
        daemon.wait_engine(0, generation)
        self.assertEqual(daemon.engine(0)["mps"], usual.pipe)


@unittest.skipIf(gpu_count() < 2, "needs two GPUs")
class Rounds(unittest.TestCase):
    """Fifty rounds of clients that come and are killed in several states, and of engines: what they had is given back."""

    LAUNCH = {"plan": "ar", "bindings": [["in", 0], ["out", 0]]}

    def setUp(self):
        mps = Mps()
        self.addCleanup(mps.stop)
        self.daemon = GpuDaemon(mps)
        self.addCleanup(self.daemon.stop)
        self.uuids = [engine["gpu_uuid"] for engine in self.daemon.engines()]
        self.engines = self.daemon.engine_pids()

    def join(self, name, world, coming):
        """Clients, and their calls to join a group of `world`, of which as many as `coming` ever do."""
        clients = [self.daemon.client(f"{name} rank {rank}") for rank in range(coming)]
        for client in clients:
            client.connect()
        return clients, [
            client.send(
                "join", rank=rank, world=world, name=name, group="g", job_key="0123456789abcdef", gpu=self.uuids[rank]
            )
            for rank, client in enumerate(clients)
        ]

    def group(self, name, world):
        """Clients that have joined, and have memory of every kind."""
        clients, calls = self.join(name, world, world)
        for client, call in zip(clients, calls):
            client.reply(call)
        everybody(clients, "allocate", group="g", memory="in", shape=[4 << 20])
        everybody(clients, "cuda_malloc", allocation="mine", bytes=16 << 20)
        everybody(clients, "cuda_register", allocation="mine", memory="mine", bytes=16 << 20)
        return clients

    def pair_in_a_launch(self, name):
        """A group of two that has made a launch, and whose first rank waits in another one."""
        clients = self.group(name, 2)
        everybody(clients, "allocate", group="g", memory="out", shape=[1 << 16])
        operand = {"dtype": "f32", "shape": [1 << 16], "symmetric": True}
        everybody(
            clients,
            "prepare",
            group="g",
            key="ar",
            plan="ar",
            request={"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]},
        )
        everybody(clients, "launch", **self.LAUNCH)
        everybody(clients, "sync", deadline_ms=20000)
        everybody(clients, "wait", plan="ar")
        clients[0].call("launch", **self.LAUNCH)
        self.assertEqual(clients[0].call("sync", deadline_ms=50, check=False).get("code"), "DEADLINE_EXCEEDED")
        return clients

    def kill_a_rank(self, clients, rank):
        """The other one gets the failure, and no stream hangs."""
        clients[rank].kill()
        other = clients[1 - rank]
        wait_until(
            lambda: any(event["kind"] == "group_broken" for event in other.call("events")["events"]),
            10,
            "nobody told the survivor",
        )
        other.call("sync", deadline_ms=20000)

    def kill_an_engine(self, clients, gpu):
        """It is started again, and the launch that waited has ended with ABORTED."""
        generation = self.daemon.engine(gpu)["generation"]
        os.kill(self.engines[gpu], signal.SIGKILL)
        clients[0].call("sync", deadline_ms=20000)
        self.assertEqual(clients[0].call("wait", plan="ar", check=False).get("code"), "ABORTED")
        self.daemon.wait_engine(gpu, generation)
        self.engines = self.daemon.engine_pids()

    def round(self, count):
        name, gpu = f"g{count}", count // 10 % 2  # ranks and engines of both GPUs by turns
        if count % 10 == 0:
            self.kill_a_rank(self.pair_in_a_launch(name), gpu)
        elif count % 10 == 5:
            self.kill_an_engine(self.pair_in_a_launch(name), gpu)
        elif count % 5 == 4:
            self.join(name, 2, 1)  # the second rank never comes
        else:
            self.group(name, 1)
        self.daemon.close_clients()  # by SIGKILL
        wait_until(lambda: not self.daemon.ctl_json("sessions").get("sessions"), 20, "a session is left")
        self.assertEqual(self.daemon.engine_pids(), self.engines)

    def test_memory_is_back_after_fifty_rounds(self):
        begun = time.monotonic()
        self.round(0)  # makes what stays: the engines' tables
        time.sleep(0.5)
        before, descriptors = memory_used()[:2], self.daemon.descriptors()
        for count in range(1, 51):
            self.round(count)
        # An engine of a later life may take a little more. A tensor or a registration that each round of one kind left would be
        # 80 MiB or more.
        wait_until(
            lambda: all(now <= then + 32 for now, then in zip(memory_used(), before)),
            20,
            f"memory does not come back to {before} MiB",
        )
        measured("fifty rounds", time.monotonic() - begun, ROUNDS_WITHIN_SECONDS)
        note(
            f"memory before {before}, after {memory_used()[:2]} MiB; descriptors {descriptors}, {self.daemon.descriptors()}"
        )
        self.assertLessEqual(self.daemon.descriptors(), descriptors + 8)


@unittest.skipIf(gpu_count() < 1, "needs a GPU")
class Contexts(unittest.TestCase):
    """How many processes beside an engine one MPS server takes on a GPU, by the hardware queues that each asks for."""

    def count(self, daemon, connections, most):
        neighbours = []
        try:
            while len(neighbours) < most:
                neighbours.append(
                    Neighbour(daemon, 0, watch=False, env={"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)})
                )
        except NoContext as refusal:
            note(f"{connections} connections each: {refusal}")
        seconds = [neighbour.start_seconds for neighbour in neighbours]
        for neighbour in neighbours:
            neighbour.close()
        note(
            f"{connections} connections each: {len(neighbours)} processes beside the engine, a context takes "
            f"{min(seconds, default=0):.2f} to {max(seconds, default=0):.2f} s"
        )
        return len(neighbours)

    def test_how_many_processes_share_a_gpu(self):
        mps = Mps()
        self.addCleanup(mps.stop)
        daemon = GpuDaemon(mps)
        self.addCleanup(daemon.stop)
        self.assertGreaterEqual(self.count(daemon, 8, 8), 6)  # what these tests need
        self.assertGreaterEqual(self.count(daemon, 32, 5), 1)  # a training process that asks for all


if __name__ == "__main__":
    unittest.main(verbosity=2)
