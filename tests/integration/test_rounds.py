"""Two hundred rounds of jobs that come, work and die: descriptors, memory and processes return to the baseline."""

import random
import unittest

from harness import TandemTest, everybody, wait_until


class Rounds(TandemTest):
    gpus = 2

    def usage(self):
        stats = self.daemon.ctl_json("stats")
        return {
            "descriptors": self.daemon.descriptors(),
            **{k: stats[k] for k in ("sessions", "groups", "plans", "segment_bytes")},
        }

    def round(self, index, kill):
        clients = self.group(2, name=f"round{index % 7}")
        everybody(clients, "allocate", memory="t", group=f"round{index % 7}", shape=[5000])
        operand = {"dtype": "f32", "shape": [512]}
        for memory in ("in", "out"):
            everybody(clients, "register", group=f"round{index % 7}", memory=memory, bytes=2048)
        everybody(
            clients,
            "prepare",
            group=f"round{index % 7}",
            key="ar",
            plan="ar",
            request={"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]},
        )
        everybody(clients, "launch", plan="ar", bindings=[["in", 0], ["out", 0]])
        if kill == "now":
            clients[index % 2].kill()
        else:
            everybody(clients, "sync")
            everybody(clients, "wait", plan="ar")
            if kill == "none":
                everybody(clients, "detach")
        for client in clients:
            client.close()
        self.daemon.clients.clear()

    def test_two_hundred_rounds(self):
        random.seed(1)
        for index in range(5):
            self.round(index, "none")
        wait_until(lambda: self.usage()["sessions"] == 0, 60)
        baseline = self.usage()
        for index in range(200):
            self.round(index, random.choice(["none", "now", "after"]))

        def settled():
            """tandemd closes idle connections meanwhile, so it may have fewer descriptors."""
            usage = self.usage()
            return usage.pop("descriptors") <= baseline["descriptors"] and all(
                baseline[k] == n for k, n in usage.items()
            )

        wait_until(settled, 30, f"usage does not return to the baseline {baseline}: {self.usage()}")
        self.assertEqual(len(self.daemon.engine_pids()), 2)


if __name__ == "__main__":
    unittest.main()
