"""Streams that wait in a launch are let go on within a second when tandemd or a rank of their group has gone, and the next call
says why."""

import os
import signal
import time
import unittest

from harness import Daemon, TandemTest, everybody, wait_until

PLANS = ("launched", "replayed")  # each on a separate stream
TRIES = 8  # the machine may be busy: the best of these counts, and the first that keeps the promise is enough
PROMISE = 1.0  # seconds from the kill until the last stream stands no longer


def stands_still(pid):
    """Whether all threads of a process are stopped: a signal reaches them one by one."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] != "T":
                return False
    return True


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

    def best_time(self, kill, before=lambda others: None):
        """The least time of some tries between `kill` and both streams' ends; `before` is not counted."""
        times = []
        for _ in range(TRIES):
            if self.daemon.process.poll() is not None:
                self.daemon.stop()
                self.daemon = Daemon(self.gpus, self.extra)
            waiter, *others = self.waiting_streams()
            before(others)
            begin = time.monotonic()
            kill(others)
            for stream in PLANS:
                waiter.call("sync", stream=stream, deadline_ms=50000)
            times.append(time.monotonic() - begin)
            self.says_why(waiter)
            self.daemon.close_clients()
            if times[-1] < PROMISE:
                break
        print(f"{self.id()}: streams went on after {', '.join(f'{t * 1e3:.0f}' for t in times)} ms", flush=True)
        self.assertLess(min(times), PROMISE, times)

    def says_why(self, waiter):
        for plan in PLANS:
            self.assertSaysWhy(waiter.call("wait", plan=plan, check=False))
            # A launch that overtakes the news is let go on in its turn, and then says why.
            reply = waiter.call("launch", plan=plan, bindings=self.bindings(plan), stream=plan, check=False)
            if reply["ok"]:
                waiter.call("sync", stream=plan, deadline_ms=50000)
                reply = waiter.call("wait", plan=plan, check=False)
            self.assertSaysWhy(reply)

    def assertSaysWhy(self, reply):
        self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
        self.assertRegex(reply["message"], self.why)

    def kill_tandemd(self, _):
        self.daemon.process.kill()
        self.daemon.process.wait()

    def test_tandemd_is_killed(self):
        self.why = "the daemon at .* is gone|the engine ended with its daemon"  # whoever is first
        self.best_time(self.kill_tandemd)

    def test_tandemd_is_killed_and_no_engine_can_let_them_go(self):
        self.why = "the daemon at .* is gone"

        def end_engines(_):
            # While tandemd is stopped, since it would announce their end.
            pids = self.daemon.engine_pids()
            self.daemon.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: stands_still(self.daemon.process.pid), 60, "tandemd does not stop")
            for pid in pids:  # its children that nobody has waited for: no number is another process's
                os.kill(pid, signal.SIGKILL)

        self.best_time(self.kill_tandemd, before=end_engines)

    def test_a_rank_is_killed(self):
        self.why = "rank 1"
        self.best_time(lambda others: others[0].kill())


if __name__ == "__main__":
    unittest.main()
