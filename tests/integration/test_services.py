"""Who may call what: health and reading on the clients' socket, changes on the administrators' only."""

import os
import subprocess
import unittest

from harness import BIN, IN_BUNDLE, TandemTest
from test_rogue import Rogue

SERVING = "0801"  # HealthCheckResponse{status: SERVING}


class Services(TandemTest):
    gpus = 1

    def caller(self, socket):
        caller = Rogue(self.daemon)
        caller.call("connect", runtime_dir=self.daemon.runtime_dir, socket=socket)
        return lambda method, **more: caller.call("call", method=method, hex="", token="", **more)

    def test_health_is_served_on_both_sockets(self):
        for socket in ("client.sock", "admin.sock"):
            self.assertEqual(self.caller(socket)("/grpc.health.v1.Health/Check")["hex"], SERVING)

    def test_reading_needs_no_session_and_changing_needs_the_administrators_socket(self):
        client, admin = self.caller("client.sock"), self.caller("admin.sock")
        for call in (client, admin):
            self.assertTrue(call("/tandem.admin.v1.Admin/GetStats")["hex"])
        self.assertFails("UNIMPLEMENTED", client, "/tandem.admin.v1.AdminControl/Drain")
        self.assertFails("NOT_FOUND", admin, "/tandem.admin.v1.AdminControl/Evict")

    def test_clients_calls_need_a_token(self):
        self.assertFails("UNAUTHENTICATED", self.caller("client.sock"), "/tandem.v1.Tandem/Detach")


@unittest.skipIf(IN_BUNDLE, "its programs are in no bundle")
class BesideAnotherGrpc(TandemTest):
    gpus = 1

    def test_a_process_with_a_grpc_of_its_own(self):
        for kind in ("shared", "static"):
            with self.subTest(kind=kind):
                result = subprocess.run([os.path.join(BIN, f"tandem-test-beside-{kind}-grpc"), self.daemon.runtime_dir],
                                        capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
