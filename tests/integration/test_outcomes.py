"""A failed launch reports its reason alike, whether it was made on a stream, in a graph or by gRPC."""

import unittest

from harness import TandemTest, wait_until

BINDINGS = [["ar.in", 0], ["ar.out", 0]]


class Outcomes(TandemTest):
    shares = True
    extra = ("--supervisor-crash-loop-count", "100", "--supervisor-backoff-max-ms", "100")

    def waiting(self, clients, how, **arguments):
        """Rank 0 has made a launch that waits for rank 1. Returns what waits for its end and gives the reply."""
        if how == "direct":
            call = clients[0].send("launch_without_stream", plan="ar", bindings=BINDINGS, **arguments)
        elif how == "replay":
            clients[0].call("capture", graph="g", launches=[{"plan": "ar", "bindings": BINDINGS, **arguments}])
            clients[0].call("replay", graph="g")
        else:
            clients[0].call("launch", plan="ar", bindings=BINDINGS, **arguments)
        wait_until(lambda: self.daemon.ctl_json("queue")["entries"], 60)

        def end():
            if how == "direct":
                return clients[0].reply(call, timeout=60, check=False)
            clients[0].call("sync", deadline_ms=50000)
            return clients[0].call("wait", plan="ar", check=False)

        return end

    def each_way(self, test, **arguments):
        """Calls `test` with each way to launch, and with two ranks of a group of their own."""
        for how in ("stream", "replay", "direct"):
            with self.subTest(how=how):
                clients = self.group(2, name=how, group="tp", **arguments)
                self.all_reduce_plan(clients)
                test(how, clients)
                for client in clients:
                    client.close()

    def assertReason(self, reply, code, reason, who=None):
        self.assertEqual((reply.get("code"), reply.get("detail", {}).get("reason")), (code, reason), reply)
        if who is not None:
            self.assertEqual(reply["detail"]["who"], who, reply)

    def test_a_late_rank(self):
        self.each_way(
            lambda how, clients: self.assertReason(
                self.waiting(clients, how)(), "DEADLINE_EXCEEDED", "RANK_LATE", "rank 1"
            ),
            launch_deadline_ms=5000,  # the queue shows it before
        )

    def test_a_rank_that_is_killed(self):
        def test(how, clients):
            end = self.waiting(clients, how)
            clients[1].kill()
            pid = clients[1].process.pid
            reply = end()
            self.assertReason(reply, "UNAVAILABLE", "RANK_LOST", "rank 1")
            self.assertEqual((reply["detail"]["ranks"], reply["detail"]["pid"]), ([1], pid), reply)
            # The outcome comes from the engine, the group's end from tandemd: either may be first.
            wait_until(
                lambda: any(event["kind"] == "group_broken" for event in clients[0].call("events")["events"]), 60
            )
            later = clients[0].call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], check=False)
            self.assertEqual((later["detail"]["ranks"], later["detail"]["pid"]), ([1], pid), later)

        self.each_way(test)

    def test_a_rank_that_leaves(self):
        def test(how, clients):
            end = self.waiting(clients, how)
            clients[1].call("leave", group="tp")
            self.assertReason(end(), "UNAVAILABLE", "RANK_LEFT", "rank 1")

        self.each_way(test)

    def test_the_own_engine_ends(self):
        self.engine_ends(0)

    def test_the_peers_engine_ends(self):
        self.engine_ends(1)

    def engine_ends(self, gpu):
        def test(how, clients):
            end = self.waiting(clients, how)
            self.daemon.kill_engine(gpu)
            self.assertReason(end(), "ABORTED", "ENGINE_RESTARTED")
            self.daemon.wait_engines()

        self.each_way(test)

    def test_a_restart_that_is_told_instead_of_a_launch(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.daemon.kill_engine(0)
        self.daemon.wait_engines()
        wait_until(lambda: any(e["kind"] == "engine_restarted" for e in clients[0].call("events")["events"]), 60)
        self.assertReason(
            clients[0].call("launch", plan="ar", bindings=BINDINGS, check=False), "ABORTED", "ENGINE_RESTARTED"
        )

    def test_tags_that_differ(self):
        def test(how, clients):
            end = self.waiting(clients, how, tag="a")
            other = clients[1].call("launch_without_stream", plan="ar", bindings=BINDINGS, tag="b", check=False)
            for reply in (end(), other):
                self.assertReason(reply, "INVALID_ARGUMENT", "LAUNCH_MISMATCH")

        self.each_way(test)

    def test_bindings_that_another_rank_is_refused(self):
        def test(how, clients):
            end = self.waiting(clients, how)
            refused = clients[1].call(
                "launch_without_stream", plan="ar", bindings=[["ar.in", 0], ["ar.out", 2]], check=False
            )
            self.assertIn(refused.get("code"), ("INVALID_ARGUMENT", "OUT_OF_RANGE"), refused)
            self.assertEqual(refused["detail"]["reason"], "BINDING_TOO_SMALL", refused)
            self.assertReason(end(), "FAILED_PRECONDITION", "LAUNCH_REFUSED", "rank 1")

        self.each_way(test)


if __name__ == "__main__":
    unittest.main()
