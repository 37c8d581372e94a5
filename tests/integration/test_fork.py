"""Processes that fork: gRPC does not bear it, so a child of one that had connected is refused whatever it tries, and its parent is
unharmed."""

import tempfile
import unittest

from harness import TandemTest

BINDINGS = [["ar.in", 0], ["ar.out", 0]]


class Fork(TandemTest):
    shares = True

    def test_a_child_is_refused_every_call_and_its_parent_unharmed(self):
        (client,) = self.group(1)
        client.call("allocate", memory="t", shape=[64])
        self.all_reduce_plan([client])
        client.call("launch", plan="ar", bindings=BINDINGS)
        reply = client.call("fork")
        self.assertGreater(len(reply["codes"]), 20)
        self.assertEqual(set(reply["codes"]), {"FAILED_PRECONDITION"}, reply)
        self.assertEqual(reply["exit"], 0)
        for _ in range(3):
            client.call("launch", plan="ar", bindings=BINDINGS)
        client.call("sync")
        client.call("wait", plan="ar")
        client.call("check")
        self.check_all_reduce([client])
        self.assertEqual(self.daemon.ctl_json("stats")["sessions"], 1)

    def test_a_child_cannot_connect_once_its_parent_has(self):
        client = self.daemon.client()
        client.connect()
        for detached in (False, True):
            if detached:
                client.call("detach")
            reply = client.call("fork_and_connect", runtime_dir=self.daemon.runtime_dir)
            self.assertEqual(reply["exit"], 0, reply)
            self.assertEqual(reply["child"]["code"], "FAILED_PRECONDITION", reply)
            self.assertIn("exec", reply["child"]["message"])
        client.connect()
        client.call("check")

    def test_a_child_connects_where_its_parent_has_not(self):
        client = self.daemon.client()
        reply = client.call("fork_and_connect", runtime_dir=self.daemon.runtime_dir)
        self.assertEqual((reply["child"]["code"], reply["exit"]), ("OK", 0), reply)
        # One that tried and found no daemon has nothing of gRPC either.
        with tempfile.TemporaryDirectory() as empty:
            self.assertFails("UNAVAILABLE", client.call, "connect", runtime_dir=empty, deadline_ms=100)
        reply = client.call("fork_and_connect", runtime_dir=self.daemon.runtime_dir)
        self.assertEqual((reply["child"]["code"], reply["exit"]), ("OK", 0), reply)


if __name__ == "__main__":
    unittest.main()
