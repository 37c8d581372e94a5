"""The common parts of the tests of floods: another user's job, an operator and new clients, and the time of each."""

import os
import time

from harness import Client, Daemon, TandemTest

FLOODER, USER = 4242, 4243  # uids without a name
# Seconds that a job's step, an operator's call and an attach may take beside a flood, on a machine that does nothing else.
BESIDE = 1.0
# The same where each takes longer without any flood: so many times as long.
SLOWER = 4


class BesideAFlood(TandemTest):
    gpus = 2
    flags = ()

    def setUp(self):
        self.job_key = "0123456789abcdef"
        self.daemon = Daemon(self.gpus, ("--socket-group", str(os.getgid()), *self.flags))
        self.addCleanup(self.finish, self.daemon.stop)
        os.chmod(self.daemon.runtime_dir, 0o755)

    def job(self):
        """A user's job that has run a step; notes how long the three take without a flood."""
        clients = [Client(self.daemon, f"rank{rank}", user=USER) for rank in range(2)]
        for client in clients:
            client.connect()
        self.join(clients)
        self.all_reduce_plan(clients)
        self.undisturbed = self.times(clients)
        return clients

    @staticmethod
    def shortest(act, limit):
        """Seconds of the best of some: the machine may be busy with other things."""
        times = []
        for _ in range(8):
            times.append(act())
            if times[-1] < limit:
                break
        return min(times)

    def times(self, clients, limits=None):
        """Seconds of a checked step, of a new client, and of that client's eviction."""
        limits = limits or {"step": BESIDE, "attach": BESIDE, "evict": BESIDE}

        def timed(act, *arguments):
            began = time.monotonic()
            act(*arguments)
            return time.monotonic() - began

        def attach():
            return timed(Client(self.daemon, "new", user=USER).connect)

        def evict():
            attach()  # whom it ends; not counted
            sessions = self.daemon.ctl_json("sessions")["sessions"]
            new = next(s["id"] for s in sessions if s["name"] == "new")
            return timed(self.daemon.ctl, "evict", str(new))

        times = {"step": self.shortest(lambda: timed(self.check_all_reduce, clients), limits["step"])}
        times["attach"] = self.shortest(attach, limits["attach"])
        times["evict"] = self.shortest(evict, limits["evict"])
        return times

    def check_others(self, clients):
        """A step, a new client and an eviction of other users: each within a second."""
        limits = {name: max(BESIDE, SLOWER * took) for name, took in self.undisturbed.items()}
        times = self.times(clients, limits)
        print(self.id().rsplit(".", 1)[-1], {name: round(took, 3) for name, took in times.items()}, flush=True)
        for name, took in times.items():
            self.assertLess(took, limits[name], (name, times, self.undisturbed))
