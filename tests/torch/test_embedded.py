"""Jobs on a node without a tandemd: the ranks start one of their own, share it, and leave nothing behind. Real processes."""

import contextlib
import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import unittest
from unittest import mock

import torch
from node import BIN, CUDA, HERE, Daemon, Ranks, wait_until
from tandem.torch import _daemon

PATIENCE = 240
NOBODY = 65534


def daemons_in(base):
    """The directories of jobs' daemons."""
    return sorted(glob.glob(os.path.join(base, "job-*")))


def pid_of(directory):
    """The tandemd of a job's directory, 0 before it has begun."""
    with contextlib.suppress(OSError, ValueError), open(os.path.join(directory, "run/lock")) as file:
        return int(file.read())
    return 0


def has_open(pid, path):
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(link) == path:
                return True
    return False


def processes_of(directory):
    """All processes that began for the directory and have not ended."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and has_open(entry, directory + "/alive")]


class OnGpus(unittest.TestCase):
    """What a job's daemon is started with where there are GPUs; torch is told that there are."""

    def visible(self, seen, ranks, environment):
        """CUDA_VISIBLE_DEVICES of the daemon, for ranks on these GPUs whose first one sees `seen` GPUs."""
        with (
            mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": "2", **environment}),
            mock.patch.object(torch.cuda, "device_count", lambda: seen),
        ):
            return _daemon._visible([{"gpu": gpu} for gpu in ranks])

    def test_the_daemon_sees_the_ranks_gpus(self):
        limited = {"CUDA_VISIBLE_DEVICES": "0"}
        self.assertIsNone(self.visible(2, ["GPU-a", "GPU-b"], {"CUDA_VISIBLE_DEVICES": "4,5"}), "as the ranks do")
        self.assertEqual(self.visible(1, ["GPU-b", "GPU-a"], limited), "GPU-a,GPU-b")
        self.assertEqual(self.visible(1, ["GPU-a"], limited), "", "the other ranks' GPUs are not known")
        self.assertEqual(self.visible(1, ["GPU-a", ""], limited), "")

    def test_the_backend_is_that_of_the_tensors(self):
        def wants(available, backends, used):
            with (
                mock.patch.object(torch.cuda, "is_available", lambda: available),
                mock.patch.object(torch.cuda, "is_initialized", lambda: used),
                mock.patch.object(_daemon, "backends_of", lambda group: backends),
            ):
                return _daemon._wants_cuda(None)

        self.assertFalse(wants(False, "cpu:gloo,cuda:nccl", False))
        self.assertTrue(wants(True, "cpu:gloo,cuda:nccl", False))
        self.assertFalse(wants(True, "cpu:gloo,cuda:gloo", False))
        self.assertTrue(wants(True, "cpu:gloo,cuda:gloo", True))


