#!/usr/bin/env python3
"""Installs the DEBs of dist/ in a booted Debian: a container made by debootstrap and started by systemd-nspawn, with systemd as its first
process. Installs, enables, runs a job as a member of the group, restarts, reloads, upgrades under running jobs, removes and purges.

    check_boot.py [--dist FOLDER] [--base FOLDER] [--suite bookworm] [--mirror URL]

Needs root, debootstrap, systemd-nspawn and a network. BASE keeps the bare system for the next run."""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
MOST_EXPOSED = 4.5  # systemd-analyze security: what tandemd.service may have


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
        deadline = time.monotonic() + 180
        self.leader = None
        while self.leader is None:
            children = subprocess.run(
                ["pgrep", "-P", str(self.nspawn.pid)], capture_output=True, text=True, check=False
            )
            self.leader = next(iter(children.stdout.split()), None)
            self._fail_after(deadline, "has no first process")
            time.sleep(0.2)
        while self.run("systemctl is-system-running --wait", check=False).returncode not in (0, 1):
            self._fail_after(deadline, "does not boot")
            time.sleep(0.5)

    def _fail_after(self, deadline, what):
        if self.nspawn.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the container {what}: {pathlib.Path(self.log.name).read_text()}")

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
        if self.nspawn.poll() is None:
            self.run("systemctl poweroff", check=False)
            try:
                self.nspawn.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.nspawn.send_signal(signal.SIGKILL)
                self.nspawn.wait()
        self.log.close()


def with_release(package, folder, release, other_build=False):
    """A copy of a DEB with another revision, and with dependencies on that revision. `other_build`: its programs say that they are of
    another version too."""
    subprocess.run(["dpkg-deb", "-R", package, folder], check=True)
    control = pathlib.Path(folder) / "DEBIAN/control"
    text = control.read_text()
    version = re.search(r"^Version: (.*)$", text, re.M).group(1)
    control.write_text(text.replace(version, version.rsplit("-", 1)[0] + f"-{release}"))
    if other_build:
        ours = version.rsplit("-", 1)[0].encode() + b"+"
        other = ours[:-2] + (b"8+" if ours[-2:-1] == b"9" else b"9+")
        for program in (
            *pathlib.Path(folder).glob("usr/bin/tandemd"),
            *pathlib.Path(folder).glob("usr/libexec/tandem/*/tandem-engine"),
        ):
            program.write_bytes(program.read_bytes().replace(ours, other))
    made = pathlib.Path(f"{folder}.deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", folder, made], check=True, stdout=subprocess.DEVNULL)
    return made


