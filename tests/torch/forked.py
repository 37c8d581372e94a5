"""Ranks that begin as copies of a process which has imported torch. An import takes 4 to 7 seconds of CPU time, a copy a few
milliseconds. As a program this file is that process; it serves the test that started it until the test ends."""

import contextlib
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback

# torch, Python or a library below them reads variables with these beginnings while it starts.
READ_AT_START = ("LD_", "OMP_", "MKL_", "PYTORCH_", "PYTHON", "TORCH_")
SET_LATER = ("PYTHONPATH",)
PRELOADED = (
    "numpy",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed._functional_collectives",
    "torch.distributed.tensor",
)
LARGEST = 1 << 17  # bytes of a request, most of which are the environment


class Process:
    """A rank, with what the tests use of subprocess.Popen."""

    def __init__(self, pid, ended):
        self.pid, self.returncode = pid, None
        self._ended = ended  # its keeper writes the status there

    def poll(self):
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if timeout is not None and not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.pid, timeout)
            self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)
            os.close(self._ended)
        return self.returncode

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its keeper has yet to write so
                os.kill(self.pid, number)


class Parent:
    """The process that ranks are copies of. environment: of the first of them."""

    def __init__(self, environment):
        self._environment = _read_at_start(environment)
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST)
        with other:
            environment = {name: value for name, value in environment.items() if name not in SET_LATER}
            command = [sys.executable, "-B", os.path.abspath(__file__), str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], env=environment)

    def suits(self, environment):
        """Whether a copy is like a process that starts with this environment."""
        return self._process.poll() is None and _read_at_start(environment) == self._environment

    def start(self, command, environment, stdout, stderr):
        """Starts `python command…`."""
        read, write = os.pipe()
        request = json.dumps({"command": command, "environment": environment, "folder": os.getcwd()}).encode()
        try:
            socket.send_fds(self._socket, [request], [stdout.fileno(), stderr.fileno(), write])
        finally:
            os.close(write)
        return Process(int(self._socket.recv(16)), read)


def _read_at_start(environment):
    names = [name for name in environment if name.startswith(READ_AT_START) and name not in SET_LATER]
    return {name: environment[name] for name in names}


def _preload():
    for module in PRELOADED:
        importlib.import_module(module)


def _serve(channel):
    """Returns a request in the copy that is to run it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 3)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _become(channel, json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(channel, request, stdout, stderr, ended):
    """The rank's keeper, which ends here, or the rank."""
    pid = os.fork()
    if pid != 0:
        channel.send(str(pid).encode())
        channel.close()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(ended, str(status).encode())
        os._exit(0)
    channel.close()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in (stdout, stderr, ended):
        os.close(descriptor)
    return request


def _run(request):
    """Runs the program as if Python had been started with it."""
    program, *arguments = request["command"]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [os.path.dirname(program), *given, *sys.path[1:]]
    sys.argv[:] = [program, *arguments]
    tempfile.tempdir = None  # TMPDIR may be another
    random.seed()
    sys.modules["numpy"].random.seed()
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    _preload()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
