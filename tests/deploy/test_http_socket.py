"""Health and metrics on a Unix socket: the command of tandem-http.service, started by a socket as systemd starts it."""

import http.client
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

from daemon import Daemon

UNITS = pathlib.Path(__file__).parents[2] / "deploy/systemd"
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", UNITS.parents[1] / "build/check/bin"))
PROXY = "/usr/lib/systemd/systemd-socket-proxyd"


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


@unittest.skipUnless(
    os.path.exists(PROXY) and shutil.which("systemd-socket-activate"), "systemd-socket-proxyd is not installed"
)
class HttpSocket(unittest.TestCase):
    def ask(self, path):
        connection = Connection(self.socket)
        self.addCleanup(connection.close)
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()

    def test_the_unit_serves_health_and_metrics(self):
        daemon = Daemon(BIN / "tandemd")
        self.addCleanup(daemon.stop)
        port = daemon.metrics_port()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.socket = pathlib.Path(folder.name) / "http.sock"
        (command,) = re.findall(r"^ExecStart=(.*)$", (UNITS / "tandem-http.service").read_text(), re.MULTILINE)
        self.assertIn("${TANDEM_METRICS}", command)
        command = shlex.split(command.replace("${TANDEM_METRICS}", f"127.0.0.1:{port}"))
        activated = subprocess.Popen(
            ["systemd-socket-activate", f"--listen={self.socket}", *command], stderr=subprocess.DEVNULL
        )
        self.addCleanup(activated.wait)
        self.addCleanup(activated.kill)
        deadline = time.monotonic() + 20
        while not self.socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(self.ask("/livez"), (200, "live\n"))
        self.assertEqual(self.ask("/readyz"), (200, "ready\n"))
        status, text = self.ask("/metrics")
        self.assertEqual(status, 200)
        self.assertIn("tandem_build_info", text)

    def test_the_socket_is_apart_from_the_clients_directory(self):
        (path,) = re.findall(r"^ListenStream=(.*)$", (UNITS / "tandem-http.socket").read_text(), re.MULTILINE)
        self.assertNotIn(pathlib.Path("/run/tandem"), pathlib.Path(path).parents)


if __name__ == "__main__":
    unittest.main()
