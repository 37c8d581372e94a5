"""Processes that leave their sessions to restored ones: without a connection they may be checkpointed, and who shows the secret goes
on with the same session, groups, addresses, plans and graphs. Nobody else does, and a rank that never comes back is named."""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from harness import BIN, TandemTest, everybody, host_only, wait_until
from test_restart import RestartTest
from test_suspend import CYCLES, Held, SuspendTest

MOST_RANKS = 2
HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(BIN, "../lib/libtandem.so")
PACKAGE = os.path.join(HERE, "../../client/python/src")


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
        everybody(
            clients,
            "capture",
            graph="e",
            launches=[{"plan": "engine", "bindings": [["engine.in", 0], ["engine.out", 0]]}],
        )
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


class Cycles(CheckpointTest):
    def test_checkpoints_leave_nothing_behind(self):
        clients = self.sleeper()
        self.cycle(clients, CYCLES)

    def cycle(self, clients, count):
        processes = [self.daemon.process.pid, *(client.pid for client in clients)]
        first = []
        for cycle in range(count):
            self.leave(clients)
            self.resume(clients)
            if cycle < count // 3:
                first.append([Held.of(pid) for pid in processes])
        self.check_all(clients)
        most = [Held(*map(max, zip(*held, strict=True))) for held in zip(*first, strict=True)]

        def grown():
            pairs = zip(processes, most, strict=True)
            return [(pid, bound, Held.of(pid)) for pid, bound in pairs if Held.of(pid).exceeds(bound)]

        try:
            wait_until(lambda: not grown(), 60)
        except TimeoutError:
            self.fail(f"after {count} checkpoints more is held: {grown()}")


class Killed(CheckpointTest):
    """kill -9 at every step: the session ends with its process, or waits, and the other rank hears which rank is missing."""

    def setUp(self):
        super().setUp()
        self.clients = self.sleeper()

    def check_lost(self, waits):
        """Rank 1 is killed. `waits`: the other rank's call of resume_group; None: it makes it afterwards."""
        victim = self.clients[1]
        victim.kill()
        mine = [one for one in self.listed() if one["pid"] == victim.pid]
        if mine and mine[0].get("checkpointed_seconds"):  # nobody knows that no process comes
            self.daemon.ctl("evict", str(mine[0]["id"]), check=False)
        reply = {"ok": True} if waits is None else self.clients[0].reply(waits, check=False)
        if reply["ok"]:  # or all was done before
            wait_until(lambda: self.shown()[0] == "broken", 60)
            command = "resume_group" if waits is None else "suspend_group"
            reply = self.clients[0].call(command, check=False, deadline_ms=50000)
        self.assertEqual((reply["detail"]["reason"], reply["detail"]["ranks"]), ("RANK_LOST", [1]), reply)
        everybody([self.clients[0]], "leave")
        self.daemon.close_clients()
        wait_until(lambda: self.daemon.ctl_json("groups")["groups"] == [] and self.listed() == [], 60)
        self.assertEqual(self.segment_bytes(), 0)
        self.clients = self.sleeper()

    def test_as_it_leaves(self):
        for delay in (0, 1, 2, 3, 5, 8, 13):
            self.suspend(self.clients)
            self.clients[1].send("begin_checkpoint")
            time.sleep(delay / 1000)
            self.check_lost(None)

    def test_as_it_comes_back(self):
        for delay in (0, 1, 2, 3, 5, 8, 13):
            self.leave(self.clients)
            call = self.clients[0].send("resume_group", deadline_ms=50000)
            self.clients[1].send("resume_group", deadline_ms=50000)
            time.sleep(delay / 1000)
            self.check_lost(call)


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


def why_no_criu():
    """Why no process can be checkpointed here; empty: it can. TANDEM_TEST_CRIU names the program."""
    if shutil.which(CRIU) is None:
        return f"there is no {CRIU}"
    if os.getuid() != 0:
        return "CRIU needs root"
    check = subprocess.run([CRIU, "check"], capture_output=True, text=True, check=False)
    return "" if check.returncode == 0 else f"CRIU does not work here: {check.stderr.strip().splitlines()[-1:]}"


CRIU = os.environ.get("TANDEM_TEST_CRIU", "criu")
NO_CRIU = why_no_criu()