def step(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def expect(what, condition):
    if not condition:
        raise AssertionError(what)
    print(f"    {what}", flush=True)


class Job:
    """The digits, trained by a member of the group while the node changes."""

    def __init__(self, container, name, epochs):
        self.container, self.name = container, name
        before = self.launches()  # of earlier jobs on the same engines
        container.run(
            f"systemd-run --quiet --unit={name} --uid=member --property=RemainAfterExit=yes -- "
            f"tandem-train-digits --world 2 --epochs {epochs}"
        )
        deadline = time.monotonic() + 120
        while self.launches() < before + 100:
            if time.monotonic() > deadline:
                raise AssertionError(f"the job does not begin: {self.log()}")
            time.sleep(0.5)

    def launches(self):
        said = self.container.run("tandemctl stats --json", check=False).stdout
        return sum(engine["launches"] for engine in json.loads(said)["engines"]) if said else 0

    def runs(self):
        return self.container.output(f"systemctl show -P SubState {self.name}") == "running"

    def wait(self):
        """The exit status."""
        while self.runs():
            time.sleep(0.5)
        return int(self.container.output(f"systemctl show -P ExecMainStatus {self.name}"))

    def log(self):
        return self.container.output(f"journalctl --no-pager -o cat -u {self.name}")


def logged(container, text, since):
    """Whether tandemd's log has this text after a time; journald may be a little behind."""
    deadline = time.monotonic() + 20
    while text not in container.output(f"journalctl --no-pager -u tandemd --since=@{since}"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def install_release(container, packages, work, release, **options):
    """Upgrades to packages of another revision. Returns what apt-get said."""
    (container.root / f"newer{release}").mkdir()
    for package in sorted(packages.glob("tandem-*_*.deb")):
        if "client-dev" not in package.name:
            shutil.copy(
                with_release(package, work / f"{package.stem}.{release}", release, **options),
                container.root / f"newer{release}",
            )
    said = container.run(f"apt-get install -y -qq --no-install-recommends /newer{release}/*.deb").stdout
    expect(
        "the newer packages are installed",
        container.output("dpkg-query -W -f '${Version}' tandem-daemon").endswith(f"-{release}"),
    )
    return said


def check(container, packages, work):
    def active():
        return container.run("systemctl is-active tandemd", check=False).stdout.strip()

    def main_pid():
        return container.output("systemctl show -P MainPID tandemd")

    step("installing")
    shutil.copytree(packages, container.root / "dist")
    container.run("apt-get update -qq")
    container.run("apt-get install -y -qq --no-install-recommends /dist/tandem-daemon_*.deb /dist/tandem-client_*.deb")
    expect("the group is there", container.output("getent group tandem"))
    expect(
        "nothing was started or enabled",
        active() == "inactive" and "disabled" in container.run("systemctl is-enabled tandemd", check=False).stdout,
    )
    expect("the loader knows libtandem.so.0", "libtandem.so.0" in container.output("ldconfig -p"))

    step("systemctl enable --now tandemd")
    container.run("systemctl enable --now tandemd")
    expect("tandemd is active", active() == "active")
    expect("doctor finds no failure", container.run("tandemctl doctor").returncode == 0)
    engine = container.output(f"readlink /proc/$(pgrep -P {main_pid()} | head -1)/exe")
    expect(f"the engine is {engine}", re.fullmatch(r"/usr/libexec/tandem/[\d.]+/tandem-engine", engine))

    step("users")
    container.run("useradd -m -G tandem member && useradd -m stranger")
    expect(
        "a stranger may not use it",
        container.run("runuser -u stranger -- tandemctl sessions", check=False).returncode == 5,
    )
    digits = container.run("runuser -u member -- tandem-train-digits --world 2", check=False)
    expect("a member of the group trains the digits", digits.returncode == 0)

    step("the unit's sandbox")
    exposure = float(
        re.search(
            r"([\d.]+) \w+ \S*$",
            container.run("systemd-analyze security --no-pager tandemd", check=False).stdout.strip().splitlines()[-1],
        ).group(1)
    )
    expect(f"exposure {exposure} is at most {MOST_EXPOSED}", exposure <= MOST_EXPOSED)

    step("restart")
    before = main_pid()
    container.run("systemctl restart tandemd")
    expect("another process is active", active() == "active" and main_pid() != before)
    expect("doctor finds no failure", container.run("tandemctl doctor").returncode == 0)

    step("stop and start")
    directory = container.output("stat -c %i /run/tandem")
    container.run("systemctl stop tandemd")
    expect("the clients' directory stays", container.output("stat -c %i /run/tandem") == directory)
    container.run("systemctl start tandemd")
    expect("and is the same after the start", container.output("stat -c %i /run/tandem") == directory)

    step("reload")
    since = time.time()
    container.run("printf 'log_level = \"warning\"\\n' > /etc/tandem/config.d/level.toml && systemctl reload tandemd")
    expect("tandemd goes on", main_pid() != before and active() == "active")
    expect("the log names the key", logged(container, "log_level=", since))
    container.run("echo 'log_level = 7' > /etc/tandem/config.d/level.toml")
    expect(
        "a wrong configuration fails the reload", container.run("systemctl reload tandemd", check=False).returncode != 0
    )
    expect("and changes nothing", active() == "active")
    container.run("rm /etc/tandem/config.d/level.toml")

    step("upgrade to a newer revision of the same build, with a job running")
    container.run("echo 'restart_grace_ms = 60000' > /etc/tandem/config.d/restart.toml && systemctl restart tandemd")
    container.run("echo '# a change of the administrator' >> /etc/tandem/tandemd.toml")
    job = Job(container, "first-job", 400)
    before = main_pid()
    said = install_release(container, packages, work, 98)
    expect(
        "tandemd went on, and the upgrade names the next step",
        main_pid() == before and "systemctl restart tandemd" in said,
    )
    expect(
        "the administrator's change is kept",
        "a change of the administrator" in container.output("cat /etc/tandem/tandemd.toml"),
    )
    engines = container.output("pgrep -x tandem-engine")
    container.run("systemctl restart tandemd")
    expect("the job goes on after the restart", main_pid() != before and job.runs())
    expect("by the same engines", container.output("pgrep -x tandem-engine") == engines)
    launches = job.launches()
    time.sleep(1)
    expect("it launches", job.launches() > launches or not job.runs())
    expect("and is right in the end", job.wait() == 0)

    step("twenty restarts and five crashes in a row, with a job running")
    job = Job(container, "restarted-job", 100000)
    for _ in range(20):
        container.run("systemctl restart tandemd")
    for _ in range(5):
        crashed = main_pid()
        container.run("systemctl kill --kill-who=main --signal=KILL tandemd")
        deadline = time.monotonic() + 60
        while active() != "active" or main_pid() in ("0", crashed):
            if time.monotonic() > deadline:
                raise AssertionError(container.run("systemctl status --no-pager tandemd", check=False).stdout)
            time.sleep(0.2)
    expect("the job goes on", job.runs())
    expect("by the same engines", container.output("pgrep -x tandem-engine") == engines)
    launches, deadline = job.launches(), time.monotonic() + 60
    while job.launches() <= launches and time.monotonic() < deadline:
        time.sleep(0.2)
    expect("it launches", job.launches() > launches)
    container.run("systemctl stop restarted-job")

    step("upgrade to another build, with a job running")
    before = main_pid()
    install_release(container, packages, work, 99, other_build=True)
    container.run("pkill -KILL -o -x tandem-engine")
    deadline = time.monotonic() + 60
    while not all(
        engine["state"] == "ready" for engine in json.loads(container.output("tandemctl stats --json"))["engines"]
    ):
        if time.monotonic() > deadline:
            raise AssertionError(container.output("tandemctl stats"))
        time.sleep(0.2)
    expect("an engine that restarts is of the running tandemd's build", main_pid() == before)
    job = Job(container, "second-job", 1000)  # a new job, with the old tandemd
    since = time.time()
    container.run("systemctl restart tandemd")
    expect(
        "the restart ends jobs, and the log has why",
        logged(container, "engines of an earlier tandemd are ended", since),
    )
    expect("the job ends with an error", job.wait() != 0)
    container.run("systemctl reset-failed second-job")
    container.run("runuser -u member -- tandem-train-digits --world 2")
    expect("the next job runs", container.run("tandemctl doctor").returncode == 0)

    step("remove")
    container.run("apt-get remove -y -qq tandem-daemon")
    expect("tandemd has stopped", active() != "active" and not container.run("pgrep -x tandemd", check=False).stdout)
    expect(
        "settings and state are kept",
        container.run("test -e /etc/tandem/tandemd.toml -a -d /var/lib/tandem").returncode == 0,
    )

    step("purge")
    container.run("apt-get purge -y -qq tandem-daemon")
    left = container.run(
        "ls -d /etc/tandem /var/lib/tandem /run/tandem* /etc/systemd/system/*/tandem*", check=False
    ).stdout
    expect("nothing is left", not left)
    failed = container.output("systemctl --failed --no-legend --no-pager")
    expect(f"no unit has failed {failed}".strip(), not failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist")
    parser.add_argument("--base", type=pathlib.Path, default=pathlib.Path("/var/tmp/tandem-boot-base"))
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian")
    line = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("check_boot.py: needs root")
    for program in ("debootstrap", "systemd-nspawn", "nsenter"):
        if not shutil.which(program):
            sys.exit(f"check_boot.py: needs {program}")
    if not (line.base / "usr/bin/systemctl").exists():
        step(f"making {line.base}")
        subprocess.run(
            [
                "debootstrap",
                "--variant=minbase",
                "--include=systemd,systemd-sysv,dbus,procps",
                line.suite,
                line.base,
                line.mirror,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    with tempfile.TemporaryDirectory(prefix="tandem-boot-", dir=line.base.parent) as work:
        work = pathlib.Path(work)
        step("booting")
        (work / "root").mkdir()
        container = Container(line.base, work / "root")
        try:
            check(container, line.dist.resolve(), work)
        finally:
            container.stop()
    step("all right")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"check_boot.py: {error}")
