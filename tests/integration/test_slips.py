"""Ranks that slip: a call that is skipped, another call, a prepare that nobody else makes or that is broken off, an exception in
between, signals in a call. All ranks get a failure that names the rank long before the deadline, a renewal mends the group, and no
sum is wrong."""

import json
import os
import random
import subprocess
import unittest

from harness import BIN, TandemTest, everybody, host_only

CALLS = int(os.environ.get("TANDEM_TEST_SLIP_CALLS", "600"))
DEADLINE_MS = 120000
# In seconds. Where TANDEM_TEST_IDLE says that nothing else runs, a slip is named within one.
LONGEST = 1 if os.environ.get("TANDEM_TEST_IDLE") else 30
AR = [["ar.in", 0], ["ar.out", 0]]


@host_only("its program has streams of the host backend")
class RandomSlips(TandemTest):
    gpus = 3

    def run_slips(self, placement):
        seed = random.randrange(1 << 30)
        with self.subTest(seed=seed):
            done = subprocess.run(
                [os.path.join(BIN, "tandem-test-slips"), str(CALLS), placement, str(seed)],
                env={**os.environ, "TANDEM_RUNTIME_DIR": self.daemon.runtime_dir},
                stdout=subprocess.PIPE,
                text=True,
                timeout=250 + CALLS // 20,
            )
            told = json.loads(done.stdout)
            self.assertEqual(told["error"], "", told)
            # The ranks' launches have two minutes: no slip was found by a deadline.
            self.assertLess(told["slowest"], LONGEST, told)
            # An engine names the rank whose launch is unlike its own, which may be the right one.
            misnamed = {reason for reason in told["misnamed"] if placement == "client" or reason != "DESYNC"}
            self.assertEqual(misnamed, set(), told)
            self.assertNotIn("RANK_LATE", told["reasons"], told)
            if CALLS >= 600:
                self.assertGreater(sum(told["reasons"].values()), 0, told)

    def test_on_engines(self):
        self.run_slips("engine")

    def test_in_clients(self):
        self.run_slips("client")


class OneSlip(TandemTest):
    """Two ranks with a plan; rank 1 slips, rank 0 waits in a launch."""

    gpus = 2
    shares = True

    def begin(self, placement, name):
        clients = self.group(
            2, name=name, group="tp", launch_deadline_ms=DEADLINE_MS, options={"order": "same", "placement": placement}
        )
        self.all_reduce_plan(clients)
        self.all_reduce_plan(clients, count=64, key="other")
        self.check_all_reduce(clients)
        self.check_all_reduce(clients, count=64, key="other")
        return clients

    def failure(self, client, plan="ar"):
        client.call("sync", deadline_ms=DEADLINE_MS)
        reply = client.call("wait", plan=plan, check=False)
        self.assertFalse(reply["ok"], reply)
        return reply

    def mend(self, clients):
        everybody(clients, "renew")
        self.check_all_reduce(clients)
        self.check_all_reduce(clients, count=64, key="other")

    def each(self, test):
        for placement in ("engine", "client"):
            with self.subTest(placement=placement):
                clients = self.begin(placement, placement)
                test(clients)
                self.mend(clients)
                for client in clients:
                    client.close()

    def test_a_prepare_with_another_type(self):
        def test(clients):
            clients[0].call("launch", plan="ar", bindings=AR)
            operand = {"dtype": "bf16", "shape": [256]}
            reply = clients[1].call(
                "prepare",
                group="tp",
                key="bf16",
                request={
                    "op": "all_reduce",
                    "operands": [{"role": "input", **operand}, {"role": "output", **operand}],
                },
                deadline_ms=DEADLINE_MS,
                check=False,
            )
            waiting = self.failure(clients[0])
            for told in (reply, waiting):
                self.assertEqual(told["detail"]["reason"], "FIELD_MISMATCH", told)
                self.assertEqual(told["detail"]["ranks"], [1], told)
                self.assertIn("dtype", told["message"])
                self.assertIn("rank 1 prepares 'bf16' while rank 0 waits in launch", told["message"])
            self.assertIn("dtype", reply["detail"]["field"], reply)

        self.each(test)


if __name__ == "__main__":
    unittest.main()
