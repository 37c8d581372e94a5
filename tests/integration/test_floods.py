"""A user who makes many of something starves nobody: beside the flood another user's job, an operator and a new client go on."""

import contextlib
import os
import re
import select
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from floods import FLOODER, USER, BesideAFlood
from harness import BIN, Client, host_only, wait_until

# Flooders become another user themselves: that user may not be able to run the tests' interpreter, nor read its library.
BECOME = f"""
import os, socket, sys
os.setgroups([])
os.setgid({os.getgid()})
os.setuid({FLOODER})
"""

# Idle connections to the clients' socket; each output line is the number of connections so far.
CONNECTIONS = """
held, opened, told = [], 0, 0
while True:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(sys.argv[1] + "/client.sock")
    except OSError:
        continue
    if len(sys.argv) > 2:  # the beginning of HTTP/2, so that gRPC takes the connection for a client's
        try:
            s.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(3) + bytes([4]) + bytes(5))
        except OSError:
            pass
    held.append(s)
    held = held[-3000:]
    opened += 1
    if opened - told >= 200:
        told = opened
        print(opened, flush=True)
"""

# Attaches and closes in a loop; the same output.
ATTACHES = """
message = bytes.fromhex(sys.argv[2])
opened = told = 0
while True:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        s.connect(sys.argv[1] + "/lease.sock")
        s.send(message)
        s.recv(65536)
    except OSError:
        pass
    s.close()
    opened += 1
    if opened - told >= 200:
        told = opened
        print(opened, flush=True)
"""


def attach_message():
    """A lease message that attaches: a header and two fields of the protocol's versions."""
    body = bytes([0x0A, 0x04, 0x08, 0x02, 0x10, 0x02])
    return struct.pack("<IIQ", 0x544E444D, 0, len(body)) + body


@host_only("about tandemd's sockets")
@unittest.skipUnless(os.getuid() == 0, "runs clients of several users")
class Floods(BesideAFlood):
    @contextlib.contextmanager
    def flood(self, program, *arguments):
        """A process of another user that runs until the end; begins once 600 tries are through."""
        process = subprocess.Popen(
            [sys.executable, "-c", BECOME + program, self.daemon.runtime_dir, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.await_tries(process, 600)
            yield process
            self.assertIsNone(process.poll(), "the flood has ended before its time")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def await_tries(self, flood, tries):
        for line in flood.stdout:
            if int(line) >= tries:
                return
        self.fail(f"the flood has ended before {tries} tries")

    def test_idle_connections(self):
        clients = self.job()
        before = self.daemon.descriptors()
        for arguments in ((), ("speaks",)):
            with self.subTest(arguments=arguments), self.flood(CONNECTIONS, *arguments):
                self.check_others(clients)
                # Two descriptors for each, of 128 at most, and some that gRPC has still to close.
                self.assertLess(self.daemon.descriptors() - before, 1000)
        wait_until(lambda: self.daemon.descriptors() < before + 64, 30, "descriptors of ended connections stay")

    def test_a_connection_without_a_call_is_closed(self):
        with socket.socket(socket.AF_UNIX) as idle:
            idle.connect(self.daemon.runtime_dir + "/client.sock")
            idle.settimeout(20)
            while idle.recv(4096):  # what gRPC greets with, then the end
                pass

    @contextlib.contextmanager
    def full_queue(self):
        """A folder whose client.sock has a full queue of connections, once one more has come; and its listener."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            os.symlink(os.path.join(self.daemon.runtime_dir, "lease.sock"), os.path.join(folder, "lease.sock"))
            listener.bind(os.path.join(folder, "client.sock"))
            listener.listen(0)
            yield folder, listener

    def test_tandemctl_beside_a_full_queue_of_connections(self):
        """gRPC takes a socket with a full queue for a connected one, and fails the call."""
        with self.full_queue() as (folder, listener):  # tandemctl's probe fills it
            command = [os.path.join(BIN, "tandemctl"), "--runtime-dir", folder, "stats", "--json"]
            asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                asked.wait(1)  # the time in which it finds the queue full
            with self.forwarding(listener):
                out, err = asked.communicate(timeout=60)
            self.assertEqual(asked.returncode, 0, err)
            self.assertIn("uptime", out)

    def test_a_client_beside_a_full_queue_of_connections(self):
        client = Client(self.daemon, "late")
        with self.full_queue() as (folder, listener), socket.socket(socket.AF_UNIX) as first:
            first.connect(os.path.join(folder, "client.sock"))
            client.send("connect", runtime_dir=folder, name="late")
            call = client.send("join", name="tp", rank=0, world=1, job_key=self.job_key)
            with selectors.DefaultSelector() as selector:
                selector.register(client.process.stdout, selectors.EVENT_READ)
                selector.select(1)  # the time in which it finds the queue full
            with self.forwarding(listener):
                self.assertTrue(client.reply(call)["ok"])

    @contextlib.contextmanager
    def forwarding(self, listener):
        ended = threading.Event()
        serving = threading.Thread(target=self.forward, args=(listener, ended), daemon=True)
        serving.start()
        try:
            yield
        finally:
            ended.set()
            serving.join()

    def forward(self, listener, ended):
        """Passes on what comes to `listener`, and the daemon's answers."""
        pairs = {}
        while not ended.is_set():
            ready, _, _ = select.select([listener, *pairs], [], [], 0.1)
            for one in ready:
                if one is listener:
                    given, _ = listener.accept()
                    ours = socket.socket(socket.AF_UNIX)
                    ours.connect(os.path.join(self.daemon.runtime_dir, "client.sock"))
                    pairs |= {given: ours, ours: given}
                    continue
                data = b""
                with contextlib.suppress(OSError):
                    data = one.recv(65536)
                    pairs[one].sendall(data)
                if not data:
                    other = pairs.pop(one)
                    pairs.pop(other)
                    one.close()
                    other.close()
                    break  # the other may be among those that are ready
        for one in pairs:
            one.close()

    def test_attaches(self):
        clients = self.job()
        with self.flood(ATTACHES, attach_message().hex()) as flood:
            self.check_others(clients)
            self.daemon.ctl("cordon")
            self.daemon.ctl("cordon", "--undo")
            self.await_tries(flood, 5000)
        log = self.daemon.tail(100000)
        self.assertLess(len(re.findall(rf"attached pid=\d+ uid={FLOODER}\b", log)), 1500)
        self.assertEqual(len(re.findall("audit call=Cordon", log)), 2, "an operator's lines are not left out")
        wait_until(
            lambda: re.search(rf"uid={FLOODER} .*refused.*: \d+ in \d+ s", self.daemon.tail(100000)),
            30,
            "the log does not say how many were refused",
        )
        self.assertTrue(all(re.match(r"20\d\d-", line) for line in self.daemon.tail(100000).splitlines()))

    def test_removed_sockets_are_made_again_and_said(self):
        clients = self.job()
        for name in ("lease.sock", "client.sock"):
            path = os.path.join(self.daemon.runtime_dir, name)
            os.unlink(path)
            wait_until(lambda: os.path.exists(path), 60, f"{name} is not made again")
            Client(self.daemon, f"after-{name}", user=USER).connect()
            wait_until(lambda: f"{name} had been removed" in self.daemon.tail(1000), 60, "the log is silent")
        findings = self.daemon.ctl_json("doctor")["findings"]
        sockets = [f["message"] for f in findings if f["check"] == "socket"]
        self.assertEqual(len(sockets), 2, findings)
        self.check_all_reduce(clients)


if __name__ == "__main__":
    unittest.main()
