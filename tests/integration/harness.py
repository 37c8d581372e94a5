"""Runs tandemd and scripted clients as real processes, for the integration tests.

Every test gets a separate daemon in a temporary folder. A `Client` is a tandem-test-client process; its calls are
commands (see driver/commands.cc). `client.call` waits for the reply, `client.send` does not: `client.reply` takes it up.

TANDEM_TEST_BACKEND=cuda runs the same tests on the machine's GPUs: tests of the host backend's own means (`host_only`) are
skipped, and those that need more GPUs than there are. A module whose groups have more than two ranks says so by MOST_RANKS: a
bundle's runner reads it and gives the module as many GPUs. There classes that say `shares` use one daemon for all their tests,
since engines take seconds to start. TANDEM_TEST_FLAGS are flags of every tandemd ("--log-level debug"). CUDA_VISIBLE_DEVICES limits
daemon and clients alike, so that runs beside each other share no GPU. TANDEM_TEST_ENGINES_PER_GPU makes more GPUs of each.
TANDEM_TEST_CLIENT is another tandem-test-client: one of the version before (tests/run_older_client).
"""

import atexit
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BACKEND = os.environ.get("TANDEM_TEST_BACKEND", "host")
CUDA = BACKEND == "cuda"
ENGINES_PER_GPU = int(os.environ.get("TANDEM_TEST_ENGINES_PER_GPU", "1"))
EXTRA = os.environ.get("TANDEM_TEST_FLAGS", "").split() + (
    ["--testing-engines-per-gpu", str(ENGINES_PER_GPU)] if ENGINES_PER_GPU > 1 else []
)
BIN = os.environ.get("TANDEM_BIN_DIR", os.path.join(os.path.dirname(__file__), "../../build/check/bin"))
IN_BUNDLE = os.path.exists(os.path.join(BIN, "../bundle.txt"))


