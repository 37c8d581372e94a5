"""Descriptors that are late: a call's descriptors and the call come by two sockets, and on a busy node one of them may be seconds behind
the other. The call goes on as long as its own deadline, not only as long as tandemd keeps one for the other."""

import os
import selectors
import socket
import tempfile
import threading
import unittest

from harness import TandemTest, host_only, wait_until


class LateLease:
    """A lease socket in front of tandemd's. Packets with descriptors are kept until `release` is set."""

    def __init__(self, daemon):
        self.directory = tempfile.TemporaryDirectory(prefix="tandem-test.")
        self.path = self.directory.name
        os.symlink(os.path.join(daemon.runtime_dir, "client.sock"), os.path.join(self.path, "client.sock"))
        self.behind = os.path.join(daemon.runtime_dir, "lease.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.path.join(self.path, "lease.sock"))
        self.listener.listen()
        self.kept, self.release = [], threading.Event()
        self.client = self.daemon = None
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        self.client, _ = self.listener.accept()
        self.daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon.connect(self.behind)
        with selectors.DefaultSelector() as selector:
            selector.register(self.client, selectors.EVENT_READ, self.daemon)
            selector.register(self.daemon, selectors.EVENT_READ, self.client)
            while True:
                for key, _ in selector.select():
                    data, fds, _, _ = socket.recv_fds(key.fileobj, 1 << 16, 64)
                    if not data:
                        return
                    if fds and key.fileobj is self.client:
                        self.kept.append((data, fds))
                        if not self.release.is_set():
                            continue
                        for packet in self.kept:
                            self.forward(self.daemon, *packet)
                        self.kept.clear()
                    else:
                        self.forward(key.data, data, fds)

    @staticmethod
    def forward(to, data, fds):
        socket.send_fds(to, [data], fds)
        for fd in fds:
            os.close(fd)

    def close(self):
        for end in (self.client, self.daemon):
            end.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for end in (self.client, self.daemon, self.listener):
            end.close()
        self.directory.cleanup()


@host_only("registers the host's memory")
class LateDescriptors(TandemTest):
    gpus = 1

    def test_a_registration_waits_as_long_as_its_own_deadline(self):
        lease = LateLease(self.daemon)
        client = self.daemon.client()
        gpu = client.call("connect", runtime_dir=lease.path)["gpus"][0]
        call = client.send("register", memory="late", gpu=gpu, bytes=4096)
        wait_until(lambda: lease.kept, 60, "no descriptors come")
        # What comes from now on is let through, with what came before.
        lease.release.set()
        self.assertTrue(client.reply(call)["ok"])
        # The client is whole.
        client.call("register", memory="next", gpu=gpu, bytes=4096)
        client.call("check")
        lease.close()


if __name__ == "__main__":
    unittest.main()
