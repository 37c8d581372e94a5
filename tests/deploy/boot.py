"""A Debian that is booted in a container, with Tandem's packages and a job that trains in it: for check_boot.py."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import time


def step(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def expect(what, condition):
    if not condition:
        raise AssertionError(what)
    print(f"    {what}", flush=True)


def wait_for(condition, what, seconds=60):
    """Waits until `condition` returns something true, which is returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.2)
    return found


class Container:
    """A booted copy of `base`. Commands run in all of its namespaces."""

    def __init__(self, base, root):
        self.root = root
        subprocess.run(["cp", "-a", "--reflink=auto", f"{base}/.", root], check=True)
        self.log = open(f"{root}.log", "w")
        self.nspawn = subprocess.Popen(
            ["systemd-nspawn", "-D", root, "--register=no", "--keep-unit", "--boot", "--console=pipe"],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        self.leader = None
        try:
            self.leader = wait_for(self._first_process, "the container has no first process", 180)
            wait_for(self._booted, "the container does not boot", 180)
        except BaseException:
            self.stop()
            raise

    def _first_process(self):
        if self.nspawn.poll() is not None:
            raise AssertionError(f"the container has ended: {pathlib.Path(self.log.name).read_text()}")
        # The first child has a mount namespace alone, and ends once it has made the container's first process.
        for child in subprocess.run(
            ["pgrep", "-P", str(self.nspawn.pid)], stdout=subprocess.PIPE, text=True
        ).stdout.split():
            with contextlib.suppress(OSError):
                if re.search(r"^NSpid:\t\d+\t1$", pathlib.Path(f"/proc/{child}/status").read_text(), re.M):
                    return child
        return None

    def _booted(self):
        return self.run("systemctl is-system-running --wait", check=False).returncode in (0, 1)

    def run(self, command, check=True):
        done = subprocess.run(
            ["nsenter", "-t", self.leader, "-a", "/bin/sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def output(self, command):
        return self.run(command).stdout.strip()

    def stop(self):
        if self.nspawn.poll() is None and self.leader:
            self.run("systemctl poweroff", check=False)
        try:
            self.nspawn.wait(timeout=60 if self.leader else 0)
        except subprocess.TimeoutExpired:
            self.nspawn.send_signal(signal.SIGKILL)
            self.nspawn.wait()
        self.log.close()


class Node(Container):
    """A container as a node of Tandem: the service, its log, and upgrades to copies of `packages` that are made in `work`."""

    def __init__(self, base, packages, work):
        (work / "root").mkdir()
        super().__init__(base, work / "root")
        self.packages, self.work = packages, work

    def active(self):
        return self.run("systemctl is-active tandemd", check=False).stdout.strip() == "active"

    def main_pid(self):
        return self.output("systemctl show -P MainPID tandemd")

    def engine_pids(self):
        return self.output("pgrep -x tandem-engine")

    def restart(self):
        self.run("systemctl restart tandemd")

    def restart_under(self, job):
        """A restart in the middle of one of the job's trainings: its sessions go on, on the same engines."""
        for _ in range(10):  # the training may end just then, and engines that nobody uses with it
            before, engines = job.await_sessions(), self.engine_pids()
            self.restart()
            job.expect_launches()
            if before & job.sessions():
                expect("sessions go on, on the same engines", self.engine_pids() == engines)
                return
        raise AssertionError(f"no session of {job.name} goes on")

    def engines(self):
        said = self.run("tandemctl stats --json", check=False).stdout
        return json.loads(said)["engines"] if said else []

    def sessions(self):
        return json.loads(self.output("tandemctl sessions --json"))["sessions"]

    def log_of_tandemd(self, since):
        return self.output(f"journalctl --no-pager -o cat -u tandemd --since=@{since}")

    def expect_logged(self, what, text, since):
        """journald may be a little behind."""
        wait_for(lambda: text in self.log_of_tandemd(since), f"{text!r} in the log", 20)
        expect(what, True)

    def install_release(self, release, **options):
        """Upgrades to packages of another revision. Returns what apt-get said."""
        (self.root / f"newer{release}").mkdir()
        for package in sorted(self.packages.glob("tandem-*_*.deb")):
            if "client-dev" not in package.name:
                made = with_release(package, self.work / f"{package.stem}.{release}", release, **options)
                shutil.copy(made, self.root / f"newer{release}")
        said = self.run(f"apt-get install -y -qq --no-install-recommends /newer{release}/*.deb").stdout
        expect(
            f"revision {release} is installed",
            self.output("dpkg-query -W -f '${Version}' tandem-daemon").endswith(f"-{release}"),
        )
        return said


class Job:
    """The digits, trained by a member of the group while the node changes. Every epoch is compared with one process's. One training
    follows the other until the job is told to end, or one fails."""

    def __init__(self, node, name):
        self.node, self.name = node, name
        before = self.launches()  # of earlier jobs on the same engines
        train = "tandem-train-digits --world 2 --epochs 200"
        node.run(
            f"touch /run/{name} && systemd-run --quiet --unit={name} --uid=member --property=RemainAfterExit=yes -- "
            f"/bin/sh -c 'while [ -e /run/{name} ]; do {train} || exit; done'"
        )
        wait_for(lambda: self.launches() >= before + 100, "the job begins", 120)

    def sessions(self):
        """Those of its processes."""
        files = self.node.run(f"grep -l /{self.name}.service /proc/[0-9]*/cgroup", check=False).stdout
        pids = {int(file.split("/")[2]) for file in files.split()}
        return {session["id"] for session in self.node.sessions() if session["pid"] in pids}

    def await_sessions(self):
        """A training has none while one process computes what to compare with."""
        return wait_for(self.sessions, f"{self.name} has sessions")

    def launches(self):
        return sum(engine["launches"] for engine in self.node.engines())

    def runs(self):
        return self.node.output(f"systemctl show -P SubState {self.name}") == "running"

    def expect_launches(self):
        """The job has not ended, and launches are added."""
        before = self.launches()
        wait_for(lambda: self.launches() > before or not self.runs(), "a launch")
        if not self.runs():
            print(self.log(), flush=True)
        expect(f"{self.name} launches", self.runs())

    def wait(self):
        """The exit status."""
        self.node.run(f"rm -f /run/{self.name}")
        wait_for(lambda: not self.runs(), f"{self.name} ends: {self.log()}", 300)
        return int(self.node.output(f"systemctl show -P ExecMainStatus {self.name}"))

    def expect_right(self):
        status = self.wait()
        if status != 0:
            print(self.log(), flush=True)
        expect(f"{self.name} is right in the end", status == 0)

    def log(self):
        return self.node.output(f"journalctl --no-pager -o cat -u {self.name} | tail -n 20")


def with_release(package, folder, release, other_build=False, other_state=False):
    """A copy of a DEB with another revision, and with dependencies on that revision. `other_build`: its programs report another
    version too. `other_state`: they read another version of the journal."""
    subprocess.run(["dpkg-deb", "-R", package, folder], check=True)
    control = pathlib.Path(folder) / "DEBIAN/control"
    text = control.read_text()
    version = re.search(r"^Version: (.*)$", text, re.M).group(1)
    control.write_text(text.replace(version, version.rsplit("-", 1)[0] + f"-{release}"))
    ours = version.rsplit("-", 1)[0].encode() + b"+"
    other = ours[:-2] + (b"8+" if ours[-2:-1] == b"9" else b"9+")
    for path in (
        *pathlib.Path(folder).glob("usr/bin/tandemd"),
        *pathlib.Path(folder).glob("usr/libexec/tandem/*/tandem-engine"),
    ):
        program = path.read_bytes()
        if other_build:
            expect(f"{path.name} has its build", ours in program)
            program = program.replace(ours, other)
        if other_state:
            program, times = re.subn(rb"(tandem-handover state=)\d", rb"\g<1>9", program)
            expect(f"{path.name} has its versions", times == 1)
        path.write_bytes(program)
    made = pathlib.Path(f"{folder}.deb")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "-b", folder, made], check=True, stdout=subprocess.DEVNULL
    )
    return made
