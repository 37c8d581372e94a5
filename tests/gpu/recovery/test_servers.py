"""MPS servers on GPUs: a spare one, fifty rounds of clients that are killed, and how many processes one takes."""

import os
import signal
import time
import unittest

from figures import ROUNDS_WITHIN_SECONDS, WhatItTook, measured, note  # noqa: F401: WhatItTook is a test of this module too
from gpu_node import GpuDaemon, Mps, Neighbour, NoContext, gpu_count, memory_used, wait_until


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


@unittest.skipIf(gpu_count() < 1, "needs a GPU")
class Rounds(unittest.TestCase):
    """Fifty clients that come and are killed in several states: what they had is given back."""

    def test_memory_is_back_after_fifty_rounds(self):
        mps = Mps()
        self.addCleanup(mps.stop)
        daemon = GpuDaemon(mps)
        self.addCleanup(daemon.stop)
        engine = daemon.engine(0)
        before, descriptors = None, 0
        begun = time.monotonic()
        for count in range(51):
            client = daemon.client(f"round{count}")
            client.connect()
            waits = count % 5 == 4  # for a second rank that never comes
            join = client.send("join", rank=0, world=2 if waits else 1, name=f"g{count}", group="g",
                               job_key="0123456789abcdef", gpu=engine["gpu_uuid"])
            if not waits:
                client.reply(join)
                client.call("allocate", group="g", memory="in", shape=[4 << 20])
                client.call("cuda_malloc", allocation="mine", bytes=16 << 20)
                client.call("cuda_register", allocation="mine", memory="mine", bytes=16 << 20)
            client.close()  # by SIGKILL
            daemon.clients.remove(client)
            wait_until(lambda: not daemon.ctl_json("sessions").get("sessions"), 20, "a session is left")
            if before is None:  # the first round has made what stays: the engine's tables
                time.sleep(0.5)
                before, descriptors = memory_used()[0], daemon.descriptors()
        wait_until(lambda: memory_used()[0] <= before + 16, 20, f"memory does not come back to {before} MiB")
        measured("fifty rounds", time.monotonic() - begun, ROUNDS_WITHIN_SECONDS)
        note(f"memory before {before}, after {memory_used()[0]} MiB; descriptors {descriptors}, {daemon.descriptors()}")
        self.assertLessEqual(daemon.descriptors(), descriptors + 8)
        self.assertEqual(daemon.engine(0)["generation"], engine["generation"])


@unittest.skipIf(gpu_count() < 1, "needs a GPU")
class Contexts(unittest.TestCase):
    """How many processes beside an engine one MPS server takes on a GPU, by the hardware queues that each asks for."""

    def count(self, daemon, connections, most):
        neighbours = []
        try:
            while len(neighbours) < most:
                neighbours.append(Neighbour(daemon, 0, watch=False, env={"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)}))
        except NoContext as refusal:
            note(f"{connections} connections each: {refusal}")
        seconds = [neighbour.start_seconds for neighbour in neighbours]
        for neighbour in neighbours:
            neighbour.close()
        note(f"{connections} connections each: {len(neighbours)} processes beside the engine, a context takes "
             f"{min(seconds, default=0):.2f} to {max(seconds, default=0):.2f} s")
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