# Under MPS a server gives each client on a GPU separate hardware queues, from one pool. With 32 each, the fourth
# process (an engine, two ranks and another) is refused with CUDA_ERROR_OUT_OF_MEMORY. The tests start many clients.
if CUDA:
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(min(8, 32 // ENGINES_PER_GPU))


def gpu_count():
    """The GPUs that a daemon on this machine would have."""
    if not CUDA:
        return 8
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        devices = sum(bool(name.strip()) for name in os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    else:
        devices = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.count(
            "UUID: GPU-"
        )
    return devices * ENGINES_PER_GPU


GPUS = gpu_count()


def host_only(why):
    return unittest.skipIf(CUDA, why)


def cuda_only(test):
    return unittest.skipUnless(CUDA, "needs GPUs")(test)


def own_gpus_only(test):
    return unittest.skipIf(ENGINES_PER_GPU > 1, "needs a GPU for each rank")(test)


def offered(*algorithms):
    """The names that groups here have: NCCL refuses ranks that share a GPU."""
    return [name for name in algorithms if name != "nccl" or ENGINES_PER_GPU == 1]


def needs_gpus(count):
    def mark(test):
        check_most_ranks(test.__module__, count)
        return unittest.skipIf(GPUS < count, f"needs {count} GPUs")(test)

    return mark


def check_most_ranks(module, count):
    """Fails, on every backend, where a module uses more GPUs than it says: a runner would give it too few, and skip the test."""
    if count > getattr(sys.modules[module], "MOST_RANKS", 2):
        raise AssertionError(f"{module} uses {count} GPUs: say MOST_RANKS = {count} at its top")


class CallFailed(Exception):
    def __init__(self, reply):
        super().__init__(f"{reply.get('code')}: {reply.get('message')}")
        self.reply = reply
        self.code = reply.get("code")
        self.message = reply.get("message", "")
        self.detail = reply.get("detail", {})


class Client:
    def __init__(self, daemon, name="client", env=None, wrapper=(), user=None):
        self.daemon = daemon
        self.next_id = 0
        self.replies = {}
        self.buffer = b""
        self.process = subprocess.Popen(
            [*wrapper, os.environ.get("TANDEM_TEST_CLIENT", os.path.join(BIN, "tandem-test-client"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            user=user,
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.name = name
        daemon.clients.append(self)

    @property
    def pid(self):
        return self.process.pid

    def send(self, cmd, **arguments):
        self.next_id += 1
        line = json.dumps({"id": self.next_id, "cmd": cmd, **arguments}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        return self.next_id

    def reply(self, call_id, timeout=60, check=True):
        """The reply to a call sent before; CallFailed if it is not ok and `check`."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while call_id not in self.replies:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError(f"{self.name}: no reply to call {call_id} within {timeout} s")
                chunk = self.process.stdout.read()
                if not chunk:
                    raise EOFError(f"{self.name} ended with {self.process.wait()}")
                self.buffer += chunk
                *lines, self.buffer = self.buffer.split(b"\n")
                for line in lines:
                    reply = json.loads(line)
                    self.replies[reply["id"]] = reply
        reply = self.replies.pop(call_id)
        if check and not reply["ok"]:
            raise CallFailed(reply)
        return reply

    def call(self, cmd, timeout=60, check=True, **arguments):
        return self.reply(self.send(cmd, **arguments), timeout, check)

    def connect(self, **arguments):
        return self.call("connect", runtime_dir=self.daemon.runtime_dir, name=self.name, **arguments)

    def kill(self, signum=signal.SIGKILL):
        self.process.send_signal(signum)
        if signum == signal.SIGKILL:
            self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Daemon:
    stop_signal = signal.SIGTERM
    # These tests check deaths and deadlines of engines' launches; `auto` would choose by time.
    placement = "engine"

    def __init__(self, gpus=4, extra=(), runtime_dir=None, wait=True, programs=BIN, wrapper=()):
        self.own_dir = runtime_dir is None
        self.runtime_dir = runtime_dir or tempfile.mkdtemp(prefix="tandem-test.")
        self.admin_dir = self.runtime_dir + "-admin"  # tandemd's default
        self.clients = []
        self.log_path = os.path.join(self.runtime_dir, "tandemd.log")
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            [
                *wrapper,
                os.path.join(programs, "tandemd"),
                "--backend",
                BACKEND,
                *([] if CUDA else ["--emulated-gpus", str(gpus)]),
                "--runtime-dir",
                self.runtime_dir,
                "--state-dir",
                os.path.join(self.runtime_dir, "state"),
                *EXTRA,
                *([] if "--placement" in extra else ["--placement", self.placement]),
                *extra,
            ],
            stdout=self.log,
            stderr=self.log,
        )
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout=60):
        wait_until(
            lambda: self.ctl("stats", check=False).returncode == 0 or self.process.poll() is not None,
            timeout,
            "tandemd does not answer",
        )
        if self.process.poll() is not None:
            raise RuntimeError(f"tandemd ended with {self.process.returncode}:\n{self.tail()}")
        if CUDA:
            self.wait_engines(timeout)

    def metrics_port(self):
        return self._newest_port("metrics are")

    def page_port(self):
        return self._newest_port("the page is")

    def _newest_port(self, what):
        """As the log names it. The clients' socket answers before that line is written."""
        served = re.compile(what + r" served at \S+ port=(\d+)")
        wait_until(lambda: served.search(self.tail(1000)), 60, f"the log does not say that {what} served")
        return int(served.findall(self.tail(1000))[-1])

    def tail(self, lines=40):
        with open(self.log_path, errors="replace") as log:
            return "".join(log.readlines()[-lines:])

    def ctl(self, *arguments, check=True, timeout=60):
        result = subprocess.run(
            [os.path.join(BIN, "tandemctl"), "--runtime-dir", self.runtime_dir, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"tandemctl {arguments}: {result.returncode}: {result.stderr}")
        return result

    def ctl_json(self, *arguments):
        """tandemctl's answer."""
        return json.loads(self.ctl(*arguments, "--json").stdout)

    def engines(self):
        """tandemd's status of each engine, in the GPUs' order."""
        return self.ctl_json("stats")["engines"]

    def engine_pids(self):
        """The engines' processes, in the GPUs' order; those that are down are left out."""
        return [engine["pid"] for engine in self.engines() if engine.get("pid", 0) > 0]

    def wait_engines(self, timeout=60):
        def ready():
            states = [engine["state"] for engine in self.engines()]
            if CUDA and "crash_looped" in states:  # held down after a crash loop
                raise RuntimeError(f"engines stay down: {states}\n{self.tail()}")
            return all(state == "ready" for state in states)

        wait_until(ready, timeout, "the engines do not come back")

    def kill_engine(self, gpu):
        """Ends an engine with SIGKILL; returns once tandemd has a new process for that GPU, or holds it down."""
        before = self.engines()[gpu]
        os.kill(before["pid"], signal.SIGKILL)
        wait_until(lambda: self.engines()[gpu].get("pid", 0) != before["pid"], 60, "no new engine")

    def descriptors(self):
        return self.descriptors_of(self.process.pid)

    @staticmethod
    def descriptors_of(pid):
        return len(os.listdir(f"/proc/{pid}/fd"))

    def client(self, name="client", **arguments):
        return Client(self, name, **arguments)

    def close_clients(self):
        for client in self.clients:
            client.close()
        self.clients.clear()

    def stop(self, timeout=60):
        self.close_clients()
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self.log.close()
        if self.own_dir:
            shutil.rmtree(self.runtime_dir, ignore_errors=True)
            shutil.rmtree(self.admin_dir, ignore_errors=True)


class TandemTest(unittest.TestCase):
    """A test with one daemon (`self.daemon`), started by start() or on first use, ended whatever happens."""

    gpus = 4
    extra = ()
    shares = False  # on GPUs: its tests leave the daemon as they found it, and use one
    shared_daemons = {}

    def setUp(self):
        # A daemon that is shared must not take one test for a later life of another.
        self.job_key = os.urandom(12).hex() if CUDA else "0123456789abcdef"
        if CUDA and self.shares:
            self.daemon = self.shared_daemon()
            self.addCleanup(self.finish, self.daemon.close_clients)
            return
        self.daemon = Daemon(self.gpus, self.extra)
        self.addCleanup(self.finish, lambda: self.daemon.stop())

    def shared_daemon(self):
        daemon = self.shared_daemons.get(self.extra)
        if daemon is None or daemon.process.poll() is not None:
            daemon = self.shared_daemons[self.extra] = Daemon(self.gpus, self.extra)
            atexit.register(daemon.stop)
        daemon.wait_engines()
        wait_until(lambda: daemon.ctl_json("stats")["sessions"] == 0, 60, "sessions of an earlier test stay")
        return daemon

    def finish(self, end):
        result = self._outcome.result if self._outcome else None
        failed = (
            [text for test, text in result.failures + result.errors if test.id().startswith(self.id())]
            if result
            else []
        )
        if failed:  # at once: a run that is cut short prints no summary
            print(f"--- {self.id()}\n{failed[-1]}--- tandemd's log\n{self.daemon.tail()}", flush=True)
        end()

    def group(self, world, name="tp", job_key=None, gpus=None, **arguments):
        """`world` connected clients that have joined one group."""
        check_most_ranks(type(self).__module__, world)
        if world > GPUS:
            self.skipTest(f"needs {world} GPUs")
        clients = [self.daemon.client(f"rank{rank}") for rank in range(world)]
        for client in clients:
            client.connect()
        self.join(clients, name, job_key, gpus, **arguments)
        return clients

    def join(self, clients, name="tp", job_key=None, gpus=None, **arguments):
        check_most_ranks(type(self).__module__, len(clients))
        return everybody(
            clients,
            "join",
            each=lambda rank: {
                "rank": rank,
                "world": len(clients),
                "name": name,
                "job_key": job_key or self.job_key,
                **({"gpu": gpus[rank]} if gpus else {}),
                **arguments,
            },
        )

    def prepare_all_reduce(self, clients, count=256, key="ar", group="tp", check=True, **request):
        operand = {"dtype": "f32", "shape": [count]}
        return everybody(
            clients,
            "prepare",
            group=group,
            key=key,
            plan=key,
            check=check,
            request={
                "op": "all_reduce",
                "operands": [{"role": "input", **operand}, {"role": "output", **operand}],
                **request,
            },
        )

    def all_reduce_plan(self, clients, count=256, key="ar", group="tp", **request):
        """The same on separate memory."""
        everybody(clients, "register", group=group, memory=f"{key}.in", bytes=count * 4)
        everybody(clients, "register", group=group, memory=f"{key}.out", bytes=count * 4)
        return self.prepare_all_reduce(clients, count, key, group, **request)

    def check_all_reduce(self, clients, count=256, key="ar"):
        """One launch on all ranks, and the sums that it must give."""
        for rank, client in enumerate(clients):
            client.call("fill", memory=f"{key}.in", base=rank + 1, step=1)
        # However short the group's deadline is, the ranks meet.
        bindings = [[f"{key}.in", 0], [f"{key}.out", 0]]
        everybody(clients, "launch", plan=key, bindings=bindings, launch_deadline_ms=50000)
        everybody(clients, "sync")
        everybody(clients, "wait", plan=key)
        world = len(clients)
        for client in clients:
            values = client.call("read", memory=f"{key}.out", count=count)["values"]
            self.assertEqual(values, [world * (world + 1) / 2 + world * (i % 64) for i in range(count)])

    def launch_in_opposite_orders(self, clients, times):
        """Two ranks launch the plans "a" and "b" of two groups on two streams, each in its own order; all must end."""
        for _ in range(times):
            for client, order in zip(clients, ("ab", "ba")):
                for group in order:
                    client.send(
                        "launch", plan=group, stream=f"s{group}", bindings=[[f"{group}.in", 0], [f"{group}.out", 0]]
                    )
        for group in "ab":
            everybody(clients, "sync", stream=f"s{group}")
            everybody(clients, "wait", plan=group)

    def hear_restart(self, client, key="ar", earlier=()):
        """After an engine's restart each rank gets ABORTED from one call: from one of `earlier`, or from its next launch or
        that launch's wait. Then its launches belong to the new generation."""
        told = [reply for reply in earlier if reply.get("code") == "ABORTED"]
        for reply in earlier:
            self.assertIn(reply.get("code", "OK"), ("OK", "ABORTED"), reply)
        if not told:
            reply = client.call("launch", plan=key, bindings=[[f"{key}.in", 0], [f"{key}.out", 0]], check=False)
            if reply["ok"]:
                client.call("sync", deadline_ms=50000)
                reply = client.call("wait", plan=key, check=False)
            self.assertEqual(reply.get("code"), "ABORTED", reply)
            told = [reply]
        self.assertEqual(len(told), 1, told)
        client.call("wait", plan=key)

    def run_ranks(self, program, world, *words):
        """What each rank of a Python program of this folder prints. Its arguments are rank, world and the words; all must end well."""
        here = os.path.dirname(os.path.abspath(__file__))
        environment = {
            **os.environ,
            "PYTHONPATH": os.path.join(here, "../../client/python/src"),
            "TANDEM_LIBRARY": os.path.join(BIN, "../lib/libtandem.so"),
            "TANDEM_RUNTIME_DIR": self.daemon.runtime_dir,
        }
        command = [sys.executable, "-B", os.path.join(here, program)]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(world), *words], stdout=subprocess.PIPE, text=True, env=environment
            )
            for rank in range(world)
        ]
        try:
            told = [rank.communicate(timeout=600)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        self.assertEqual([rank.returncode for rank in ranks], [0] * world)
        return told

    def assertFails(self, code, function, *arguments, **named):
        with self.assertRaises(CallFailed) as caught:
            function(*arguments, **named)
        self.assertEqual(caught.exception.code, code, caught.exception.message)
        return caught.exception


def everybody(clients, cmd, each=None, timeout=60, check=True, **arguments):
    """The same command on all clients at once; their replies in order."""
    calls = [client.send(cmd, **{**arguments, **(each(rank) if each else {})}) for rank, client in enumerate(clients)]
    return [client.reply(call, timeout, check) for client, call in zip(clients, calls)]


def wait_until(condition, timeout=60, what="the condition does not come true"):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)
