"""A tandemd for the tests of deploy/: of any program, started and stopped as systemd does, by its notifications."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request


class Daemon:
    """tandemd with emulated GPUs in a separate folder. `wrapper` stands before the program ("setpriv …"); `environment` is
    added."""

    def __init__(self, tandemd, wrapper=(), gpus=2, environment=None, owner=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-deploy-"))
        self.folder.chmod(0o755)
        if owner is not None:
            os.chown(self.folder, owner, owner)
        self.runtime_dir = self.folder / "run"
        self.log_path = self.folder / "log"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, open(self.log_path, "w") as log:
            path = self.folder / "notify"
            notify.bind(str(path))
            path.chmod(0o777)
            # Emulated GPUs report what real ones do.
            faults = self.folder / "faults"
            names = ("xid 31", "ecc 0", "rows_pending 0", "active_links 18", "link_replays 0", "clocks power_cap")
            faults.write_text("".join(f"{gpu} {name}\n" for gpu in range(gpus) for name in names))
            faults.chmod(0o644)
            self.process = subprocess.Popen(
                [
                    *wrapper,
                    str(tandemd),
                    "--backend",
                    "host",
                    "--emulated-gpus",
                    str(gpus),
                    "--emulated-memory-bytes",
                    "256 MiB",
                    "--runtime-dir",
                    str(self.runtime_dir),
                    "--state-dir",
                    str(self.folder / "state"),
                    "--socket-group",
                    "",
                    "--testing-gpu-health-file",
                    str(faults),
                    "--metrics-listen",
                    "127.0.0.1:0",
                ],
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": str(path), **(environment or {})},
            )
            try:
                self._await_ready(notify, deadline=time.monotonic() + 120)
            except BaseException:
                self.stop()
                raise

    def _await_ready(self, notify, deadline):
        while True:
            notify.settimeout(1)
            try:
                if b"READY=1" in notify.recv(4096):
                    return
            except TimeoutError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"tandemd is not ready:\n{self.log()}")

    def log(self):
        return self.log_path.read_text()

    def metrics_port(self):
        return int(re.search(r"metrics.* port=(\d+)", self.log()).group(1))

    def get(self, path):
        """The body of a GET on the metrics' address."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port()}{path}", timeout=20) as reply:
            return reply.read().decode()

    def stop(self):
        """Stops tandemd by SIGTERM, and removes the folder. The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.process.returncode
