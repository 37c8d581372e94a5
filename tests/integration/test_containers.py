"""Jobs in containers, as namespaces make them: what works without the node's processes, IPC and network, and that root in a
container that has the clients' directory cannot administer the node (docs/install.md)."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from harness import BACKEND, BIN, IN_BUNDLE, Daemon, TandemTest, everybody, host_only, wait_until
from test_restart import RestartTest

# The programs and their libraries, and the data set that they read.
BUILD = os.path.dirname(os.path.abspath(BIN))
DATA = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/train_digits/data"))
# Root in its own user, mount, pid, IPC, network and UTS namespaces. /tmp, which has the daemon's folders, is hidden. The folders of "$1"
# are there, read-only. Colons separate them, and FOLDER=AT is mounted at another path. A descriptor leads to a folder that is hidden.
ENTER = r"""
set -e
IFS=:
opened=3
for each in $1; do
  eval "exec $opened<\"\${each%%=*}\""
  opened=$((opened + 1))
done
mount -t tmpfs none /tmp
opened=3
for each in $1; do
  mkdir -p "${each##*=}"
  mount --no-canonicalize --bind "/proc/self/fd/$opened" "${each##*=}"
  mount -o remount,bind,ro,nosuid,nodev "${each##*=}"
  eval "exec $opened<&-"
  opened=$((opened + 1))
