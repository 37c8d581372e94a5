"""Jobs outlive a restart of tandemd (docs/restart.md): launches go on without it, and the next one takes sessions, groups,
plans and engines over. Sessions and groups that it cannot take over end, by name."""

import os
import signal
import tempfile
import threading
import time
import unittest
from random import Random
from unittest import mock

from harness import BIN, Daemon, TandemTest, everybody, wait_until

MOST_RANKS = 4

AR = {
    "op": "all_reduce",
    "operands": [{"role": "input", "dtype": "f32", "shape": [256]}, {"role": "output", "dtype": "f32", "shape": [256]}],
}
BINDINGS = [["ar.in", 0], ["ar.out", 0]]


class RestartTest(TandemTest):
    grace_ms = 30000

    def setUp(self):
        self.extra = ("--restart-grace-ms", str(self.grace_ms))
        super().setUp()
        self.daemon.stop_signal = signal.SIGINT  # SIGTERM would leave the engines
        self.engine_pids = self.daemon.engine_pids()
        self.addCleanup(self.end_engines)

    def end_engines(self):
        for pid in self.engine_pids:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)

    def end_daemon(self, signum=signal.SIGKILL):
        self.daemon.process.send_signal(signum)
        self.daemon.process.wait(60)

    def next_daemon(self, *extra):
        """Another tandemd in the same place; the clients stay."""
        old = self.daemon
        old.own_dir = False
        old.log.close()
        self.daemon = Daemon(self.gpus, (*self.extra, *extra), runtime_dir=old.runtime_dir)
        self.daemon.own_dir = True
        self.daemon.stop_signal = signal.SIGINT
        self.daemon.clients = old.clients
        for client in old.clients:
            client.daemon = self.daemon

    def restart(self, signum=signal.SIGKILL):
        self.end_daemon(signum)
        self.next_daemon()

    def sessions(self):
        return {entry["id"]: entry["pid"] for entry in self.daemon.ctl_json("sessions")["sessions"]}

    def check_engines_stay(self):
        self.assertEqual(self.daemon.engine_pids(), self.engine_pids)

    def check_nothing_was_lost(self, clients):
        for client in clients:
            events = client.call("events")["events"]
            self.assertEqual([event for event in events if event["kind"] not in ("draining", "rank_left")], [])


