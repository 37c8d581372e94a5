"""A tandemd of the test's own, and ranks that are processes of their own; for the Python package's tests."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

from harness import BIN, Daemon, wait_until  # noqa: E402, F401

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "../../client/python/src")
PATIENCE = 540


def free_port():
    """A TCP port that nobody has now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Ranks:
    """`world` processes of one program, with torchrun's variables. Their last line of output is JSON: the result."""

    def __init__(self, daemon, world, program, *arguments, env=None):
        port = free_port()
        self.runtime_dir = "" if daemon is None else daemon.runtime_dir
        self.logs = [tempfile.TemporaryFile("w+") for _ in range(world)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-B", os.path.join(HERE, program), *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_WORLD_SIZE": str(world),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "TANDEM_RUNTIME_DIR": self.runtime_dir or "/nonexistent",
                    "OMP_NUM_THREADS": "1",
                    "TORCHINDUCTOR_COMPILE_THREADS": "1",
                    "PYTHONPATH": SOURCE,
                    **(env or {}),
                },
            )
            for rank, log in enumerate(self.logs)
        ]

    def wait_for(self, rank, text, timeout=PATIENCE):
        """Reads the rank's output until it prints this line."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            line = self.processes[rank].stdout.readline()
            if line.strip() == text:
                return
            if not line:
                raise AssertionError(f"rank {rank} ended before '{text}':\n{self.log(rank)}")
        raise AssertionError(f"rank {rank} did not print '{text}' in time:\n{self.log(rank)}")

    def log(self, rank):
        """What the rank has written to its standard error, the last part."""
        if self.logs[rank].closed:
            return self.texts[rank]
        self.logs[rank].seek(0)
        return self.logs[rank].read()[-6000:]

    def result(self, rank, timeout=PATIENCE):
        """The rank's result. AssertionError as of output()."""
        return json.loads(self.output(rank, timeout).strip().splitlines()[-1])

    def output(self, rank, timeout=PATIENCE):
        """What the rank prints. AssertionError with its log if it fails or does not end in time."""
        try:
            output, _ = self.processes[rank].communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"rank {rank} does not end:\n{self.log(rank)}") from None
        if self.processes[rank].returncode != 0:
            raise AssertionError(
                f"rank {rank} ended with {self.processes[rank].returncode}:\n{output}\n{self.log(rank)}"
            )
        return output

    def outputs(self, timeout=PATIENCE):
        """What all ranks print."""
        try:
            return [self.output(rank, timeout) for rank in range(len(self.processes))]
        finally:
            self.kill()

    def results(self, timeout=PATIENCE):
        """The results of all ranks."""
        try:
            return [self.result(rank, timeout) for rank in range(len(self.processes))]
        finally:
            self.kill()

    def kill(self):
        """Ends what still runs, and keeps the logs' texts."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for process in self.processes:
            if process.stdout and not process.stdout.closed:
                process.stdout.close()
        self.texts = [self.log(rank) for rank in range(len(self.logs))]
        for log in self.logs:
            log.close()
