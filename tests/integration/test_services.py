"""Permissions of calls: health and reading on the clients' socket, changes on the administrators' only."""

import json
import os
import signal
import subprocess
import tempfile
import unittest

from harness import BIN, IN_BUNDLE, Daemon, TandemTest, host_only, wait_until
from test_rogue import Rogue

SERVING, NOT_SERVING = "0801", "0802"  # HealthCheckResponse{status}


class Services(TandemTest):
    gpus = 1

    def caller(self, socket):
        caller = Rogue(self.daemon)
        directory = self.daemon.admin_dir if socket == "admin.sock" else self.daemon.runtime_dir
        path = os.path.join(os.path.relpath(directory, self.daemon.runtime_dir), socket)
        caller.call("connect", runtime_dir=self.daemon.runtime_dir, socket=path)
        return lambda method, hex="", **more: caller.call("call", method=method, hex=hex, token="", **more)

    def health(self, caller, service=""):
        name = service.encode()
        request = (b"\x0a" + bytes([len(name)]) + name).hex() if name else ""  # HealthCheckRequest{service}
        return caller("/grpc.health.v1.Health/Check", hex=request)["hex"]

    def test_health_is_served_on_both_sockets(self):
        for socket in ("client.sock", "admin.sock"):
            caller = self.caller(socket)
            for service in ("", "liveness", "readiness", "tandem.v1.Tandem"):
                self.assertEqual(self.health(caller, service), SERVING, (socket, service))

    def test_a_draining_node_is_live_and_not_ready(self):
        callers = [self.caller(socket) for socket in ("client.sock", "admin.sock")]
        self.assertEqual(self.daemon.ctl("health", "--ready").stdout, "live, ready\n")
        self.daemon.ctl("drain", "--wait", "5")
        for caller in callers:
            for service in ("", "readiness", "tandem.v1.Tandem"):
                self.assertEqual(self.health(caller, service), NOT_SERVING, service)
            self.assertEqual(self.health(caller, "liveness"), SERVING)
        self.assertEqual(self.daemon.ctl("health").returncode, 0)
        ready = self.daemon.ctl("health", "--ready", check=False)
        self.assertEqual(ready.returncode, 1, ready.stdout)
        self.assertIn("live, not ready\n  the node drains", ready.stdout)
        reply = json.loads(self.daemon.ctl("health", "--ready", "--json", check=False).stdout)
        self.assertEqual((reply["live"], reply["ready"], len(reply["reasons"])), (True, False, 1))
        self.daemon.ctl("drain", "--undo")
        for caller in callers:
            self.assertEqual(self.health(caller), SERVING)

    @host_only("holds an engine down")
    def test_an_engine_that_is_held_down_is_not_ready(self):
        engine = self.daemon.engines()[0]
        caller = self.caller("client.sock")
        os.kill(engine["pid"], signal.SIGSTOP)
        self.addCleanup(self.let_go, engine["pid"])
        wait_until(lambda: self.health(caller) == NOT_SERVING, 60, "the health service did not see the stopped engine")
        ready = self.daemon.ctl("health", "--ready", check=False)
        self.assertEqual(ready.returncode, 1)
        self.assertIn(engine["gpu_uuid"], ready.stdout)
        self.assertIn(str(engine["pid"]), ready.stdout)
        os.kill(engine["pid"], signal.SIGCONT)
        wait_until(lambda: self.health(caller) == SERVING, 60, "the health service did not see the engine go on")

    @staticmethod
    def let_go(pid):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def test_reading_needs_no_session_and_changing_needs_the_administrators_socket(self):
        client, admin = self.caller("client.sock"), self.caller("admin.sock")
        for call in (client, admin):
            self.assertTrue(call("/tandem.admin.v1.Admin/GetStats")["hex"])
        self.assertFails("UNIMPLEMENTED", client, "/tandem.admin.v1.AdminControl/Drain")
        self.assertFails("NOT_FOUND", admin, "/tandem.admin.v1.AdminControl/Evict")

    def test_clients_calls_need_a_token(self):
        self.assertFails("UNAUTHENTICATED", self.caller("client.sock"), "/tandem.v1.Tandem/Detach")


class AdminDirectory(TandemTest):
    """The administrators' socket lies apart from the directory that containers mount."""

    gpus = 1

    def test_the_clients_directory_has_no_administration(self):
        self.assertEqual([name for name in os.listdir(self.daemon.runtime_dir) if "admin" in name], [])
        self.assertEqual(os.listdir(self.daemon.admin_dir), ["admin.sock"])
        self.assertEqual(os.stat(self.daemon.admin_dir).st_mode & 0o777, 0o700)
        self.assertEqual(os.stat(os.path.join(self.daemon.admin_dir, "admin.sock")).st_mode & 0o777, 0o600)
        # A container that has the clients' directory under another name, and nothing else.
        with tempfile.TemporaryDirectory() as folder:
            mounted = os.path.join(folder, "tandem")
            os.symlink(self.daemon.runtime_dir, mounted)
            inside = [os.path.join(BIN, "tandemctl"), "--runtime-dir", mounted]
            self.assertEqual(subprocess.run([*inside, "stats"], capture_output=True).returncode, 0)
            drain = subprocess.run([*inside, "drain", "--wait", "0"], capture_output=True, text=True)
            self.assertEqual(drain.returncode, 3, drain.stderr)
        self.assertFalse(self.daemon.ctl_json("stats")["draining"])

    @host_only("a start that is refused needs no GPU")
    def test_a_directory_at_or_below_the_clients_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            runtime = os.path.join(folder, "run")
            os.makedirs(runtime)
            os.symlink(runtime, os.path.join(folder, "link"))
            for admin, code in (
                (runtime, 2),
                (os.path.join(runtime, "admin"), 2),
                (os.path.join(folder, "link", "admin"), 1),
            ):
                result = subprocess.run(
                    [
                        os.path.join(BIN, "tandemd"),
                        "--backend",
                        "host",
                        "--emulated-gpus",
                        "1",
                        "--runtime-dir",
                        runtime,
                        "--state-dir",
                        folder,
                        "--admin-dir",
                        admin,
                    ],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn("admin_dir", result.stderr)

    def test_another_directory_and_a_gid(self):
        with tempfile.TemporaryDirectory() as folder:
            admin = os.path.join(folder, "operators")
            daemon = Daemon(1, ("--admin-dir", admin, "--socket-group", str(os.getgid())))
            self.addCleanup(daemon.stop)
            self.assertNotEqual(daemon.ctl("drain", "--wait", "0", check=False).returncode, 0)
            self.assertEqual(daemon.ctl("--admin-dir", admin, "drain", "--wait", "1").returncode, 0)
            self.assertEqual(os.stat(os.path.join(daemon.runtime_dir, "client.sock")).st_gid, os.getgid())
            self.assertNotIn("socket_group", [f["check"] for f in daemon.ctl_json("doctor")["findings"]])


@unittest.skipIf(IN_BUNDLE, "its programs are in no bundle")
class BesideAnotherGrpc(TandemTest):
    gpus = 1

    def test_a_process_with_a_grpc_of_its_own(self):
        for kind in ("shared", "static"):
            with self.subTest(kind=kind):
                result = subprocess.run(
                    [os.path.join(BIN, f"tandem-test-beside-{kind}-grpc"), self.daemon.runtime_dir],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
