"""Slurm's prolog and epilog of deploy/slurm, with a running tandemd: a node that takes no jobs fails the prolog, and the epilog ends the
sessions of one job only."""

import contextlib
import json
import os
import pathlib
import subprocess
import unittest

from daemon import Daemon

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", ROOT / "build/check/bin"))
CLIENT = BIN / "tandem-test-client"
SCRIPTS = ROOT / "deploy/slurm"
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def memory_cgroups():
    """Where a child cgroup can be made that accounts for memory; None if nowhere."""
    for folder in (CGROUPS / "memory", CGROUPS):
        if (folder / "cgroup.procs").exists() and os.access(folder, os.W_OK):
            return folder
    return None


class Slurm(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(BIN / "tandemd")
        self.addCleanup(self.daemon.stop)

    def run_script(self, name, **environment):
        return subprocess.run(
            [SCRIPTS / name],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "TANDEM_RUNTIME_DIR": str(self.daemon.runtime_dir),
                **environment,
            },
        )

    def tandemctl(self, *arguments):
        return subprocess.run(
            [BIN / "tandemctl", "--runtime-dir", self.daemon.runtime_dir, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    def pids(self):
        return {session["pid"] for session in json.loads(self.tandemctl("sessions", "--json")).get("sessions", [])}

    def test_the_prolog_lets_jobs_onto_a_ready_node_only(self):
        done = self.run_script("prolog")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.tandemctl("drain")
        done = self.run_script("prolog")
        self.assertEqual(done.returncode, 1)
        self.assertIn("drain", done.stderr)
        self.tandemctl("drain", "--undo")
        self.assertEqual(self.run_script("prolog").returncode, 0)
        self.daemon.stop()
        self.assertEqual(self.run_script("prolog").returncode, 1)

    def test_the_epilog_without_a_daemon_or_a_job(self):
        self.assertEqual(self.run_script("epilog", SLURM_JOB_ID="4711").returncode, 0)
        self.assertEqual(self.run_script("epilog", SLURM_JOB_ID="").returncode, 1)
        self.daemon.stop()
        self.assertEqual(self.run_script("epilog", SLURM_JOB_ID="4711").returncode, 0)

    def attach(self, cgroup=None):
        """A client that is attached, in the cgroup of that name, else in this process's."""
        command = [CLIENT]
        if cgroup:
            folder = memory_cgroups() / cgroup
            folder.mkdir(parents=True)
            command = ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$1"', folder, CLIENT]
        client = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def end():
            client.kill()
            client.wait()
            client.stdin.close()
            client.stdout.close()
            if not cgroup:
                return
            for path in (folder, *folder.parents[: len(pathlib.Path(cgroup).parts) - 1]):
                with contextlib.suppress(OSError):
                    path.rmdir()

        self.addCleanup(end)
        client.stdin.write(
            json.dumps({"id": 1, "cmd": "connect", "name": "rank", "runtime_dir": str(self.daemon.runtime_dir)}) + "\n"
        )
        client.stdin.flush()
        reply = json.loads(client.stdout.readline())
        self.assertTrue(reply["ok"], reply)
        return client.pid

    @unittest.skipUnless(os.geteuid() == 0 and memory_cgroups(), "needs root and cgroups that may be written")
    @unittest.skipUnless(CLIENT.exists(), "needs tandem-test-client")
    def test_the_epilog_ends_the_jobs_sessions_only(self):
        base = f"tandem-test-{os.getpid()}"
        ended = self.attach(f"{base}/job_4711/step_0")
        other = self.attach(f"{base}/job_47112/step_0")
        self.assertEqual(self.pids(), {ended, other})
        done = self.run_script("epilog", SLURM_JOB_ID="4711")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.pids(), {other})

    @unittest.skipUnless(CLIENT.exists(), "needs tandem-test-client")
    def test_the_epilog_fails_where_it_cannot_say_whose_a_session_is(self):
        client = self.attach()
        done = self.run_script("epilog", SLURM_JOB_ID="4711", SLURM_JOB_UID=str(os.geteuid()))
        self.assertEqual(done.returncode, 1)
        self.assertIn("in no cgroup of Slurm", done.stderr)
        done = self.run_script("epilog", SLURM_JOB_ID="4711", SLURM_JOB_UID=str(os.geteuid() + 1))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.pids(), {client})


if __name__ == "__main__":
    unittest.main()
