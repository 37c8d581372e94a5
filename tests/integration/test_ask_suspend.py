"""An operator asks a job for its GPU memory: all ranks sleep before the same step, whatever they were doing, and go on with it
when they may. Who has not offered it, is late, or dies is named, and the job goes on."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import time
import unittest

from harness import BIN, everybody, needs_gpus, wait_until
from test_client_placement import AR
from test_restart import RestartTest
from test_suspend import COUNT, SuspendTest

MOST_RANKS = 3
PATIENCE = "20"
# Ranks that wait for each step, and one that runs ahead by what its channel holds.
STEP = [{"cmd": "launch", "plan": "ar", "bindings": AR}, {"cmd": "sync", "deadline_ms": 50000}]
AHEAD = [{"cmd": "launch", "plan": "ar", "bindings": AR}]


class AskedTest(SuspendTest):
    gpus = 2

    def begin(self, clients, each=(STEP, AHEAD), **arguments):
        """The ranks make steps; an operator may ask them once all have begun."""
        calls = [client.send("steps", each=each[rank % len(each)], **arguments) for rank, client in enumerate(clients)]
        wait_until(lambda: all(session.get("suspends") for session in self.listed()), 60)
        return calls

    def end(self, clients, calls):
        replies = [client.reply(call) for client, call in zip(clients, calls)]
        everybody(clients, "sync", deadline_ms=50000)
        everybody(clients, "wait", plan="ar")
        return replies

    def listed(self):
        return self.daemon.ctl_json("sessions")["sessions"]

    def session_of(self, client):
        (found,) = [int(one["id"]) for one in self.listed() if one["pid"] == client.pid]
        return str(found)

    def ask(self, client, verb="suspend", wait=PATIENCE, **arguments):
        return self.daemon.ctl(verb, self.session_of(client), "--wait", wait, **arguments)

    def await_request(self, client):
        """A client that makes no step has heard of it."""
        wait_until(lambda: "suspend_requested" in [one["kind"] for one in client.call("events")["events"]], 60)

    @contextlib.contextmanager
    def asking(self, clients, **arguments):
        """An operator's request that all clients have heard of, and which their programs answer later."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.ask, clients[0], check=False, **arguments)
            for client in clients:
                self.await_request(client)
            yield asked

    def states(self):
        return sorted(group["state"] for group in self.daemon.ctl_json("groups")["groups"])