@unittest.skipIf(NO_CRIU, NO_CRIU)
@host_only("CRIU takes no GPU's memory")
class RestoredByCriu(TandemTest):
    """Whole processes: their checkpoints are files, they end, and CRIU makes them again."""

    gpus = 2

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="tandem-checkpoint-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.pids = []
        self.addCleanup(self.end_ranks)

    def end_ranks(self):
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def path(self, name):
        return os.path.join(self.folder, name)

    def tell(self, name):
        with open(self.path(name), "w"):
            pass

    def hear(self, name, ranks=(0, 1)):
        def told():
            for failure in glob.glob(self.path("failed*")):
                with open(failure) as file:
                    self.fail(file.read())
            return all(os.path.exists(self.path(f"{name}{rank}")) for rank in ranks)

        wait_until(told, 120, f"ranks do not say {name}")
        told = []
        for rank in ranks:
            with open(self.path(f"{name}{rank}")) as file:
                told.append(json.load(file))
            os.remove(self.path(f"{name}{rank}"))
        return told

    def start(self):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TANDEM_LIBRARY": LIBRARY}
        environment["TANDEM_RUNTIME_DIR"] = self.daemon.runtime_dir
        program = os.path.join(HERE, "checkpoint_rank.py")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-B", program, str(rank), self.folder],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for rank in range(2)
        ]
        self.pids += [rank.pid for rank in ranks]
        self.hear("ready")
        self.tell("leave")
        self.hear("left")
        return ranks

    def criu(self, verb, rank, *arguments, wrapper=()):
        images = self.path(f"images{rank}")
        os.makedirs(images, exist_ok=True)
        command = [*wrapper, CRIU, verb, "--images-dir", images, "--log-file", f"{verb}.log", "-v2", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        with open(os.path.join(images, f"{verb}.log"), errors="replace") as log:
            self.assertEqual(done.returncode, 0, log.read()[-2000:] + done.stderr)

    def dump(self, ranks):
        for rank, process in enumerate(ranks):
            self.criu("dump", rank, "--tree", str(process.pid))
            process.wait(60)  # it has ended

    def restore(self, rank):
        pidfile = self.path(f"pid{rank}")
        if os.path.exists(pidfile):
            os.remove(pidfile)
        self.criu("restore", rank, "--restore-detached", "--pidfile", pidfile)
        with open(pidfile) as file:
            self.pids.append(int(file.read()))

    def sessions(self):
        return [one["id"] for one in self.daemon.ctl_json("sessions")["sessions"]]

    def test_restored_processes_go_on(self):
        self.dump(self.start())
        sessions = self.sessions()
        self.assertEqual(len(sessions), 2)
        self.tell("restored")
        for rank in range(2):
            self.restore(rank)
        self.hear("done")
        self.assertEqual(self.sessions(), sessions)
        self.tell("end")
        wait_until(lambda: self.sessions() == [], 60)

    def test_they_go_on_under_other_pids(self):
        ranks = self.start()
        self.dump(ranks)
        self.tell("restored")
        for rank in range(2):
            self.restore_elsewhere(rank)
        self.hear("done")
        pids = {one["pid"] for one in self.daemon.ctl_json("sessions")["sessions"]}
        self.assertEqual(len(pids), 2)
        self.assertFalse(pids & {rank.pid for rank in ranks})
        self.tell("end")
        wait_until(lambda: self.sessions() == [], 60)

    def test_a_checkpoint_serves_once(self):
        self.dump(self.start())
        for rank in range(2):
            self.restore(rank)
        self.tell("restored")
        self.hear("done")
        first = self.pids[-2]
        os.kill(first, signal.SIGSTOP)  # its pid is taken, and a second process from its checkpoint gets another
        self.restore_elsewhere(0)
        (told,) = self.hear("refused", ranks=(0,))
        self.assertEqual(told["reason"], "RESTORED")
        os.kill(first, signal.SIGCONT)
        self.tell("end")
        wait_until(lambda: self.sessions() == [], 60)

    def test_a_restored_process_that_is_killed_is_named(self):
        self.dump(self.start())
        for rank in range(2):
            self.restore(rank)
        os.kill(self.pids[-1], signal.SIGKILL)
        self.tell("restored")
        listed = self.daemon.ctl_json("sessions")["sessions"]
        (lost,) = [one["id"] for one in listed if one["pid"] == self.pids[-1]]
        self.daemon.ctl("evict", str(lost))
        (told,) = self.hear("refused", ranks=(0,))
        self.assertEqual(told["reason"], "RANK_LOST")

    def restore_elsewhere(self, rank):
        """Under another pid, as seen from here: in a pid namespace, where the process has its own."""
        images = self.path(f"images{rank}")
        command = [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            CRIU,
            "restore",
            "--images-dir",
            images,
        ]
        command += ["--log-file", "elsewhere.log", "-v2"]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)


if __name__ == "__main__":
    unittest.main()
