"""kill -9 of tandemd, of an engine and of a rank while a rank waits in each step of a suspension and of a resumption: the call goes on
with the next tandemd or engine, or names the rank. The other rank is held where its limits of memory and of descriptors end its call."""

import os
import resource
import signal
import unittest

from harness import everybody, host_only, wait_until
from test_client_placement import AR
from test_restart import RestartTest
from test_suspend import SuspendTest

MOST_RANKS = 2
LARGE = 1 << 26  # elements of a tensor whose contents cannot be kept
PATIENCE = 50000
TRIES = 10
STEPS = ("stopped", "unmapped", "resuming", "mapped")


def memory_of(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def waits(pid):
    """Whether no thread of the process runs."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "S":
                return False
    return True


class limited:
    """A process's limit, while something runs."""

    def __init__(self, pid, what, limit):
        self.pid, self.what, self.limit = pid, what, limit

    def __enter__(self):
        self.before = resource.prlimit(self.pid, self.what)
        resource.prlimit(self.pid, self.what, (self.limit, self.before[1]))

    def __exit__(self, *_):
        resource.prlimit(self.pid, self.what, self.before)


@host_only("holds ranks by limits of the process's own memory")
class Kills(RestartTest, SuspendTest):
    gpus = 2

    def waiting(self, clients, step):
        """The call of rank 0, which waits in `step` for rank 1; and for "mapped" that of rank 1, which stands still."""
        first, held = clients
        if step == "stopped":
            return [first.send("suspend_group", deadline_ms=PATIENCE)]
        if step == "unmapped":
            # Rank 1 has stopped, and cannot keep its tensors' contents.
            call = first.send("suspend_group", deadline_ms=PATIENCE)
            with limited(held.pid, resource.RLIMIT_AS, memory_of(held.pid) + (32 << 20)):
                self.assertFails("RESOURCE_EXHAUSTED", held.call, "suspend_group", keep=True, deadline_ms=PATIENCE)
            self.assertEqual(self.shown()[0], "asleep")
            return [call]
        self.suspend(clients)
        if step == "resuming":
            return [first.send("resume_group", deadline_ms=PATIENCE)]
        return self.mapping(clients)

    def mapping(self, clients):
        """Rank 1 has asked for memory, which is there, and stands still before it hears of it."""
        first, held = clients
        for _ in range(TRIES):
            other = held.send("resume_group", deadline_ms=PATIENCE)
            wait_until(lambda: waits(held.pid))
            held.kill(signal.SIGSTOP)
            call = first.send("resume_group", deadline_ms=PATIENCE)
            try:  # not where it was stopped before tandemd had its call
                wait_until(lambda: self.segment_bytes() > 0, 5)
                if self.shown()[0] == "asleep":
                    return [call, other]
            except TimeoutError:
                pass
            held.kill(signal.SIGCONT)
            first.reply(call)
            held.reply(other)
            self.suspend(clients)
        self.fail("rank 1 is never between two steps")

    def go_on(self, clients, step, calls):
        """Rank 1 comes, and both go through what is left of the two calls."""
        suspends = step in ("stopped", "unmapped")
        if len(calls) > 1:
            clients[1].kill(signal.SIGCONT)
        else:
            calls.append(clients[1].send("suspend_group" if suspends else "resume_group", deadline_ms=PATIENCE))
        for client, call in zip(clients, calls):
            client.reply(call)
        if suspends:
            self.assertEqual(self.shown()[0], "asleep")
            self.assertEqual(self.segment_bytes(), 0)
            self.resume(clients)
        self.assertEqual(self.shown(), ("ready", ""))

    def held_job(self):
        clients = self.sleeper()
        everybody(clients, "allocate", memory="large", shape=[LARGE])
        return clients

    def test_the_ranks_wait_where_they_are_held(self):
        clients = self.held_job()
        for step in STEPS:
            with self.subTest(step=step):
                self.go_on(clients, step, self.waiting(clients, step))
                self.check_all(clients)

    def test_tandemd_is_killed_in_each_step(self):
        clients = self.held_job()
        for step in STEPS:
            with self.subTest(step=step):
                calls = self.waiting(clients, step)
                self.restart()
                self.go_on(clients, step, calls)
                self.check_all(clients)

    def test_an_engine_is_killed_in_each_step(self):
        clients = self.held_job()
        for step in STEPS:
            for gpu in range(2):
                with self.subTest(step=step, gpu=gpu):
                    calls = self.waiting(clients, step)
                    self.daemon.kill_engine(gpu)
                    self.daemon.wait_engines()
                    self.go_on(clients, step, calls)
                    self.check_all(clients)

    def test_a_rank_is_killed_in_each_step(self):
        for step in STEPS:
            with self.subTest(step=step):
                clients = self.held_job()
                calls = self.waiting(clients, step)
                clients[1].kill()
                reply = clients[0].reply(calls[0], check=False)
                self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
                self.assertEqual((reply["detail"]["reason"], reply["detail"]["ranks"]), ("RANK_LOST", [1]), reply)
                self.assertFails("UNAVAILABLE", clients[0].call, "launch", plan="ar", bindings=AR)
                clients[0].call("leave")
                self.daemon.close_clients()
                wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [], 60)
                self.assertEqual(self.segment_bytes(), 0)


if __name__ == "__main__":
    unittest.main()