done
unset IFS
shift
exec "$@"
"""
NAMESPACES = ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--net", "--uts", "--mount-proc")


def namespaces_may_be_made():
    made = shutil.which("unshare") and subprocess.run(
        ["unshare", *NAMESPACES, "/bin/sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, check=False
    )
    return bool(made) and made.returncode == 0


def in_container(folders):
    """The prefix of a command line that is to run in a container with the build, the data set and these folders."""
    return ["unshare", *NAMESPACES, "--kill-child", "/bin/sh", "-c", ENTER, "sh", ":".join([BUILD, DATA, *folders])]


@host_only("a container with GPUs needs their device files")
@unittest.skipUnless(namespaces_may_be_made(), "namespaces may not be made here")
class Containers(TandemTest):
    gpus = 2

    def container(self, program, *arguments, folders=None):
        """The command line of one of this build's programs in a container that has these folders."""
        return [
            *in_container(folders or [self.daemon.runtime_dir]),
            os.path.join(BUILD, "bin", program),
            "--runtime-dir",
            self.daemon.runtime_dir,
            *arguments,
        ]

    def run_in(self, program, *arguments, **options):
        return subprocess.run(
            self.container(program, *arguments, **options), capture_output=True, text=True, timeout=120, check=False
        )

    def job(self, *arguments):
        job = subprocess.Popen(
            self.container("tandem-train-digits", "--backend", BACKEND, "--world", "2", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def sessions(self):
        return self.daemon.ctl_json("sessions")["sessions"]

    def test_root_in_a_container_does_not_administer_the_node(self):
        client = self.daemon.client("rank0")
        client.connect()
        (session,) = self.sessions()
        for command in (
            ("cordon",),
            ("drain", "--wait", "0"),
            ("evict", str(session["id"])),
            ("reset", "0"),
            ("tuning", "forget", "--all"),
        ):
            refused = self.run_in("tandemctl", *command)
            self.assertEqual(refused.returncode, 3, f"{command}: {refused.stdout}{refused.stderr}")
        stats = self.daemon.ctl_json("stats")
        self.assertEqual((stats["cordoned"], stats["draining"], stats["sessions"]), (False, False, 1))
        client.call("check")
        # The missing directory keeps it out: a process with the administrators' directory is an administrator.
        mounted = [self.daemon.runtime_dir, self.daemon.admin_dir]
        cordoned = self.run_in("tandemctl", "cordon", folders=mounted)
        self.assertEqual(cordoned.returncode, 0, cordoned.stderr)
        self.assertTrue(self.daemon.ctl_json("stats")["cordoned"])

    def test_a_job_in_namespaces_of_its_own(self):
        digits = self.job()
        said, _ = digits.communicate(timeout=120)
        self.assertEqual(digits.returncode, 0, said)
        self.assertEqual(self.run_in("tandemctl", "health", "--ready").returncode, 0)

    def test_its_processes_are_known_by_the_nodes_numbers(self):
        job = self.job("--epochs", "100")
        wait_until(lambda: len(self.sessions()) == 2, 60, "the job does not attach")
        pids = [session["pid"] for session in self.sessions()]
        for pid in pids:
            self.assertEqual(
                os.readlink(f"/proc/{pid}/exe"), os.path.realpath(os.path.join(BIN, "tandem-train-digits"))
            )
            self.assertNotEqual(os.readlink(f"/proc/{pid}/ns/pid"), os.readlink("/proc/self/ns/pid"))
        # A rank that ends there is lost at once.
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: " was lost: its process has ended" in self.daemon.tail(200), 60, "nobody is lost")
        job.communicate(timeout=60)
        self.assertNotEqual(job.returncode, 0)
        wait_until(lambda: not self.sessions(), 60, "sessions stay")


@host_only("a container with GPUs needs their device files")
@unittest.skipUnless(namespaces_may_be_made(), "namespaces may not be made here")
class MountedElsewhere(RestartTest):
    """The clients' directory has another path in the container than on the node."""

    gpus = 2
    elsewhere = "/tmp/given/tandem"

    def clients(self):
        wrapper = in_container([f"{self.daemon.runtime_dir}={self.elsewhere}"])
        clients = [self.daemon.client(f"rank{rank}", wrapper=wrapper) for rank in range(2)]
        for client in clients:
            client.call("connect", runtime_dir=self.elsewhere, name=client.name)
        return clients

    def test_a_job_runs_and_goes_on_with_the_next_daemon(self):
        clients = self.clients()
        self.join(clients)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        sessions = self.sessions()
        for signum in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(signum=signum):
                self.restart(signum)
                everybody(clients, "check")
                self.assertEqual(self.sessions(), sessions)
                self.all_reduce_plan(clients, key=f"new{signum}")
                self.check_all_reduce(clients, key=f"new{signum}")
        self.check_nothing_was_lost(clients)


@host_only("a container with GPUs needs their device files")
@unittest.skipIf(IN_BUNDLE, "a bundle's programs are found from their folder")
@unittest.skipUnless(namespaces_may_be_made(), "namespaces may not be made here")
class DaemonInAContainer(unittest.TestCase):
    def daemon(self, *namespaces):
        """A tandemd in these separate namespaces."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = os.path.join(folder.name, "tandemd")
        with open(program, "w") as file:
            file.write(f'#!/bin/sh\nexec unshare {" ".join(namespaces)} {os.path.abspath(BIN)}/tandemd "$@"\n')
        os.chmod(program, 0o755)
        daemon = Daemon(2, programs=folder.name)
        self.addCleanup(daemon.stop)
        return daemon

    def digits(self, daemon):
        program = [os.path.join(BIN, "tandem-train-digits"), "--runtime-dir", daemon.runtime_dir]
        return subprocess.run(
            [*program, "--backend", BACKEND, "--world", "2"], capture_output=True, text=True, timeout=120, check=False
        )

    def test_it_needs_no_ipc_and_no_network_of_the_node(self):
        digits = self.digits(self.daemon("--ipc", "--net", "--uts"))
        self.assertEqual(digits.returncode, 0, digits.stdout + digits.stderr)

    def test_it_needs_the_nodes_processes(self):
        daemon = self.daemon("--pid", "--fork", "--kill-child", "--mount-proc")
        daemon.stop_signal = signal.SIGKILL  # unshare ignores SIGTERM while it waits

        def refused():
            client = daemon.client()
            reply = client.call("connect", runtime_dir=daemon.runtime_dir, check=False)
            client.close()
            self.assertFalse(reply["ok"], reply)
            return reply.get("detail", {}).get("reason")

        # Until it listens there is no daemon.
        wait_until(lambda: refused() != "NO_DAEMON", 30, "no client hears the reason")
        self.assertEqual([refused() for _ in range(5)], ["PID_NAMESPACE"] * 5)


@host_only("a container with GPUs needs their device files")
@unittest.skipIf(IN_BUNDLE or BUILD.startswith("/tmp/"), "the build lies below /tmp already")
@unittest.skipUnless(namespaces_may_be_made(), "namespaces may not be made here")
class BuildBelowTmp(unittest.TestCase):
    """The tests above with a build below /tmp, which containers hide."""

    tests = ("Containers.test_a_job_in_namespaces_of_its_own", "MountedElsewhere")

    def test_containers_see_a_build_below_tmp(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as build:
            done = subprocess.run(
                [
                    *("unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-ec"),
                    'mount --bind "$1" "$2"; shift 2; exec "$@"',
                    *("sh", BUILD, build, sys.executable, "-B", "-m", "unittest"),
                    *(f"test_containers.{test}" for test in self.tests),
                ],
                env={**os.environ, "TANDEM_BIN_DIR": os.path.join(build, "bin")},
                cwd=os.path.dirname(os.path.abspath(__file__)),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("skipped", done.stderr)


if __name__ == "__main__":
    unittest.main()