class Asked(AskedTest):
    def test_all_ranks_sleep_before_the_same_step_and_go_on(self):
        clients = self.sleeper()
        for client in clients:
            client.call("fill", memory="t", base=client.pid, step=1)
        written = [client.call("read", memory="t", count=COUNT)["values"] for client in clients]
        calls = self.begin(clients, sleeps=3)
        for turn in range(3):
            self.assertIn("groups sleep", self.ask(clients[turn % 2]).stdout)
            (group,) = self.daemon.ctl_json("groups")["groups"]
            self.assertEqual(group["state"], "asleep")
            self.assertGreater(group["asleep_seconds"], 0)
            self.assertEqual(self.segment_bytes(), 0)
            self.ask(clients[0])  # it sleeps already
            self.assertIn("run again", self.ask(clients[(turn + 1) % 2], "resume").stdout)
            self.assertEqual(self.states(), ["ready"])
        self.assertIn("no group", self.ask(clients[0], "resume").stdout)
        replies = self.end(clients, calls)
        self.assertEqual([reply["slept"] for reply in replies], [3, 3])
        self.assertEqual(replies[0]["slept_at"], replies[1]["slept_at"])
        self.assertEqual(written, [client.call("read", memory="t", count=COUNT)["values"] for client in clients])
        self.check_all(clients)

    def test_contents_are_dropped_where_the_program_says_so(self):
        clients = self.sleeper()
        everybody(clients, "fill", memory="t", base=1, step=1)
        calls = self.begin(clients, keep=False)
        self.ask(clients[0])
        self.ask(clients[0], "resume")
        self.end(clients, calls)
        for client in clients:
            self.assertEqual(client.call("read", memory="t", count=COUNT)["values"], [0] * COUNT)

    def test_programs_may_number_their_steps(self):
        """A process that has made other steps before, as one that has replaced another."""
        clients = self.sleeper()
        clients[0].call("steps", most=7)
        calls = self.begin(clients, first=100)
        self.ask(clients[1])
        self.ask(clients[1], "resume")
        replies = self.end(clients, calls)
        self.assertEqual(replies[0]["slept_at"], replies[1]["slept_at"])

    def test_graphs_alone_are_steps_too(self):
        clients = self.sleeper()
        each = [{"cmd": "replay", "graph": "g"}, {"cmd": "sync", "deadline_ms": 50000}]
        calls = self.begin(clients, each=(each,), sleeps=5)
        for _ in range(5):
            self.ask(clients[0])
            self.ask(clients[0], "resume")
        self.end(clients, calls)
        self.check_all(clients)

    def test_who_has_not_offered_it_is_named(self):
        clients = self.sleeper()
        clients[0].call("steps", most=1)
        refused = self.ask(clients[0], check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"session {self.session_of(clients[1])} (pid {clients[1].pid}", refused.stderr)
        self.assertNotIn(f"pid {clients[0].pid}", refused.stderr)
        self.check_all(clients)

    def test_sessions_that_cannot_be_asked(self):
        self.assertEqual(self.daemon.ctl("suspend", "99999", check=False).returncode, 4)
        self.assertEqual(self.daemon.ctl("resume", "99999", check=False).returncode, 4)
        client = self.daemon.client()
        client.connect()
        client.call("steps", most=1)
        self.assertIn("has no group", self.ask(client, check=False).stderr)

    def test_a_late_rank_is_named_and_the_job_goes_on(self):
        """Rank 1 makes no step for a while. Rank 0 is told that nobody asks any more."""
        clients = self.sleeper()
        everybody(clients, "steps", most=1)
        with self.asking(clients, wait="3") as asking:
            call = clients[0].send("steps", each=[], most=4)
            refused = asking.result()
        self.assertEqual(refused.returncode, 6, refused)
        self.assertIn(f"pid {clients[1].pid}", refused.stderr)
        self.assertEqual(clients[0].reply(call)["slept"], 0)
        clients[1].call("steps", each=[], most=4)
        self.check_all(clients)
        calls = self.begin(clients)
        self.ask(clients[0])
        self.ask(clients[0], "resume")
        self.end(clients, calls)

    def test_an_operator_who_goes_away_asks_no_more(self):
        clients = self.sleeper()
        everybody(clients, "steps", most=1)
        command = [os.path.join(BIN, "tandemctl"), "--runtime-dir", self.daemon.runtime_dir]
        operator = subprocess.Popen([*command, "suspend", self.session_of(clients[0])])
        for client in clients:
            self.await_request(client)
        call = clients[0].send("steps", each=[], most=4)
        operator.kill()
        operator.wait()
        self.assertEqual(clients[0].reply(call)["slept"], 0)
        clients[1].call("steps", each=[], most=4)
        self.check_all(clients)

    def test_all_groups_of_a_job_sleep(self):
        """Rank 1 is in two groups: an operator names a session of one, and those of both sleep."""
        clients = self.sleeper()
        third = self.daemon.client("third")
        third.connect()
        gpus = [engine["gpu_uuid"] for engine in self.daemon.engines()]
        self.join([clients[1], third], name="second", group="second", gpus=[gpus[1], gpus[0]])
        everybody([clients[1], third], "allocate", group="second", memory="s", shape=[COUNT])
        meeting = [{"cmd": "signal", "memory": "s", "what": "barrier", "deadline_ms": 50000}]
        everyone = [*clients, third]
        calls = self.begin(everyone, each=(STEP, AHEAD + meeting, meeting))
        self.ask(third)
        self.assertEqual(self.states(), ["asleep", "asleep"])
        self.ask(clients[0], "resume")
        self.assertEqual(self.states(), ["ready", "ready"])
        replies = [client.reply(call) for client, call in zip(everyone, calls)]
        self.assertEqual([reply["slept"] for reply in replies], [1, 1, 1])
        everybody(clients, "sync", deadline_ms=50000)
        self.check_all(clients)

    def test_a_group_that_cannot_sleep_fails_the_request_alone(self):
        """A tensor has met in two groups. The operator hears why, and no program fails."""
        clients = self.sleeper()
        self.join(clients, name="second", group="second")
        gpus = [engine["gpu_uuid"] for engine in self.daemon.engines()]
        everybody(clients, "empty", each=lambda rank: {"gpu": gpus[rank]}, tensor="u", shape=[COUNT])
        for group in ("tp", "second"):
            everybody(clients, "rendezvous", tensor="u", memory="u", group=group)
        everybody(clients, "steps", most=1)
        with self.asking(clients) as asking:
            calls = [client.send("steps", each=STEP, most=4) for client in clients]
            refused = asking.result()
        self.assertEqual(refused.returncode, 1, refused)
        self.assertIn("free it first", refused.stderr)
        self.assertEqual([reply["slept"] for reply in self.end(clients, calls)], [0, 0])
        self.assertEqual(self.states(), ["ready", "ready"])
        self.check_all(clients)

    def test_listings_show_who_sleeps_and_since_when(self):
        clients = self.sleeper()
        calls = self.begin(clients)
        self.ask(clients[0])
        listed = self.daemon.ctl("sessions").stdout
        self.assertIn("suspends", listed)
        self.assertIn("ago", self.daemon.ctl("groups").stdout)
        self.ask(clients[0], "resume")
        self.end(clients, calls)


