"""A node with real GPUs for the tests of recovery: tandemd on CUDA, MPS servers of the test's own, and neighbours.

Needs the programs of a build with CUDA (TANDEM_BIN_DIR, tandem-fault-client among them), a driver, and root for tests with
several users. Nothing of the machine is changed: MPS daemons live in the test's own folders and are ended with it.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

INTEGRATION = os.environ.get("TANDEM_INTEGRATION_DIR", os.path.join(os.path.dirname(__file__), "../../integration"))
sys.path.insert(0, INTEGRATION)
from harness import BIN, Client, Daemon, wait_until  # noqa: E402,F401

# Under MPS a server gives each client on a GPU separate hardware queues, from one pool. With 32 each, the fourth
# process on a GPU is refused with CUDA_ERROR_OUT_OF_MEMORY (and each context takes over a second). An engine has 32
# whatever this says.
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"

NOBODY = 65534
ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
FAULT_CLIENT = os.environ.get("TANDEM_FAULT_CLIENT", os.path.join(BIN, "tandem-fault-client"))


def note(text):
    """A figure for the log of the run."""
    print(f"    MEASURED {text}", file=sys.stderr, flush=True)


def query(what):
    """nvidia-smi's answer for each GPU that CUDA_VISIBLE_DEVICES (indices or UUIDs) leaves to the tests."""
    lines = subprocess.run(
        ["nvidia-smi", f"--query-gpu=index,uuid,{what}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout.splitlines()
    rows = [[field.strip() for field in line.split(",", 2)] for line in lines]
    wanted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return [
        value
        for index, uuid, value in rows
        if not wanted or index in wanted or any(name.startswith("GPU-") and uuid.startswith(name) for name in wanted)
    ]


def gpu_count():
    try:
        return len(query("name"))
    except (OSError, subprocess.SubprocessError):
        return 0


def memory_used():
    """MiB in use on each GPU."""
    return [int(value) for value in query("memory.used")]


def become(uid):
    def change():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    return change


class Mps:
    """An MPS control daemon for several users in a separate folder."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-mps.")
        os.chmod(self.folder, 0o755)
        self.pipe = os.path.join(self.folder, "pipe")
        self.logs = os.path.join(self.folder, "log")
        os.mkdir(self.pipe, 0o755)
        os.mkdir(self.logs, 0o755)
        options = ["-multiuser-server"] if os.getuid() == 0 else []
        subprocess.run(
            ["nvidia-cuda-mps-control", "-d", *options],
            env=self.environment(),
            check=True,
            timeout=30,
            capture_output=True,
        )

    def environment(self):
        return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": self.pipe, "CUDA_MPS_LOG_DIRECTORY": self.logs}

    def log(self, lines=30):
        text = ""
        for name in sorted(os.listdir(self.logs)):
            with open(os.path.join(self.logs, name), errors="replace") as file:
                text += f"--- {name}\n" + "".join(file.readlines()[-lines:])
        return text

    def stop(self):
        try:
            subprocess.run(
                ["nvidia-cuda-mps-control"],
                input="quit -t 5\n",
                text=True,
                env=self.environment(),
                timeout=30,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            pass
        shutil.rmtree(self.folder, ignore_errors=True)


class GpuDaemon(Daemon):
    """tandemd on CUDA. `mps`: the server that its engines use; None: they use none."""

    def __init__(self, mps=None, extra=(), runtime_dir=None):
        self.own_dir = runtime_dir is None
        self.runtime_dir = runtime_dir or tempfile.mkdtemp(prefix="tandem-test.")
        self.admin_dir = self.runtime_dir + "-admin"  # tandemd's default
        os.chmod(self.runtime_dir, 0o755)
        self.clients = []
        self.mps = mps
        self.mps_environment = {"CUDA_MPS_PIPE_DIRECTORY": mps.pipe if mps else "/nonexistent", **ENVIRONMENT}
        self.log_path = os.path.join(self.runtime_dir, "tandemd.log")
        self.log = open(self.log_path, "ab")
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [
                os.path.join(BIN, "tandemd"),
                "--backend",
                "cuda",
                "--socket-group",
                "nogroup",
                "--placement",
                "engine",
                "--runtime-dir",
                self.runtime_dir,
                "--state-dir",
                os.path.join(self.runtime_dir, "state"),
                *extra,
            ],
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, **self.mps_environment},
        )
        try:
            self.wait_ready()
            self.wait_engines()
        except BaseException:
            print(f"--- tandemd's log\n{self.tail()}")
            self.stop()
            raise
        self.start_seconds = time.monotonic() - begun

    def client(self, name="client", uid=None, env=None):
        return GpuClient(self, name, uid, env)

    def engine(self, gpu):
        return self.engines()[gpu]

    def wait_engine(self, gpu, after_generation, timeout=20):
        """Waits for a ready engine of a later generation; how long that took."""
        begun = time.monotonic()

        def back():
            engine = self.engine(gpu)
            return engine["state"] == "ready" and engine["generation"] > after_generation

        wait_until(back, timeout, f"no new engine on GPU {gpu}")
        return time.monotonic() - begun

    def finding(self, check):
        """The doctor's findings of one kind."""
        answer = json.loads(self.ctl("doctor", "--json", check=False).stdout)
        return [finding for finding in answer["findings"] if finding["check"] == check]


class GpuClient(Client):
    """A tandem-test-client under the daemon's MPS server, as another user if `uid` is given."""

    def __init__(self, daemon, name, uid=None, env=None):
        self.daemon = daemon
        self.next_id = 0
        self.replies = {}
        self.buffer = b""
        self.name = name
        self.process = subprocess.Popen(
            [os.path.join(BIN, "tandem-test-client")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **daemon.mps_environment, **(env or {})},
            preexec_fn=become(uid) if uid else None,
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        daemon.clients.append(self)


class NoContext(RuntimeError):
    """CUDA refused a process a context."""


class Neighbour:
    """A separate process with a context on a GPU, no client of Tandem: a tandem-fault-client that watches itself."""

    def __init__(self, daemon, gpu, uid=None, watch=True, env=None):
        self.buffer = b""
        self.process = subprocess.Popen(
            [FAULT_CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **daemon.mps_environment, **(env or {})},
            preexec_fn=become(uid) if uid else None,
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        answer = self.ask(f"use {gpu}", 30)
        self.start_seconds = answer.get("seconds", 0)  # that the context took
        if answer["error"] != 0:
            self.close()
            raise NoContext(f"no context on GPU {gpu}: {answer}")
        if watch:
            self.ask("watch kernel 5")

    @property
    def pid(self):
        return self.process.pid

    def ask(self, line, timeout=15):
        self.process.stdin.write((line + "\n").encode())
        self.process.stdin.flush()
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError(f"no answer to {line!r}")
            chunk = self.process.stdout.read()
            if not chunk:
                raise EOFError(f"the neighbour ended with {self.process.wait()}")
            self.buffer += chunk
        answer, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(answer)

    def lost(self):
        """The error that ended its context, or None."""
        return self.ask("state")["lost"]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
