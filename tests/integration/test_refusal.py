"""A client hears why a daemon refuses it, also if the daemon has closed the lease before it has read what the client sends."""

import os
import select
import socket
import struct
import tempfile
import threading
import unittest
from types import SimpleNamespace

from harness import Client

MAGIC = 0x544E444D
FAILED_PRECONDITION = 9


def field(number, content):
    """A field of a protobuf message: a number, or bytes."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    return bytes([number << 3 | 2, len(content)]) + content


def refusal():
    """A lease message that refuses the session."""
    detail = field(1, FAILED_PRECONDITION) + field(2, b"not here") + field(3, b"PID_NAMESPACE")
    body = field(4, detail)
    return struct.pack("=IIQ", MAGIC, 0, len(body)) + body


class Refusals(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.path.join(self.folder.name, "lease.sock"))
        self.listener.listen(8)
        self.addCleanup(self.listener.close)

    def replies(self, times, reads_first, speaks=True):
        """The answers to a client that connects so often to a daemon that refuses, before or after it hears the client."""

        def serve():
            for _ in range(times):
                connection, _ = self.listener.accept()
                if reads_first:
                    select.select([connection], [], [])
                if speaks:
                    connection.send(refusal())
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()

        daemon = threading.Thread(target=serve)
        daemon.start()
        client = Client(SimpleNamespace(runtime_dir=self.folder.name, clients=[]))
        self.addCleanup(client.close)
        replies = [client.call("connect", runtime_dir=self.folder.name, check=False) for _ in range(times)]
        daemon.join()
        return replies

    def check(self, replies):
        for reply in replies:
            self.assertEqual(reply.get("detail", {}).get("reason"), "PID_NAMESPACE", reply)
            self.assertIn("not here", reply["message"])

    def test_before_the_client_has_spoken(self):
        self.check(self.replies(50, reads_first=False))

    def test_with_what_the_client_said_unread(self):
        self.check(self.replies(10, reads_first=True))

    def test_a_daemon_that_closes_without_a_word_is_none(self):
        for reads_first in (False, True):
            for reply in self.replies(10, reads_first, speaks=False):
                self.assertEqual(reply.get("detail", {}).get("reason"), "NO_DAEMON", reply)
                self.assertIn("has closed the connection", reply["message"])


if __name__ == "__main__":
    unittest.main()