class JobsGoOn(RestartTest):
    def test_launches_go_on_and_new_plans_can_be_prepared(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)  # opens the channels
        sessions = self.sessions()
        for signum in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(signum=signum):
                self.end_daemon(signum)
                for _ in range(5):
                    self.check_all_reduce(clients)
                self.next_daemon()
                self.check_engines_stay()
                self.check_all_reduce(clients)
                self.assertEqual(self.sessions(), sessions)
                self.all_reduce_plan(clients, key=f"new{signum}")
                self.check_all_reduce(clients, key=f"new{signum}")
                everybody(clients, "check")
        self.check_nothing_was_lost(clients)
        everybody(clients, "detach")
        wait_until(lambda: self.daemon.ctl_json("stats")["segment_bytes"] == 0, 60, "memory stays")

    def test_four_ranks_under_load(self):
        clients = self.group(4)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        sessions = self.sessions()
        calls = [client.send("launch", plan="ar", times=200, bindings=BINDINGS) for client in clients]
        for _ in range(3):
            self.restart()
        for client, call in zip(clients, calls):
            client.reply(call)
        everybody(clients, "sync", deadline_ms=50000)
        everybody(clients, "wait", plan="ar")
        self.check_all_reduce(clients)
        self.assertEqual(self.sessions(), sessions)
        self.check_nothing_was_lost(clients)

    def test_a_program_whose_name_is_no_text_is_taken_over(self):
        """Any process can give itself such a name. The record of all sessions must be readable all the same."""
        client = os.environ.get("TANDEM_TEST_CLIENT", os.path.join(BIN, "tandem-test-client"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a\x1b\udce9b")
            os.symlink(os.path.abspath(client), path)
            with mock.patch.dict(os.environ, {"TANDEM_TEST_CLIENT": path}):
                clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        sessions = self.sessions()
        self.restart()
        self.assertEqual(self.sessions(), sessions)
        self.check_all_reduce(clients)
        self.check_nothing_was_lost(clients)

    def test_calls_that_waited_go_on_with_the_next_tandemd(self):
        clients = [self.daemon.client(f"rank{rank}") for rank in range(2)]
        for client in clients:
            client.connect()
        steps = (
            ("join", lambda rank: {"rank": rank, "world": 2, "name": "tp", "job_key": self.job_key}),
            ("allocate", lambda rank: {"memory": "t", "shape": [1000]}),
            ("prepare", lambda rank: {"key": "ar", "plan": "ar", "request": AR}),
        )
        for signum in (signal.SIGKILL, signal.SIGTERM):
            for call, arguments in steps:
                if call == "join" and signum == signal.SIGTERM:
                    continue
                with self.subTest(call=call, signum=signum):
                    first = clients[0].send(call, **arguments(0) | ({"key": f"k{signum}"} if call == "prepare" else {}))
                    time.sleep(0.2)
                    self.restart(signum)
                    second = clients[1].send(
                        call, **arguments(1) | ({"key": f"k{signum}"} if call == "prepare" else {})
                    )
                    clients[0].reply(first)
                    clients[1].reply(second)
        everybody(clients, "register", memory="ar.in", bytes=1024)
        everybody(clients, "register", memory="ar.out", bytes=1024)
        self.check_all_reduce(clients)
        self.check_nothing_was_lost(clients)

    def test_calls_made_without_tandemd_wait_for_the_next_one(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.end_daemon()
        calls = [client.send("register", memory="more", bytes=4096) for client in clients]
        time.sleep(0.2)
        self.next_daemon()
        for client, call in zip(clients, calls):
            client.reply(call)
        self.check_all_reduce(clients)

    def test_symmetric_memory_keeps_its_contents(self):
        clients = self.group(2)
        everybody(clients, "allocate", memory="t", shape=[100])
        for rank, client in enumerate(clients):
            client.call("fill", memory="t", base=rank, step=1)
        before = [client.call("read", memory="t", count=100)["values"] for client in clients]
        self.restart()
        self.assertEqual([client.call("read", memory="t", count=100)["values"] for client in clients], before)
        used = sum(pool["used_bytes"] for pool in self.daemon.ctl_json("pools")["pools"])
        everybody(clients, "allocate", memory="u", shape=[100])
        self.assertEqual([client.call("read", memory="t", count=100)["values"] for client in clients], before)
        self.assertGreater(sum(pool["used_bytes"] for pool in self.daemon.ctl_json("pools")["pools"]), used)

    def test_captured_launches_go_on(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        everybody(clients, "capture", graph="g", launches=[{"plan": "ar", "bindings": BINDINGS}] * 2)
        for _ in range(2):
            self.end_daemon()
            everybody(clients, "replay", graph="g", times=3)
            everybody(clients, "sync", deadline_ms=50000)
            self.next_daemon()
            everybody(clients, "replay", graph="g", times=3)
            everybody(clients, "sync", deadline_ms=50000)
        everybody(clients, "wait", plan="ar")

    def test_an_engine_that_ends_later_restarts_as_ever(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.restart()
        self.daemon.kill_engine(1)
        self.daemon.wait_engines()
        for client in clients:
            self.hear_restart(client)
        self.check_all_reduce(clients)
        self.restart()
        self.check_all_reduce(clients)
        self.engine_pids = self.daemon.engine_pids()

    def test_counters_and_a_cordon_go_on(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.daemon.ctl("cordon")
        before = self.daemon.ctl_json("stats")
        self.restart()
        now = self.daemon.ctl_json("stats")
        self.assertTrue(now["cordoned"], now)
        for key in ("sessions", "groups", "plans", "segment_bytes"):
            self.assertEqual(now[key], before[key], key)
        self.assertGreaterEqual(
            sum(e["launches"] for e in now["engines"]), sum(e["launches"] for e in before["engines"])
        )
        self.assertGreater(sum(e["launches"] for e in before["engines"]), 0)
        self.all_reduce_plan(clients, key="new")
        self.check_all_reduce(clients, key="new")

    def test_launches_by_grpc_keep_their_outcomes(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        first = clients[0].send("launch_without_stream", plan="ar", bindings=BINDINGS)  # waits for rank 1
        wait_until(lambda: self.daemon.ctl_json("queue")["entries"], 60, "no launch")
        self.restart()
        clients[1].call("launch_without_stream", plan="ar", bindings=BINDINGS)
        clients[0].reply(first)


class AtAnyMoment(RestartTest):
    KILLS = 20

    def work(self, clients, turn):
        """Every kind of call that changes something, and a launch that is checked."""
        key = f"k{turn}"
        self.all_reduce_plan(clients, key=key)
        self.check_all_reduce(clients, key=key)
        everybody(clients, "allocate", memory="t", shape=[64 + turn])
        everybody(clients, "drop", memory="t")
        everybody(clients, "release", plan=key)
        everybody(clients, "drop", plan=key)
        for part in ("in", "out"):
            everybody(clients, "drop", memory=f"{key}.{part}")
        if turn % 4 == 3:
            everybody(clients, "leave")
            self.join(clients)

    def test_killed_at_random_moments_of_calls(self):
        clients = self.group(2)
        random = Random(int(os.environ.get("TANDEM_TEST_SEED", "7")))
        sessions = self.sessions()
        done = threading.Event()
        failures = []

        def run():
            turn = 0
            try:
                while not done.is_set():
                    self.work(clients, turn)
                    turn += 1
            except BaseException as error:  # the test's thread reports it
                failures.append(error)

        worker = threading.Thread(target=run)
        worker.start()
        try:
            for kill in range(self.KILLS):
                time.sleep(random.uniform(0.02, 0.3))
                self.restart(signal.SIGKILL if kill % 4 else signal.SIGTERM)
                if failures:
                    break
        finally:
            done.set()
            worker.join(60)
        if failures:
            raise failures[0]
        self.assertEqual(self.sessions(), sessions)
        self.check_engines_stay()
        self.check_nothing_was_lost(clients)
        everybody(clients, "detach")
        # Work that a kill has left half done is gone, too.
        wait_until(lambda: self.daemon.ctl_json("stats")["segment_bytes"] == 0, 60, "memory stays")


class ClientPlacement(RestartTest):
    def prepared(self):
        clients = self.group(2, options={"placement": "client"})
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        return clients

    def test_launches_in_clients_go_on(self):
        clients = self.prepared()
        for _ in range(2):
            self.end_daemon()
            for _ in range(3):
                self.check_all_reduce(clients)
            self.next_daemon()
            self.check_all_reduce(clients)
        self.all_reduce_plan(clients, key="new")
        self.check_all_reduce(clients, key="new")
        self.check_nothing_was_lost(clients)

    def test_the_next_tandemd_ends_launches_of_a_rank_that_dies(self):
        clients = self.prepared()
        self.restart()
        everybody(clients, "check")
        clients[0].call("launch", plan="ar", bindings=BINDINGS)
        clients[1].kill()
        clients[0].call("sync", deadline_ms=50000)
        failure = self.assertFails("UNAVAILABLE", clients[0].call, "wait", plan="ar", deadline_ms=50000)
        self.assertEqual(failure.detail["reason"], "RANK_LOST")
        self.assertEqual(failure.detail["ranks"], [1])


class Deaths(RestartTest):
    def test_a_rank_that_dies_meanwhile_is_named(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.end_daemon()
        clients[0].call("launch", plan="ar", bindings=BINDINGS)
        clients[1].kill()
        self.next_daemon()
        clients[0].call("sync", deadline_ms=50000)
        failure = self.assertFails("UNAVAILABLE", clients[0].call, "wait", plan="ar")
        self.assertEqual(failure.detail["reason"], "RANK_LOST", failure.message)
        self.assertEqual(failure.detail["ranks"], [1])
        self.assertEqual(failure.detail["pid"], clients[1].pid)
        # Its place is free: the others join again, with another process.
        other = self.daemon.client("other")
        other.connect()
        self.join([clients[0], other])
        self.all_reduce_plan([clients[0], other], key="again")
        self.check_all_reduce([clients[0], other], key="again")

    def test_an_engine_that_dies_meanwhile_takes_its_sessions_along(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.end_daemon()
        os.kill(self.engine_pids[1], signal.SIGKILL)
        everybody(clients, "launch", plan="ar", bindings=BINDINGS)
        self.next_daemon()
        everybody(clients, "sync", deadline_ms=50000)
        failure = self.assertFails("UNAVAILABLE", clients[0].call, "wait", plan="ar")
        self.assertEqual(failure.detail["reason"], "RANK_LOST", failure.message)
        failure = self.assertFails("UNAVAILABLE", clients[1].call, "wait", plan="ar")
        self.assertEqual(failure.detail["reason"], "DAEMON_LOST", failure.message)
        self.daemon.wait_engines()
        self.engine_pids = self.daemon.engine_pids()
        clients[1].connect()
        self.join(clients)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)


class NobodyComes(RestartTest):
    grace_ms = 6000

    def test_everything_ends_after_the_grace(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.end_daemon()
        begin = time.monotonic()
        self.check_all_reduce(clients)
        clients[0].call("launch", plan="ar", bindings=BINDINGS)  # rank 1 does not come
        wait_until(lambda: any(e["kind"] == "daemon_lost" for e in clients[0].call("events")["events"]), 60)
        self.assertGreater(time.monotonic() - begin, 5)
        clients[0].call("sync", deadline_ms=50000)
        for client in clients:
            reply = client.call("check", check=False)
            self.assertEqual(reply["detail"]["reason"], "DAEMON_LOST", reply)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in self.engine_pids), 60, "engines stay")
        self.next_daemon()
        for client in clients:
            client.connect()
        self.join(clients)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.engine_pids = self.daemon.engine_pids()


class Refusals(RestartTest):
    def check_all_ends(self, clients, why):
        log = self.daemon.tail(400)
        line = [line for line in log.splitlines() if "engines of an earlier tandemd are ended" in line]
        self.assertEqual(len(line), 1, log)
        self.assertIn(why, line[0])
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in self.engine_pids), 60, "engines stay")
        everybody(clients, "sync", deadline_ms=50000)
        for client in clients:
            wait_until(
                lambda client=client: any(e["kind"] == "daemon_lost" for e in client.call("events")["events"]), 60
            )
            client.connect()
        self.join(clients)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.engine_pids = self.daemon.engine_pids()

    def test_engines_with_other_settings_are_ended(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.end_daemon()
        self.next_daemon("--hardware-queues", "4")
        self.check_all_ends(clients, "another configuration: hardware_queues differs")

    def test_a_tandemd_without_the_key_ends_them(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.end_daemon()
        self.extra = ()
        self.next_daemon()
        self.check_all_ends(clients, "restart_grace_ms is 0")

    def test_a_stop_by_sigint_ends_the_job(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.daemon.process.send_signal(signal.SIGINT)
        wait_until(lambda: self.daemon.ctl_json("stats")["draining"], 60, "no drain")
        self.daemon.process.send_signal(signal.SIGINT)
        self.daemon.process.wait(60)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in self.engine_pids), 60, "engines stay")
        self.assertEqual(os.listdir(self.daemon.admin_dir) if os.path.exists(self.daemon.admin_dir) else [], [])


if __name__ == "__main__":
    unittest.main()
