"""A tandemd of the test's own, and ranks that are processes of their own; for the Python package's tests.

TANDEM_TEST_BACKEND=cuda runs the same on GPUs; TANDEM_TEST_ENGINES_PER_GPU makes several of each (see
tests/integration/harness.py). TANDEM_TEST_PLACEMENT=client or engine says where plans run; otherwise tandemd chooses, as it
does for users."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import forked  # noqa: E402
import harness  # noqa: E402
from harness import BIN, CUDA, ENGINES_PER_GPU, GPUS, wait_until  # noqa: E402, F401

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "../../client/python/src")
PATIENCE = 240
GRACE = 10  # seconds for the other ranks once one has failed
STARTS = 5


class Daemon(harness.Daemon):
    placement = os.environ.get("TANDEM_TEST_PLACEMENT", "auto")


def free_port():
    """A TCP port that nobody has now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


_parents = []


def _start(python, command, environment, files):
    """Starts the command by this Python; None: as a copy of a process that has imported torch."""
    if python is not None:
        return subprocess.Popen([*python, *command], text=True, env=environment, **files)
    parent = next((one for one in _parents if one.suits(environment)), None)
    if parent is None:
        parent = forked.Parent(environment)
        _parents.append(parent)
    return parent.start(command, environment, **files)


class Ranks:
    """`world` processes of one program, with torchrun's variables. Their output goes to files: no rank waits for a reader."""

    def __init__(
        self, daemon, world, program, *arguments, env=None, each=lambda rank: ((), {}), own=lambda rank: (), fresh=False
    ):
        """each: the beginning of a rank's command, and additions to its environment. own: a rank's first arguments. fresh: each
        rank imports torch itself."""
        port = free_port()
        self.runtime_dir = "" if daemon is None else daemon.runtime_dir
        self.daemon = daemon
        self.prints = [tempfile.TemporaryFile("w+") for _ in range(world)]
        self.logs = [tempfile.TemporaryFile("w+") for _ in range(world)]
        self.processes = []
        for rank in range(world):
            prefix, more = each(rank)
            fresh = fresh or CUDA or bool(prefix)
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TANDEM_RUNTIME_DIR": self.runtime_dir or "/nonexistent",
                "TANDEM_EMBEDDED": "0",  # these tests have their own daemon, or none
                "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_COMPILE_THREADS": "4" if CUDA else "1",
                "TORCHINDUCTOR_VEC_ISA_OK": "1",  # else every rank starts a process with torch to try it
                "GLOO_SOCKET_IFNAME": "lo",
                "NCCL_SOCKET_IFNAME": "lo",
                "PYTHONPATH": SOURCE,
                **(env or {}),
                **more,
            }
            command = [os.path.join(HERE, program), *own(rank), *arguments]
            files = {"stdout": self.prints[rank], "stderr": self.logs[rank]}
            self.processes.append(
                _start([*prefix, sys.executable, "-B"] if fresh else None, command, environment, files)
            )

    def printed(self, rank):
        """The rank's standard output so far."""
        return _read(self.prints[rank])

    def log(self, rank):
        """The last part of the rank's standard error."""
        return _read(self.logs[rank])[-5000:]

    def wait_for(self, rank, text, timeout=PATIENCE):
        """Waits until the rank has printed this line."""

        def there():
            return text in self.printed(rank).splitlines()

        try:
            wait_until(lambda: there() or self.processes[rank].poll() is not None, timeout)
        except TimeoutError:
            pass
        if not there():
            self.fail(f"rank {rank} has not printed '{text}'")

    def wait(self, ranks=None, timeout=PATIENCE):
        """Waits for these ranks, or all. AssertionError if one fails or does not end in time: it names the ranks, and has the
        end of every rank's log."""
        chosen = range(len(self.processes)) if ranks is None else ranks
        deadline = time.monotonic() + timeout
        while True:
            statuses = {rank: self.processes[rank].poll() for rank in chosen}
            if all(status == 0 for status in statuses.values()):
                return
            if any(status not in (None, 0) for status in statuses.values()):
                deadline = min(deadline, time.monotonic() + GRACE)
            if time.monotonic() > deadline or None not in statuses.values():
                ended = [f"rank {rank} ended with {status}" for rank, status in statuses.items() if status]
                running = [f"rank {rank} has not ended" for rank, status in statuses.items() if status is None]
                self.fail("; ".join(ended + running))
            time.sleep(0.02)

    def fail(self, what):
        """Ends all ranks and raises an AssertionError with their logs."""
        self.stop()
        logs = [f"--- rank {rank}'s log\n{self.log(rank)}" for rank in range(len(self.processes))]
        daemon = "" if self.daemon is None else f"--- tandemd's log\n{self.daemon.tail(20)}"
        raise AssertionError("\n".join([what, *logs, daemon]))

    def result(self, rank, timeout=PATIENCE):
        """The rank's last line of output, which is JSON. AssertionError as of wait()."""
        self.wait([rank], timeout)
        return json.loads(self.printed(rank).strip().splitlines()[-1])

    def outputs(self, timeout=PATIENCE):
        """The output of all ranks. AssertionError as of wait()."""
        try:
            self.wait(timeout=timeout)
            return [self.printed(rank) for rank in range(len(self.processes))]
        finally:
            self.close()

    def results(self, timeout=PATIENCE):
        """The results of all ranks."""
        return [json.loads(text.strip().splitlines()[-1]) for text in self.outputs(timeout)]

    def stop(self):
        """Ends the processes that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def close(self):
        """The same, and drops what they have printed."""
        self.stop()
        for file in (*self.prints, *self.logs):
            file.close()


def _read(file):
    """The file's text, also while its writer goes on: the offset is the writer's, too, and stays."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def run_checks(daemon, world, program, names, env=None, timeout=PATIENCE, start=Ranks):
    """Runs checks of a program (see checks.py); what failed of each, "" if nothing. `timeout`: seconds of each start; `start`: makes
    the ranks.

    After a failure the ranks are started anew with the checks that are left, a few times.
    """
    outcomes, left = {}, list(names)
    for _ in range(STARTS):
        if not left:
            break
        ranks = start(daemon, world, program, *left, env=env)
        try:
            ranks.wait(timeout=timeout)
            failure = ""
        except AssertionError as error:
            failure = str(error)
        done = [{line["check"]: line["failure"] for line in _lines(ranks.printed(rank))} for rank in range(world)]
        ranks.close()
        for name in list(left):
            failed = [f"rank {rank}: {told[name]}" for rank, told in enumerate(done) if told.get(name)]
            missing = [str(rank) for rank, told in enumerate(done) if name not in told]
            if not failed and not missing:
                outcomes[name] = ""
                left.remove(name)
                continue
            if missing:
                failed.append(f"ranks {', '.join(missing)} have not ended it")
            outcomes[name] = "\n".join([*failed, failure])
            left.remove(name)
            break
    return outcomes | dict.fromkeys(left, f"not run: {STARTS} starts have failed")


def _lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"check"')]
