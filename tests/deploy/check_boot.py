#!/usr/bin/env python3
"""Installs the DEBs of dist/ in a booted Debian: a container made by debootstrap and started by systemd-nspawn, with systemd as its first
process. Installs, enables, runs a job as a member of the group, restarts, reloads, crashes, floods, upgrades under running jobs, removes and
purges.

    check_boot.py [--dist FOLDER] [--base FOLDER] [--suite bookworm] [--mirror URL]

Needs root, debootstrap, systemd-nspawn and a network. BASE keeps the bare system for the next run."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from boot import Job, Node, expect, step, wait_for

ROOT = pathlib.Path(__file__).parents[2]
MOST_EXPOSED = 4.5  # systemd-analyze security: what tandemd.service may have
# A call beside a flood may take a second, or this many times as long as without one.
BESIDE, SLOWER = 1.0, 4

# A member of the group attaches and closes as fast as it can, and holds idle connections to the clients' socket. The file has the number
# of its tries. The message is a lease's header and an attach with the versions of the protocol.
FLOOD = """
use Socket;
$SIG{PIPE} = "IGNORE";
my $attach = pack("H*", "4d444e540000000006000000000000000a0408021002");
my @held;
for (my $tries = 1;; ++$tries) {
  socket(my $lease, AF_UNIX, SOCK_SEQPACKET, 0) or die;
  if (connect($lease, pack_sockaddr_un("/run/tandem/lease.sock"))) {
    send($lease, $attach, 0);
    recv($lease, my $answer, 65536, 0);
  }
  close($lease);
  socket(my $idle, AF_UNIX, SOCK_STREAM, 0) or die;
  push @held, $idle if connect($idle, pack_sockaddr_un("/run/tandem/client.sock"));
  shift @held if @held > 500;
  next if $tries % 100;
  open(my $file, ">", "/home/flooder/tries") or die;
  print $file $tries;
}
"""


def check_install(node):
    step("installing")
    shutil.copytree(node.packages, node.root / "dist")
    node.run("apt-get update -qq")
    node.run("apt-get install -y -qq --no-install-recommends /dist/tandem-daemon_*.deb /dist/tandem-client_*.deb")
    expect("the group is there", node.output("getent group tandem"))
    enabled = node.run("systemctl is-enabled tandemd", check=False).stdout
    expect("nothing was started or enabled", not node.active() and "disabled" in enabled)
    expect("the loader knows libtandem.so.0", "libtandem.so.0" in node.output("ldconfig -p"))

    step("systemctl enable --now tandemd")
    node.run("systemctl enable --now tandemd")
    expect("tandemd is active", node.active())
    expect("doctor finds no failure", node.run("tandemctl doctor").returncode == 0)
    engine = node.output(f"readlink /proc/$(pgrep -P {node.main_pid()} | head -1)/exe")
    expect(f"the engine is {engine}", re.fullmatch(r"/usr/libexec/tandem/[\d.]+/tandem-engine", engine))


def check_users(node):
    step("users")
    node.run("useradd -m -G tandem member && useradd -m -G tandem flooder && useradd -m stranger")
    refused = node.run("runuser -u stranger -- tandemctl sessions", check=False)
    expect("a stranger may not use it", refused.returncode == 5)
    digits = node.run("runuser -u member -- tandem-train-digits --world 2", check=False)
    expect("a member of the group trains the digits", digits.returncode == 0)

    step("the unit's sandbox")
    analysis = node.run("systemd-analyze security --no-pager tandemd", check=False).stdout.strip()
    exposure = float(re.search(r"([\d.]+) \w+ \S*$", analysis.splitlines()[-1]).group(1))
    expect(f"exposure {exposure} is at most {MOST_EXPOSED}", exposure <= MOST_EXPOSED)


def check_service(node):
    step("restart")
    before = node.main_pid()
    node.restart()
    expect("another process is active", node.active() and node.main_pid() != before)
    expect("doctor finds no failure", node.run("tandemctl doctor").returncode == 0)

    step("stop and start")
    directory = node.output("stat -c %i /run/tandem")
    node.run("systemctl stop tandemd")
    expect("the clients' directory stays", node.output("stat -c %i /run/tandem") == directory)
    node.run("systemctl start tandemd")
    expect("and is the same after the start", node.output("stat -c %i /run/tandem") == directory)

    step("reload")
    since, before = time.time(), node.main_pid()
    node.run("printf 'log_level = \"warning\"\\n' > /etc/tandem/config.d/level.toml && systemctl reload tandemd")
    expect("tandemd goes on", node.main_pid() == before and node.active())
    node.expect_logged("the log names the key", "log_level=", since)
    node.run("echo 'log_level = 7' > /etc/tandem/config.d/level.toml")
    wrong = node.run("systemctl reload tandemd", check=False)
    expect("a wrong configuration fails the reload", wrong.returncode != 0)
    expect("and changes nothing", node.main_pid() == before and node.active())
    node.run("rm /etc/tandem/config.d/level.toml && systemctl reload tandemd")


def check_revision(node):
    step("upgrade to a newer revision of the same build, with a job running")
    node.run("echo 'restart_grace_ms = 60000' > /etc/tandem/config.d/restart.toml")
    node.restart()
    node.run("echo '# a change of the administrator' >> /etc/tandem/tandemd.toml")
    job = Job(node, "first-job")
    before = node.main_pid()
    said = node.install_release(98)
    expect("tandemd went on", node.main_pid() == before)
    expect("the upgrade names the next step", "systemctl restart tandemd" in said)
    settings = node.output("cat /etc/tandem/tandemd.toml")
    expect("the administrator's change is kept", "a change of the administrator" in settings)
    node.restart_under(job)
    expect("another process is active", node.active() and node.main_pid() != before)
    job.expect_right()


def check_restarts_and_crashes(node):
    step("twenty restarts and five crashes in a row, with a job running")
    job = Job(node, "restarted-job")
    job.await_sessions()
    for _ in range(19):
        node.restart()
    node.restart_under(job)
    job.await_sessions()
    for _ in range(5):
        crashed = node.main_pid()
        node.run("systemctl kill --kill-who=main --signal=KILL tandemd")
        wait_for(lambda: node.active() and node.main_pid() not in ("0", crashed), "tandemd is started again")
    restarts = int(node.output("systemctl show -P NRestarts tandemd"))
    expect(f"systemd started tandemd again {restarts} times", restarts == 5)
    job.expect_launches()
    return job


def check_flood(node, job):
    """`job` runs meanwhile, and ends right."""

    def seconds(command):
        began = time.monotonic()
        node.run(command)
        return time.monotonic() - began

    def evict(name):
        """Seconds that an operator takes to end a session of a job of its own."""
        victim = Job(node, name)
        took = seconds(f"tandemctl evict {min(victim.await_sessions())}")
        expect(f"{name} ends with an error", victim.wait() != 0)
        node.run(f"systemctl reset-failed {name}")
        return took

    def times(name):
        new_job = "runuser -u member -- tandem-train-digits --world 2 --epochs 1"
        return {"new job": seconds(new_job), "health": seconds("tandemctl health"), "evict": evict(name)}

    step("a flood by a member of the group, with another member's job running")
    undisturbed = times("evicted-job")
    (node.root / "flood.pl").write_text(FLOOD)
    tries = node.root / "home/flooder/tries"
    since, before = time.time(), node.main_pid()
    node.run("systemd-run --quiet --unit=flood --uid=flooder -- perl /flood.pl")

    def tried():
        return int(tries.read_text() or 0) if tries.exists() else 0

    wait_for(lambda: tried() >= 5000, "five thousand tries of the flood")
    began = tried()
    for name, took in times("evicted-beside-flood").items():
        limit = max(BESIDE, SLOWER * undisturbed[name])
        expect(f"{name} took {took:.2f} s, {undisturbed[name]:.2f} s without the flood", took < limit)
    job.expect_launches()
    expect(f"the flood went on: {tried() - began} tries", tried() > began + 100)
    node.run("systemctl stop flood")
    expect("tandemd went on", node.main_pid() == before and node.active())
    log = node.log_of_tandemd(since)
    lines = len(re.findall(rf"uid={node.output('id -u flooder')}\b", log))
    expect(f"the log has {lines} lines of the flood's {tried()} tries", lines < tried() / 2)
    expect("the log has the operator's call", "audit call=Evict" in log)
    left_out = node.run(f"journalctl --no-pager --since=@{since} | grep 'Suppressed.*tandemd'", check=False).stdout
    expect("journald left nothing out", not left_out)
    job.expect_right()


def check_upgrade(node):
    step("upgrade to another build and back, with a job running")
    before = node.main_pid()
    node.install_release(99, other_build=True)
    node.run("pkill -KILL -o -x tandem-engine")
    wait_for(
        lambda: all(engine["state"] == "ready" for engine in node.engines()),
        f"engines: {node.output('tandemctl stats')}",
    )
    expect("an engine that restarts is of the running tandemd's build", node.main_pid() == before)
    job = Job(node, "upgraded-job")
    since = time.time()
    node.restart_under(job)
    node.expect_logged("the log names both builds", "and goes on under tandemd of ", since)
    node.install_release(100)
    node.restart_under(job)
    job.expect_right()

    step("upgrade to another version of the state, with a job running")
    node.install_release(101, other_build=True, other_state=True)
    job = Job(node, "ended-job")
    since = time.time()
    node.restart()
    node.expect_logged("the log has why jobs end", "engines of an earlier tandemd are ended", since)
    expect("the job ends with an error", job.wait() != 0)
    node.run("systemctl reset-failed ended-job")
    node.run("runuser -u member -- tandem-train-digits --world 2")
    expect("the next job runs", node.run("tandemctl doctor").returncode == 0)


def check_removal(node):
    step("remove")
    node.run("apt-get remove -y -qq tandem-daemon")
    expect("tandemd has stopped", not node.active() and not node.run("pgrep -x tandemd", check=False).stdout)
    kept = node.run("test -e /etc/tandem/tandemd.toml -a -d /var/lib/tandem", check=False)
    expect("settings and state are kept", kept.returncode == 0)

    step("purge")
    node.run("apt-get purge -y -qq tandem-daemon")
    left = node.run("ls -d /etc/tandem /var/lib/tandem /run/tandem* /etc/systemd/system/*/tandem*", check=False).stdout
    expect("nothing is left", not left)
    failed = node.output("systemctl --failed --no-legend --no-pager")
    expect(f"no unit has failed {failed}".strip(), not failed)


def make_base(line):
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
        make_base(line)
    with tempfile.TemporaryDirectory(prefix="tandem-boot-", dir=line.base.parent) as work:
        step("booting")
        node = Node(line.base, line.dist.resolve(), pathlib.Path(work))
        try:
            check_install(node)
            check_users(node)
            check_service(node)
            check_revision(node)
            check_flood(node, check_restarts_and_crashes(node))
            check_upgrade(node)
            check_removal(node)
        finally:
            node.stop()
    step("all right")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"check_boot.py: {error}")
