"""Callers who may not use a socket of tandemd: each gets that reason, and never that no daemon answers."""

import os
import subprocess
import unittest

from harness import BIN, Client, TandemTest, host_only

# Root may use every socket, so that its tests take another user.
USER = 65534 if os.getuid() == 0 else None


@host_only("nothing of it is the backend's")
class Permission(TandemTest):
    gpus = 1

    def refused(self):
        client = Client(self.daemon, "stranger", user=USER)
        self.addCleanup(client.close)
        return client.call("connect", runtime_dir=self.daemon.runtime_dir, check=False)

    def closed(self, name):
        """The path of a socket that nobody but root may use any more, and its mode before."""
        path = os.path.join(self.daemon.runtime_dir, name)
        mode = os.stat(path).st_mode & 0o777
        os.chmod(path, 0)
        self.addCleanup(lambda: os.path.exists(path) and os.chmod(path, mode))
        return path, mode

    def setUp(self):
        super().setUp()
        self.folder_mode = os.stat(self.daemon.runtime_dir).st_mode & 0o777
        os.chmod(self.daemon.runtime_dir, 0o755)

    def check(self, reply, path):
        self.assertEqual(reply.get("code"), "PERMISSION_DENIED", reply)
        self.assertEqual(reply["detail"]["reason"], "NO_PERMISSION", reply)
        self.assertIn(path, reply["message"])
        self.assertNotIn("no daemon", reply["message"])

    def test_each_socket_of_clients_names_itself(self):
        for name in ("lease.sock", "client.sock"):
            with self.subTest(socket=name):
                path, mode = self.closed(name)
                self.check(self.refused(), path)
                os.chmod(path, mode)

    def test_a_directory_that_may_not_be_entered_is_named(self):
        os.chmod(self.daemon.runtime_dir, 0o600 if USER else 0)
        self.addCleanup(os.chmod, self.daemon.runtime_dir, 0o755)
        self.check(self.refused(), self.daemon.runtime_dir)

    def test_tandemctl_names_the_socket(self):
        path, _ = self.closed("client.sock")
        done = subprocess.run(
            [os.path.join(BIN, "tandemctl"), "--runtime-dir", self.daemon.runtime_dir, "groups"],
            capture_output=True,
            text=True,
            user=USER,
            timeout=60,
            check=False,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("may not use " + path, done.stderr)
        self.assertNotIn("no daemon", done.stderr)

    def test_without_a_daemon_it_is_the_daemon_that_is_missing(self):
        self.daemon.stop()
        os.makedirs(self.daemon.runtime_dir, exist_ok=True)
        self.addCleanup(os.rmdir, self.daemon.runtime_dir)
        reply = self.refused()
        self.assertEqual((reply["code"], reply["detail"]["reason"]), ("UNAVAILABLE", "NO_DAEMON"), reply)


if __name__ == "__main__":
    unittest.main()
