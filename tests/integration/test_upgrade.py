"""An upgrade of tandemd's programs under a running job: their files are replaced as a package manager does it, and tandemd is
restarted by the same build and by other ones (docs/install.md, "Upgrade a node")."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from harness import BIN, CUDA, Daemon, TandemTest, everybody, wait_until

BINDINGS = [["ar.in", 0], ["ar.out", 0]]


def build_of(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


BUILD = build_of(os.path.join(BIN, "tandemd"))


def install(folder, name, other_build=False, other_state=False):
    """Puts a program of this build into the folder, over one that may run; or one that says it is of another version, and that
    its journal is of another."""
    with open(os.path.join(BIN, name), "rb") as file:
        program = file.read()
    if other_build:
        ours = BUILD.split("+")[0]
        other = ours[:-1] + ("9" if ours[-1] != "9" else "8")
        assert f"{ours}+".encode() in program, name
        program = program.replace(f"{ours}+".encode(), f"{other}+".encode())
    if other_state:
        program, times = re.subn(rb"(tandem-handover state=)\d", rb"\g<1>9", program)
        assert times == 1, name
    path = os.path.join(folder, name)
    with open(path + ".new", "wb") as file:
        file.write(program)
    os.chmod(path + ".new", 0o755)
    os.replace(path + ".new", path)


@unittest.skipUnless(re.fullmatch(r"\d+\.\d+\.\d+\+.*", BUILD), "the programs know no commit")
@unittest.skipIf(CUDA, "the engine finds its kernels beside it")
class Upgrade(TandemTest):
    gpus = 2

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-upgrade.")
        self.addCleanup(shutil.rmtree, self.folder, True)
        for name in ("tandemd", "tandem-engine"):
            install(self.folder, name)
        self.extra = ("--restart-grace-ms", "20000")
        self.job_key = "0123456789abcdef"
        self.daemon = Daemon(self.gpus, self.extra, programs=self.folder)
        self.daemon.stop_signal = signal.SIGINT  # SIGTERM would leave the engines
        self.addCleanup(self.finish, lambda: self.daemon.stop())
        self.engine_pids = self.daemon.engine_pids()
        self.addCleanup(self.end_engines)

    def end_engines(self):
        for pid in self.engine_pids:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)

    def working(self, **arguments):
        clients = self.group(2, **arguments)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        return clients

    def next_daemon(self, wait=True):
        """SIGTERM, as `systemctl restart` sends it, and a tandemd of what is in the folder now."""
        old = self.daemon
        old.process.send_signal(signal.SIGTERM)
        self.assertEqual(old.process.wait(60), 0)
        old.own_dir = False
        old.log.close()
        self.daemon = Daemon(self.gpus, self.extra, runtime_dir=old.runtime_dir, wait=wait, programs=self.folder)
        self.daemon.own_dir = True
        self.daemon.stop_signal = signal.SIGINT
        self.daemon.clients = old.clients
        for client in old.clients:
            client.daemon = self.daemon

    def test_an_engine_that_restarts_after_an_upgrade_is_of_the_old_build(self):
        clients = self.working()
        for name in ("tandemd", "tandem-engine"):
            install(self.folder, name, other_build=True)
        self.daemon.kill_engine(0)
        self.daemon.wait_engines()
        for client in clients:
            self.hear_restart(client)
        self.check_all_reduce(clients)
        pid = self.daemon.engine_pids()[0]
        self.assertEqual(os.readlink(f"/proc/{pid}/exe"), os.path.join(self.folder, "tandem-engine (deleted)"))
        with open(f"/proc/{pid}/comm") as file:
            self.assertEqual(file.read(), "tandem-engine\n")
        with open(f"/proc/{pid}/cmdline") as file:
            self.assertEqual(file.read().split("\0")[0], os.path.join(self.folder, "tandem-engine"))
        self.engine_pids = self.daemon.engine_pids()

    def test_the_same_build_anew_keeps_jobs(self):
        for placement in ("engine", "client"):
            with self.subTest(placement=placement):
                clients = self.working(name=placement, group="tp", options={"placement": placement})
                for name in ("tandemd", "tandem-engine"):
                    install(self.folder, name)
                self.next_daemon()
                self.assertEqual(self.daemon.engine_pids(), self.engine_pids)
                self.check_all_reduce(clients)
                self.daemon.close_clients()

    def test_another_build_of_the_same_versions_keeps_jobs_and_so_does_the_way_back(self):
        for placement in ("engine", "client"):
            with self.subTest(placement=placement):
                clients = self.working(name=placement, group="tp", options={"placement": placement})
                for other_build in (True, False):
                    for name in ("tandemd", "tandem-engine"):
                        install(self.folder, name, other_build)
                    self.next_daemon()
                    self.assertEqual(self.daemon.engine_pids(), self.engine_pids)
                    self.check_all_reduce(clients)
                    if other_build:
                        self.assertIn(f"is of build {BUILD} and goes on under tandemd of ", self.daemon.tail(200))
                    # New plans work on engines of the other build, too.
                    key = f"more {other_build}"
                    self.all_reduce_plan(clients, 128, key)
                    self.check_all_reduce(clients, 128, key)
                self.daemon.close_clients()

    def test_engines_of_two_builds_work_together(self):
        clients = self.working()
        for name in ("tandemd", "tandem-engine"):
            install(self.folder, name, other_build=True)
        self.next_daemon()
        self.daemon.kill_engine(0)
        self.daemon.wait_engines()
        self.engine_pids += self.daemon.engine_pids()
        for client in clients:
            self.hear_restart(client)
        self.check_all_reduce(clients)

    def test_another_state_version_ends_jobs_by_name_and_works(self):
        self.check_other_state("engine")

    def test_another_state_version_ends_client_client_jobs_by_name_too(self):
        self.check_other_state("client")

    def check_other_state(self, placement):
        clients = self.working(options={"placement": placement})
        for name in ("tandemd", "tandem-engine"):
            install(self.folder, name, other_build=True, other_state=True)
        self.next_daemon()
        log = self.daemon.tail(200)
        self.assertIn("engines of an earlier tandemd are ended, and their jobs with them: ", log)
        self.assertIn(f"is of build {BUILD}, tandemd of ", log)
        self.assertRegex(log, r": state is \d, tandemd's is 9")
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in self.engine_pids), 60, "engines stay")
        for client in clients:
            reply = client.call("launch", plan="ar", bindings=BINDINGS, check=False)
            if reply["ok"]:
                client.call("sync", deadline_ms=50000, check=False)  # no stream hangs
                reply = client.call("wait", plan="ar", check=False)
            self.assertFalse(reply["ok"])
            self.assertIn(reply["detail"]["reason"], ("DAEMON_LOST", "SESSION_LOST", "ENGINE_STOPPED"), reply)
        self.daemon.close_clients()
        self.daemon.wait_engines()
        self.engine_pids = self.daemon.engine_pids()
        self.working()

    def test_half_an_installation_is_refused_and_ends_no_job(self):
        clients = self.working()
        install(self.folder, "tandem-engine", other_build=True)
        self.next_daemon(wait=False)
        self.assertEqual(self.daemon.process.wait(60), 1)
        self.assertIn("both must come from one installation", self.daemon.tail(20))
        self.check_all_reduce(clients)
        # The administrator repairs the installation within the grace time.
        install(self.folder, "tandem-engine")
        self.daemon.own_dir = False
        self.daemon.log.close()
        clients_before = self.daemon.clients
        self.daemon = Daemon(self.gpus, self.extra, runtime_dir=self.daemon.runtime_dir, programs=self.folder)
        self.daemon.own_dir = True
        self.daemon.stop_signal = signal.SIGINT
        self.daemon.clients = clients_before
        self.assertEqual(self.daemon.engine_pids(), self.engine_pids)
        self.check_all_reduce(clients)
        everybody(clients, "check")


if __name__ == "__main__":
    unittest.main()
