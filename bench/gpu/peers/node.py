"""A tandemd of the benchmark's own, from TANDEM_BIN_DIR, and processes that end with their parent."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

BIN = os.environ.get("TANDEM_BIN_DIR", "")
PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon:
    """Starts tandemd on the CUDA backend and waits until it answers; `runtime_dir` is where clients find it."""

    def __init__(self, log_path, extra=(), ready_s=90):
        self.runtime_dir = tempfile.mkdtemp(prefix="tandem-bench.")
        self.log_path = log_path
        self.log = open(log_path, "ab")
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [
                os.path.join(BIN, "tandemd"),
                "--backend",
                "cuda",
                "--socket-group",
                "",
                "--runtime-dir",
                self.runtime_dir,
                "--state-dir",
                os.path.join(self.runtime_dir, "state"),
                *extra,
            ],
            stdout=self.log,
            stderr=self.log,
            preexec_fn=die_with_parent,
        )
        while self.ctl("stats").returncode != 0:
            if self.process.poll() is not None or time.monotonic() - begun > ready_s:
                ended = self.process.poll()
                self.stop()
                raise RuntimeError(f"tandemd does not answer (exit {ended}):\n{self.tail()}")
            time.sleep(0.05)
        self.ready_seconds = time.monotonic() - begun

    def ctl(self, *arguments):
        return subprocess.run(
            [os.path.join(BIN, "tandemctl"), "--runtime-dir", self.runtime_dir, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )

    def engines(self):
        """tandemd's status of each engine, in the GPUs' order."""
        return json.loads(self.ctl("stats", "--json").stdout)["engines"]

    def tail(self, lines=40):
        with open(self.log_path, errors="replace") as log:
            return "".join(log.readlines()[-lines:])

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)