@unittest.skipIf(CUDA, "of the host backend")
class Embedded(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="te.")
        self.base = os.path.join(self.folder, f"tandem-{os.getuid()}")
        self.system = os.path.join(self.folder, "system")  # in place of /run/tandem
        self.addCleanup(self.clean)

    def clean(self):
        for directory in daemons_in(self.base):
            for pid in processes_of(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def job(self, world, *steps, env=None, each=lambda rank: ((), {})):
        """A job whose ranks find no daemon, unless this test's `system` has one."""
        store = tempfile.mkdtemp(dir=self.folder)
        os.chmod(store, 0o777)  # ranks may be another user's
        ranks = Ranks(
            None,
            world,
            "rank_embedded.py",
            store,
            *steps,
            env={
                "TANDEM_RUNTIME_DIR": "",
                "TANDEM_TEST_SYSTEM": self.system,
                "TANDEM_EMBEDDED": "1",
                "TMPDIR": self.folder,
                "XDG_RUNTIME_DIR": "",
                **(env or {}),
            },
            each=each,
        )
        self.addCleanup(ranks.close)
        ranks.folder = store
        return ranks

    def tell(self, ranks, name):
        """Lets the ranks of a job go on that wait for this."""
        with open(os.path.join(ranks.folder, name), "w"):
            pass

    def told(self, ranks, rank):
        """What the rank's ops have printed."""
        return [json.loads(line) for line in ranks.printed(rank).splitlines() if line.startswith("{")]

    def assert_served(self, ranks, which=-1, only=None):
        """All ranks' ops, or those of `only`, had the right sum by one daemon of the job; its runtime directory."""
        chosen = range(len(ranks.processes)) if only is None else only
        found = [self.told(ranks, rank)[which] for rank in chosen]
        for one in found:
            self.assertEqual((one["reason"], one["warnings"]), ("", []))
            self.assertEqual(one["sum"], sum(rank + 1.0 for rank in chosen))
        (where,) = {one["own"]["host"] for one in found}
        return where

    def assert_gone(self, *directories):
        """Nothing is left of the daemons: no process and no file."""
        for directory in directories:
            wait_until(
                lambda directory=directory: not os.path.exists(directory), PATIENCE, f"{directory} has not been removed"
            )
            self.assert_ended(directory)

    def assert_ended(self, directory):
        """No process of the daemon is left."""
        wait_until(lambda: not processes_of(directory), PATIENCE, f"processes of {directory} stay")

    def test_a_job_has_its_own_for_its_time(self):
        ranks = self.job(2, "op", "wait:end")
        for rank in range(2):
            ranks.wait_for(rank, "did op")
        where = self.assert_served(ranks)
        (directory,) = daemons_in(self.base)
        self.assertEqual(where, directory + "/run")
        self.assertEqual(stat.S_IMODE(os.stat(directory).st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(self.base).st_mode), 0o700)
        self.assertEqual(self.told(ranks, 0)[0]["gpus"], 2)
        self.assertEqual(ranks.log(0).count("is served by the job's own tandemd in " + where), 1)
        self.assertNotIn("is served by", ranks.log(1))
        self.tell(ranks, "end")
        ranks.wait()
        self.assert_gone(directory)

    def test_groups_that_attach_at_once_share_it(self):
        pairs = [f"op:{rank},{rank + 1}" for rank in range(0, 8, 2)]
        ranks = self.job(8, *pairs, "op:0,1,2,3", "op:4,5,6,7", "op", "wait:end")
        for rank in range(8):
            ranks.wait_for(rank, "did op")
        where = self.assert_served(ranks)
        for rank in range(0, 8, 2):
            self.assertEqual(self.assert_served(ranks, 0, [rank, rank + 1]), where)
        self.assertEqual(daemons_in(self.base), [os.path.dirname(where)])
        self.assertEqual(self.told(ranks, 7)[0]["gpus"], 8)
        self.tell(ranks, "end")
        ranks.wait()
        self.assert_gone(os.path.dirname(where))

    def test_jobs_at_once_have_one_each(self):
        jobs = [self.job(2, "op", "wait:end") for _ in range(3)]
        for ranks in jobs:
            for rank in range(2):
                ranks.wait_for(rank, "did op")
        places = [self.assert_served(ranks) for ranks in jobs]
        self.assertEqual(sorted(os.path.dirname(where) for where in places), daemons_in(self.base))
        self.assertEqual(len(set(places)), 3)
        # One ends by itself, one is killed; the third goes on.
        self.tell(jobs[0], "end")
        jobs[0].wait()
        jobs[1].stop()
        self.assert_gone(*(os.path.dirname(where) for where in places[:2]))
        self.assertEqual(daemons_in(self.base), [os.path.dirname(places[2])])
        self.assertTrue(processes_of(os.path.dirname(places[2])))
        self.tell(jobs[2], "end")
        jobs[2].wait()
        self.assert_gone(os.path.dirname(places[2]))

    def test_process_groups_made_anew_keep_it(self):
        ranks = self.job(2, "op", "again", "op")
        ranks.wait()
        self.assertEqual(self.assert_served(ranks, 0), self.assert_served(ranks, 1))

    def test_another_starts_for_one_that_is_killed(self):
        ranks = self.job(2, "op", "wait:killed", "lost", "again", "op", "wait:end")
        for rank in range(2):
            ranks.wait_for(rank, "did op")
        (first,) = daemons_in(self.base)
        os.kill(pid_of(first), signal.SIGKILL)
        self.tell(ranks, "killed")
        for rank in range(2):
            wait_until(lambda rank=rank: len(self.told(ranks, rank)) == 2, PATIENCE)
        second = os.path.dirname(self.assert_served(ranks))
        self.assertNotEqual(first, second)
        self.assertEqual(daemons_in(self.base), [second], "what was left has been removed")
        self.tell(ranks, "end")
        ranks.wait()
        self.assert_gone(second)

    def test_the_starter_is_killed(self):
        """Another rank takes the daemon over that is starting."""
        ranks = self.job(4, "op:1,2", "wait:go", "op:0,3", "wait:end")
        wait_until(lambda: daemons_in(self.base), PATIENCE, "no daemon begins")
        ranks.processes[1].kill()
        ranks.processes[1].wait()
        self.tell(ranks, "go")
        for rank in (0, 3):
            ranks.wait_for(rank, "did op:0,3")
        where = self.assert_served(ranks, only=[0, 3])
        self.assertEqual(daemons_in(self.base), [os.path.dirname(where)])
        ranks.stop()
        self.assert_gone(os.path.dirname(where))

    def test_the_only_starter_is_killed(self):
        """No session ever comes: the daemon ends all the same, if it has begun. Else the next job removes its directory."""
        first = self.job(2, "op")
        wait_until(lambda: daemons_in(self.base), PATIENCE, "no daemon begins")
        (left,) = daemons_in(self.base)
        first.stop()
        self.assert_ended(left)
        second = self.job(2, "op", "wait:end")
        for rank in range(2):
            second.wait_for(rank, "did op")
        self.assertEqual(daemons_in(self.base), [os.path.dirname(self.assert_served(second))])
        self.tell(second, "end")
        second.wait()

    def test_leftovers_are_removed(self):
        """The daemon and all ranks are killed: the next job finds stale sockets and locks."""
        first = self.job(2, "op", "wait:never")
        for rank in range(2):
            first.wait_for(rank, "did op")
        (left,) = daemons_in(self.base)
        for pid in processes_of(left):
            with contextlib.suppress(ProcessLookupError):  # an engine ends with tandemd
                os.kill(pid, signal.SIGKILL)
        first.stop()
        self.assert_ended(left)
        self.assertTrue(os.path.exists(left + "/run/lease.sock"))
        second = self.job(2, "op", "wait:end")
        for rank in range(2):
            second.wait_for(rank, "did op")
        where = self.assert_served(second)
        self.assertEqual(daemons_in(self.base), [os.path.dirname(where)])
        self.tell(second, "end")
        second.wait()

    def test_stale_sockets_of_other_daemons(self):
        """Where tandemd of the node and of the user were killed, their sockets answer nobody."""
        for place in (self.system, os.path.join(self.base, "run")):
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            os.makedirs(place)
            daemon = Daemon(gpus=1, runtime_dir=place)
            daemon.process.kill()
            daemon.process.wait()
            daemon.stop()
            self.assertTrue(os.path.exists(os.path.join(place, "lease.sock")))
        ranks = self.job(2, "op")
        ranks.wait()
        self.assert_served(ranks)

    def test_the_nodes_daemon_goes_first(self):
        os.makedirs(self.system)
        daemon = Daemon(gpus=2, runtime_dir=self.system)
        self.addCleanup(daemon.stop)
        ranks = self.job(2, "op")
        ranks.wait()
        for rank in range(2):
            (told,) = self.told(ranks, rank)
            self.assertEqual((told["sum"], told["reason"], told["own"]), (3.0, "", {}))
        self.assertEqual(daemons_in(self.base), [])
        self.assertIn("is served by the tandemd in " + self.system, ranks.log(0))

    def assert_falls_back(self, env, reason):
        ranks = self.job(2, "op", env=env)
        ranks.wait()
        for rank in range(2):
            (told,) = self.told(ranks, rank)
            self.assertEqual(told["sum"], 3.0)
            self.assertIn(reason, told["reason"])
            self.assertEqual(len(told["warnings"]), 1 if rank == 0 else 0)
        self.assertEqual(daemons_in(self.base), [])
        return told["reason"]

    def test_none_is_started_against_the_users_word(self):
        self.assertNotIn("start", self.assert_falls_back({"TANDEM_EMBEDDED": "0"}, self.system + "/lease.sock"))
        self.assert_falls_back({"TANDEM_RUNTIME_DIR": "/nonexistent"}, "/nonexistent/lease.sock")

    def test_one_that_cannot_start(self):
        """The reason is the program's last line, and the next group does not try again."""
        library = os.path.join(self.folder, "lib")
        shutil.copytree(os.path.join(os.path.dirname(BIN), "lib"), library)
        os.makedirs(os.path.join(self.folder, "bin"))
        path, count = os.path.join(self.folder, "bin/tandemd"), os.path.join(self.folder, "count")
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\necho once >>{count}\necho 'it is broken' >&2\nexit 1\n")
        os.chmod(path, 0o755)
        ranks = self.job(2, "op", "op:0,1", env={"TANDEM_LIBRARY": library})
        ranks.wait()
        for rank in range(2):
            for told in self.told(ranks, rank):
                self.assertIn("cannot start its own: the job's own tandemd has ended: it is broken", told["reason"])
        with open(count) as file:
            self.assertEqual(file.read(), "once\n")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_a_user_whose_folders_are_read_only(self):
        os.chmod(self.folder, 0o755)
        setpriv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        if subprocess.run([*setpriv, "test", "-r", HERE], check=False).returncode != 0:
            self.skipTest("other users do not see these files")
        base = f"/tmp/tandem-{NOBODY}"
        env = {"HOME": self.folder, "TMPDIR": self.folder, "XDG_RUNTIME_DIR": self.folder}
        ranks = self.job(2, "op", env=env, each=lambda rank: (setpriv, {}))
        ranks.wait()
        where = self.assert_served(ranks)
        self.assertTrue(where.startswith(base + "/job-"), where)
        self.assert_gone(os.path.dirname(where))


if __name__ == "__main__":
    unittest.main()
