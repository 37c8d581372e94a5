"""Processes that leave their sessions to restored ones: without a connection they may be checkpointed, and who shows the secret goes
on with the same session, groups, addresses, plans and graphs. Nobody else does, and a rank that never comes back is named."""

import os
import unittest

from harness import everybody, host_only, wait_until
from test_client_placement import AR
from test_restart import RestartTest
from test_suspend import SuspendTest

MOST_RANKS = 2


def connections(pid):
    """The process's Unix sockets."""
    folder = f"/proc/{pid}/fd"
    links = []
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    return [link for link in links if link.startswith("socket:")]


@host_only("sessions with GPUs outlive no process")
class CheckpointTest(SuspendTest):
    def leave(self, clients):
        self.suspend(clients, keep=True)
        everybody(clients, "begin_checkpoint")

    def listed(self):
        return self.daemon.ctl_json("sessions")["sessions"]


class InOneProcess(CheckpointTest):
    def test_no_connection_is_left_and_everything_goes_on(self):
        clients = self.sleeper()
        sessions = [(one["id"], one["pid"]) for one in self.listed()]
        for _ in range(3):
            for rank, client in enumerate(clients):
                client.call("fill", memory="t", base=rank + 1, step=1)
            written = [client.call("read", memory="t", count=64)["values"] for client in clients]
            self.leave(clients)
            self.assertEqual([connections(client.pid) for client in clients], [[], []])
            self.assertTrue(all(one["checkpointed_seconds"] > 0 for one in self.listed()))
            self.assertIn("checkpointed", self.daemon.ctl("sessions").stdout)
            for client in clients:
                failure = self.assertFails("FAILED_PRECONDITION", client.call, "check")
                self.assertEqual(failure.detail["reason"], "CHECKPOINTED")
            self.resume(clients)
            self.assertEqual([client.call("read", memory="t", count=64)["values"] for client in clients], written)
            self.check_all(clients)
            everybody(clients, "check")
        self.assertEqual([(one["id"], one["pid"]) for one in self.listed()], sessions)

    def test_calls_may_be_repeated(self):
        clients = self.sleeper()
        everybody(clients, "end_checkpoint")  # nothing
        self.leave(clients)
        everybody(clients, "begin_checkpoint")
        everybody(clients, "end_checkpoint")
        everybody(clients, "end_checkpoint")
        self.leave(clients)  # its groups sleep still
        self.resume(clients)
        self.check_all(clients)

    def test_a_group_that_is_awake_is_named(self):
        clients = self.sleeper()
        for client in clients:
            failure = self.assertFails("FAILED_PRECONDITION", client.call, "begin_checkpoint")
            self.assertEqual(failure.detail["reason"], "NOT_SUSPENDED")
        self.check_all(clients)

    def test_graphs_with_launches_of_engines_keep_a_process_where_it_is(self):
        clients = self.sleeper()
        everybody(clients, "capture", graph="e", launches=[{"plan": "engine", "bindings": [["engine.in", 0], ["engine.out", 0]]}])
        self.suspend(clients)
        for client in clients:
            failure = self.assertFails("FAILED_PRECONDITION", client.call, "begin_checkpoint")
            self.assertEqual(failure.detail["reason"], "HAS_CHANNELS")
        self.resume(clients)
        self.check_all(clients)

    def test_a_process_that_never_comes_back_is_late(self):
        clients = self.sleeper()
        self.leave(clients)
        clients[1].kill()
        failure = self.assertFails("DEADLINE_EXCEEDED", clients[0].call, "resume_group", deadline_ms=500)
        self.assertEqual(failure.detail["ranks"], [1])
        (lost,) = [one["id"] for one in self.listed() if one["checkpointed_seconds"]]
        self.daemon.ctl("evict", str(lost))
        failure = self.assertFails("UNAVAILABLE", clients[0].call, "resume_group")
        self.assertEqual((failure.detail["reason"], failure.detail["ranks"]), ("RANK_LOST", [1]))
        everybody([clients[0]], "leave")
        everybody([clients[0]], "drop", memory="t")
        wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [], 60)
        self.assertEqual(self.segment_bytes(), 0)


class Limited(CheckpointTest):
    gpus = 2
    extra = ("--suspension-limit-ms", "1500")

    def test_a_session_that_nobody_restores_in_time_ends(self):
        clients = self.sleeper()
        self.leave(clients)
        wait_until(lambda: self.listed() == [], 60)
        for client in clients:
            failure = self.assertFails("UNAUTHENTICATED", client.call, "end_checkpoint")
            self.assertEqual(failure.detail["reason"], "SUSPENSION_LIMIT")
        self.assertEqual(self.segment_bytes(), 0)


class Restarts(RestartTest, CheckpointTest):
    gpus = 2

    def test_tandemd_is_restarted_while_sessions_wait(self):
        clients = self.sleeper()
        self.leave(clients)
        self.restart()
        self.resume(clients)
        self.check_all(clients)
        self.restart()
        self.check_all(clients)

    def test_without_tandemd_a_process_waits_where_it_is(self):
        clients = self.sleeper()
        self.leave(clients)
        self.end_daemon()
        for client in clients:
            failure = self.assertFails("UNAVAILABLE", client.call, "resume_group")
            self.assertEqual(failure.detail["reason"], "NO_DAEMON")
        self.next_daemon()
        self.resume(clients)
        self.check_all(clients)


if __name__ == "__main__":
    unittest.main()
