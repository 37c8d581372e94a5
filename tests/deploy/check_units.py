"""Has systemd check the units of deploy/systemd, with stand-ins for the programs that are not installed here; and what
systemd cannot know: that tandemd comes after an MPS daemon that answers and has its server, in the same pipe directory, and
that MPS is there too when no server starts; that it may write where MPS servers' pipes are, the spare one's too; that the kernel
modules it needs are loaded before it, by somebody who may."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

UNITS = pathlib.Path(__file__).parents[2] / "deploy/systemd"
SKIPPED = 77
CONTROL = "/usr/bin/nvidia-cuda-mps-control"
# A control daemon: keeps its input, and lists a server after a command to start one, if it can.
STAND_IN = """#!/bin/sh
read command
echo "$command" >> "$0.log"
[ "$command" != "start_server -uid 0" ] || [ {starts} = 0 ] || touch "$0.server"
[ "$command" != get_server_list ] || [ ! -e "$0.server" ] || echo 4711
"""


def values(text, key):
    return re.findall(rf"^{key}=(.*)$", text.replace("\\\n", ""), re.MULTILINE)


def start_server(command, starts):
    """Runs the unit's `command`, which may take a second in place of ten: its exit status, and the stand-in's input."""
    with tempfile.TemporaryDirectory() as folder:
        control = pathlib.Path(folder) / "control"
        control.write_text(STAND_IN.format(starts=int(starts)))
        control.chmod(0o755)
        words = shlex.split(command.removeprefix("-").replace(CONTROL, str(control)))
        words[words.index("10")] = "1"
        done = subprocess.run(words, stdout=subprocess.DEVNULL, timeout=30, check=False)
        return done.returncode, pathlib.Path(f"{control}.log").read_text().split("\n")[:-1]


def check_start_limit(tandemd):
    """Twenty restarts by hand within twenty seconds leave room for five crashes; a tandemd that never comes up is given up."""
    interval, burst = (int(values(tandemd, f"StartLimit{key}")[0]) for key in ("IntervalSec", "Burst"))
    assert burst >= 1 + 20 + 5, "restarts by hand end in start-limit-hit, and the jobs with them"
    pause = int(values(tandemd, "RestartSec")[0])
    assert burst * pause < interval, "a tandemd that ends at each start would be started for ever"


def check_server(mps):
    assert len(values(mps, "ExecStartPost")) == 2, "the control daemon, then its server"
    command = values(mps, "ExecStartPost")[1]
    assert command.startswith("-"), "where no server starts MPS would be taken away"
    code, told = start_server(command, True)
    assert (code, told) == (0, ["start_server -uid 0", "get_server_list"]), (code, told)
    code, told = start_server(command, False)
    assert code == 124 and set(told[1:]) == {"get_server_list"}, (code, told)
    assert int(values(mps, "TimeoutStartSec")[0]) >= 20 + 10, "the wait for a server must not use up the start's time"


def words(text, key):
    return " ".join(values(text, key)).split()


def check_spare(tandemd, mps, spare):
    """The spare server's unit is the usual one's, with separate directories, and tandemd may write there."""
    directory = "/run/" + values(spare, "RuntimeDirectory")[0]
    assert f"CUDA_MPS_PIPE_DIRECTORY={directory}" in values(spare, "Environment"), (
        "nobody makes the spare pipe directory"
    )
    for text in (mps, spare):
        assert "-/run/" + values(text, "RuntimeDirectory")[0] in words(tandemd, "ReadWritePaths"), (
            "engines cannot lock files there"
        )
    assert "tandem-mps-spare.service" in words(tandemd, "After"), (
        "a directory that comes later is read-only for tandemd"
    )
    assert values(spare, "WantedBy") == ["tandemd.service"], "enabled, it must come with tandemd"
    assert "tandem-mps-spare.service" not in words(tandemd, "Wants"), "a spare server is for who wants one"
    of_its_own = ("RuntimeDirectory", "LogsDirectory", "Environment")
    lines = [
        [
            line
            for line in text[text.index("[Service]") : text.index("[Install]")].splitlines()
            if line and not line.startswith("#") and line.split("=")[0] not in of_its_own
        ]
        for text in (mps, spare)
    ]
    assert lines[0] == lines[1], "the spare server is not started as the usual one"


def check_modules(tandemd, nvidia, others):
    """nvidia-uvm and the device files are there before the units that need them, which cannot have them made."""
    assert values(tandemd, "DevicePolicy") == ["closed"] and values(tandemd, "NoNewPrivileges") == ["yes"]
    assert "tandem-nvidia.service" in words(tandemd, "Wants"), "tandemd does not bring its modules"
    for text in (tandemd, *others):
        assert "tandem-nvidia.service" in words(text, "After"), "a unit may come before its modules"
    assert values(nvidia, "Type") == ["oneshot"], "started must mean loaded"
    commands = values(nvidia, "ExecStart")
    assert all(command.startswith("-") for command in commands), "a machine without GPUs would have a failed unit"
    assert commands[0] == "-/usr/bin/nvidia-modprobe -u -c=0"
    # The second one, on a machine that has GPUs of minors 3 and 12.
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for minor in (3, 12):
            gpu = folder / f"gpus/0000:0{minor}:00.0"
            gpu.mkdir(parents=True)
            (gpu / "information").write_text(
                f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 4{minor}\nDevice Minor: \t {minor}\n"
            )
        modprobe = folder / "modprobe"
        modprobe.write_text('#!/bin/sh\necho "$@" > "$0.log"\n')
        modprobe.chmod(0o755)
        command = commands[1].removeprefix("-").replace("$$", "$").replace("/usr/bin/nvidia-modprobe", str(modprobe))
        subprocess.run(shlex.split(command.replace("/proc/driver/nvidia", str(folder))), check=True, timeout=30)
        told = (folder / "modprobe.log").read_text().split()
    assert told[0] == "-u" and sorted(told[1:]) == ["-c=12", "-c=3"], told


def main():
    tandemd, mps, spare, nvidia = (
        (UNITS / name).read_text()
        for name in ("tandemd.service", "tandem-mps.service", "tandem-mps-spare.service", "tandem-nvidia.service")
    )
    assert any("tandem-mps.service" in after for after in values(tandemd, "After")), "tandemd does not come after MPS"
    assert any("tandem-mps.service" in wants for wants in values(tandemd, "Wants")), "tandemd does not bring MPS"
    assert not values(tandemd, "Requires"), "tandemd works without MPS"
    assert "-multiuser-server" in values(mps, "ExecStart")[0], "clients of other users would never get a context"
    assert "get_server_list" in values(mps, "ExecStartPost")[0], "started must mean answering"
    assert values(tandemd, "RuntimeDirectory") == ["tandem tandem-admin"], "the sockets' directories are not the unit's"
    assert values(tandemd, "RuntimeDirectoryPreserve") == ["yes"], "a stop takes the directory from under containers"
    check_start_limit(tandemd)
    check_server(mps)
    check_spare(tandemd, mps, spare)
    check_modules(tandemd, nvidia, (mps, spare))

    def pipes(text):
        return [value for value in values(text, "Environment") if value.startswith("CUDA_MPS_PIPE_DIRECTORY=")]

    assert pipes(tandemd) == pipes(mps) and len(pipes(mps)) == 1, "engines and MPS disagree on the directory"
    assert pipes(mps)[0].endswith("/" + values(mps, "RuntimeDirectory")[0]), "nobody makes the pipe directory"

    if shutil.which("systemd-analyze") is None:
        print("systemd-analyze is not installed")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        units = [*UNITS.glob("*.service"), *UNITS.glob("*.socket")]
        for unit in units:
            text = re.sub(r"/usr/bin/(tandemd|nvidia-cuda-mps-control|nvidia-modprobe)", "/bin/true", unit.read_text())
            (pathlib.Path(folder) / unit.name).write_text(text)
        found = subprocess.run(
            [
                "systemd-analyze",
                "verify",
                "--man=no",
                *(os.path.join(folder, unit.name) for unit in units),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    # Other units of this machine may be unwell; only ours count.
    ours = [line for line in found.stderr.splitlines() if "tandem" in line]
    print("\n".join(ours))
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
