"""Streams that wait in a launch are let go on within a second when tandemd or a rank of their group has gone, and the next call
says why."""

import time
import unittest

from harness import Daemon, TandemTest, everybody

PLANS = ("launched", "replayed")  # each on a stream of its own
TRIES = 3       # the machine may be busy: the best of these counts
PROMISE = 1.0   # seconds from the kill until the last stream stands no longer


class Release(TandemTest):
    gpus = 2

    @staticmethod
    def bindings(plan):
        return [[f"{plan}.in", 0], [f"{plan}.out", 0]]

    def waiting_streams(self):
        """A group of two; streams of rank 0 stand in an ordinary launch and in a graph's: rank 1 launches nothing."""
        clients = self.group(2)
        for plan in PLANS:
            self.all_reduce_plan(clients, key=plan)
            self.check_all_reduce(clients, key=plan)
        everybody(clients, "capture", graph="g", launches=[{"plan": "replayed", "bindings": self.bindings("replayed")}])
        clients[0].call("launch", plan="launched", bindings=self.bindings("launched"), stream="launched")
        clients[0].call("replay", graph="g", stream="replayed")
        for stream in PLANS:
            # A look with a short deadline: it stands.
            self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "sync", stream=stream, deadline_ms=50)
        return clients

    def best_time(self, prepare, kill):
        """The least time of some tries between `kill` and both streams' ends, each try with streams from `prepare`."""
        times = []
        for _ in range(TRIES):
            waiter, *others = prepare()
            begin = time.monotonic()
            kill(others)
            for stream in PLANS:
                waiter.call("sync", stream=stream, deadline_ms=20000)
            times.append(time.monotonic() - begin)
            self.says_why(waiter)
            self.daemon.close_clients()
        print(f"{self.id()}: streams went on after {', '.join(f'{t * 1e3:.0f}' for t in times)} ms", flush=True)
        self.assertLess(min(times), PROMISE, times)

    def says_why(self, waiter):
        for plan in PLANS:
            self.assertSaysWhy(waiter.call("wait", plan=plan, check=False))
            # A launch that overtakes the news is let go on in its turn, and then says why.
            reply = waiter.call("launch", plan=plan, bindings=self.bindings(plan), stream=plan, check=False)
            if reply["ok"]:
                waiter.call("sync", stream=plan, deadline_ms=20000)
                reply = waiter.call("wait", plan=plan, check=False)
            self.assertSaysWhy(reply)

    def assertSaysWhy(self, reply):
        self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
        self.assertIn(self.why, reply["message"])

    def test_tandemd_is_killed(self):
        self.why = "the daemon at "

        def kill(_):
            self.daemon.process.kill()
            self.daemon.process.wait()

        def prepare():
            if self.daemon.process.poll() is not None:
                self.daemon.stop()
                self.daemon = Daemon(self.gpus, self.extra)
            return self.waiting_streams()

        self.best_time(prepare, kill)

    def test_a_rank_is_killed(self):
        self.why = "rank 1"
        self.best_time(self.waiting_streams, lambda others: others[0].kill())


if __name__ == "__main__":
    unittest.main()