@needs_gpus(3)
class Deaths(AskedTest):
    gpus = 3
    world = 3

    def lost(self, clients, calls):
        """The others end their steps with the name of rank 1."""
        for client, call in zip(clients, calls):
            reply = client.reply(call, check=False)
            self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
            self.assertEqual(reply["detail"]["ranks"], [1], reply)

    def check_refused(self, refused, killed, others, calls):
        """tandemctl names the killed rank, and the others have not slept."""
        self.assertEqual(refused.returncode, 3, refused)
        self.assertIn(f"pid {killed.pid}", refused.stderr)
        for client, call in zip(others, calls):
            self.assertEqual(client.reply(call)["slept"], 0)

    def test_a_rank_killed_before_its_step(self):
        clients = self.sleeper()
        everybody(clients, "steps", most=1)
        others = [clients[0], clients[2]]
        with self.asking(clients) as asking:
            calls = [client.send("steps", each=[], most=4) for client in others]
            clients[1].kill()
            self.check_refused(asking.result(), clients[1], others, calls)

    def test_a_rank_killed_before_it_answers(self):
        clients = self.sleeper()
        everybody(clients, "steps", most=1)
        others = [clients[0], clients[2]]
        session = self.session_of(clients[0])
        clients[1].kill(signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asking = pool.submit(self.daemon.ctl, "suspend", session, "--wait", PATIENCE, check=False)
            for client in others:
                self.await_request(client)
            calls = [client.send("steps", each=[], most=4) for client in others]
            clients[1].kill()
            self.check_refused(asking.result(), clients[1], others, calls)

    def test_a_rank_killed_asleep_wakes_the_others_with_its_name(self):
        clients = self.sleeper()
        calls = self.begin(clients)
        self.ask(clients[0])
        clients[1].kill()
        self.lost([clients[0], clients[2]], [calls[0], calls[2]])

    def test_a_rank_killed_while_they_resume(self):
        clients = self.sleeper()
        calls = self.begin(clients)
        self.ask(clients[0])
        clients[1].kill(signal.SIGSTOP)  # it does not come to the resumption
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asking = pool.submit(self.ask, clients[0], "resume", wait="1", check=False)
            late = asking.result()
            self.assertEqual(late.returncode, 6, late)
            self.assertIn(f"pid {clients[1].pid}", late.stderr)
            asking = pool.submit(self.ask, clients[0], "resume", check=False)
            clients[1].kill()
            self.assertIn(asking.result().returncode, (1, 3))  # 1: its group has gone
        self.lost([clients[0], clients[2]], [calls[0], calls[2]])

    def test_a_rank_killed_anywhere_in_a_request(self):
        for delay in (0, 2, 5, 10, 15, 20, 30):
            clients = self.sleeper()
            calls = self.begin(clients, each=(STEP,))
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asking = pool.submit(self.ask, clients[0], check=False)
                time.sleep(delay / 1000)
                clients[1].kill()
                self.assertIn(asking.result().returncode, (0, 1, 3, 4), asking.result())  # 1: its group has gone
            for client, call in zip((clients[0], clients[2]), (calls[0], calls[2])):
                reply = client.reply(call, check=False)
                self.assertEqual(reply.get("code"), "UNAVAILABLE", (delay, reply))
            self.daemon.close_clients()
            wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [], 60)
            self.assertEqual(self.segment_bytes(), 0)


class Restarts(RestartTest, AskedTest):
    gpus = 2

    def test_tandemd_is_restarted_under_a_job_that_sleeps_by_request(self):
        clients = self.sleeper()
        calls = self.begin(clients, sleeps=2)
        self.ask(clients[0])
        self.restart()
        self.assertTrue(all(one.get("suspends") for one in self.listed()))
        self.assertEqual(self.states(), ["asleep"])
        self.ask(clients[1], "resume")
        self.ask(clients[1])
        self.ask(clients[0], "resume")
        self.end(clients, calls)
        self.check_all(clients)

    def test_tandemd_ends_while_the_job_answers(self):
        clients = self.sleeper()
        everybody(clients, "steps", most=1)
        with self.asking(clients) as asking:
            call = clients[0].send("steps", each=[], most=4)
            self.restart()
            self.assertNotEqual(asking.result().returncode, 0)
        self.assertEqual(clients[0].reply(call)["slept"], 0)
        clients[1].call("steps", each=[], most=4)
        calls = self.begin(clients)
        self.ask(clients[0])
        self.ask(clients[0], "resume")
        self.end(clients, calls)
        self.check_all(clients)


if __name__ == "__main__":
    unittest.main()
