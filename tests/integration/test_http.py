"""tandemd's TCP addresses, the page's and the metrics': connections that are idle or slow hold nobody up, and beyond the loopback
nobody is served without TLS and a password."""

import base64
import http.client
import os
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from harness import Daemon, TandemTest, host_only, wait_until

IDLE = 256
# The longest that an answer may take beside them: less than the 3 s after which an idle one is closed.
LIMIT_S = 2.5


class IdleConnections(TandemTest):
    extra = ("--web-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")

    def setUp(self):
        super().setUp()
        self.sockets = []
        self.addCleanup(lambda: [each.close() for each in self.sockets])

    def connect(self, port, count, sent=b""):
        for _ in range(count):
            each = socket.create_connection(("127.0.0.1", port), timeout=60)
            self.sockets.append(each)
            if sent:
                each.sendall(sent)

    def await_answers(self):
        """Each connection has its answer, or was refused: a peer whose whole share waits for answers gets no further connection."""
        with selectors.DefaultSelector() as selector:
            for each in self.sockets:
                selector.register(each, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(20)
                self.assertTrue(ready, "no answer comes")
                for key, _ in ready:
                    selector.unregister(key.fileobj)

    def check_answers(self):
        """Page, state, metrics and health come in time. Three times: a new state is made after half a second."""
        paths = {
            self.daemon.page_port(): ("/", "/state.json"),
            self.daemon.metrics_port(): ("/metrics", "/livez", "/readyz"),
        }
        for _ in range(3):
            for port, wanted in paths.items():
                for path in wanted:
                    begun = time.monotonic()
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    self.assertEqual((answer.status, bool(answer.read())), (200, True), path)
                    connection.close()
                    self.assertLess(time.monotonic() - begun, LIMIT_S, path)

    def test_idle_ones_hold_nobody_up(self):
        for port in (self.daemon.page_port(), self.daemon.metrics_port()):
            self.connect(port, IDLE)
        self.check_answers()

    def test_slow_ones_hold_nobody_up(self):
        ended = threading.Event()

        def trickle():
            while not ended.wait(1):
                for each in self.sockets:
                    try:
                        each.send(b"a")
                    except OSError:
                        pass  # closed for being slow

        for port in (self.daemon.page_port(), self.daemon.metrics_port()):
            self.connect(port, IDLE, b"GET /")
        slow = threading.Thread(target=trickle)
        slow.start()
        try:
            self.check_answers()
        finally:
            ended.set()
            slow.join()

    def test_readers_that_read_nothing_hold_nobody_up(self):
        for port, path in ((self.daemon.page_port(), b"/"), (self.daemon.metrics_port(), b"/metrics")):
            self.connect(port, IDLE, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.await_answers()
        self.check_answers()


@host_only("starts many daemons")
@unittest.skipUnless(shutil.which("openssl"), "needs openssl")
class Protected(unittest.TestCase):
    """`0.0.0.0` is an address that others reach."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.make_certificate()
        self.write("password", "correct horse\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o600):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)

    def make_certificate(self):
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=node"
        command += " -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
        subprocess.run(
            [*command.split(), "-keyout", self.path("key.pem"), "-out", self.path("cert.pem")],
            check=True,
            capture_output=True,
        )
        os.chmod(self.path("key.pem"), 0o600)

    def tls(self):
        return ("--http-certificate", self.path("cert.pem"), "--http-key", self.path("key.pem"))

    def password(self):
        return ("--http-user", "operator", "--http-password-file", self.path("password"))

    def start(self, *flags, address="0.0.0.0:0"):
        daemon = Daemon(1, ("--web-listen", address, "--metrics-listen", address, *flags))
        self.addCleanup(daemon.stop)
        return daemon

    def get(self, port, path="/livez", password="correct horse", plain=False, user="operator"):
        """The status of the answer; its certificate is checked."""
        if plain:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        else:
            context = ssl.create_default_context(cafile=self.path("cert.pem"))
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        headers = {}
        if password is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == 401:
                self.assertEqual(answer.headers["WWW-Authenticate"].split()[0], "Basic")
                self.assertNotIn(b"tandem_", body)
            return answer.status
        finally:
            connection.close()

    def findings(self, daemon):
        return {each["check"]: each["message"] for each in daemon.ctl_json("doctor")["findings"]}

    def test_an_address_that_others_reach_needs_both(self):
        for flags, missing in (
            ((), "http.certificate and http.key, http.user and http.password_file must be set"),
            (self.tls(), "so http.user and http.password_file must be set"),
            (self.password(), "so http.certificate and http.key must be set"),
        ):
            daemon = self.start(*flags)
            found = self.findings(daemon)
            for check, what in (("web", "the page"), ("metrics", "metrics")):
                self.assertIn(f"{what} cannot be served: others reach 0.0.0.0:0", found[check])
                self.assertIn(missing, found[check])
            self.assertEqual(daemon.ctl("health", "--ready").returncode, 0)
            self.assertNotIn("served at 0.0.0.0", daemon.tail(1000))

    def test_plain_where_it_is_allowed(self):
        daemon = self.start("--http-allow-plain")
        self.assertEqual(self.get(daemon.page_port(), "/", None, plain=True), 200)
        self.assertEqual(self.get(daemon.metrics_port(), "/metrics", None, plain=True), 200)

    def check_protected(self, daemon):
        for port, paths in (
            (daemon.page_port(), ("/", "/state.json")),
            (daemon.metrics_port(), ("/metrics", "/livez", "/readyz")),
        ):
            for path in paths:
                self.assertEqual(self.get(port, path), 200, path)
                self.assertEqual(self.get(port, path, password=None), 401, path)
                self.assertEqual(self.get(port, path, password="wrong horse"), 401, path)
                self.assertEqual(self.get(port, path, user="other"), 401, path)
                with self.assertRaises((http.client.HTTPException, ConnectionError)):
                    self.get(port, path, plain=True)
            self.assertEqual(self.get(port, "/nothing", password=None), 401, "what is there is nobody's business")

    def test_tls_and_a_password(self):
        daemon = self.start(*self.tls(), *self.password())
        self.check_protected(daemon)
        self.assertNotIn("horse", daemon.tail(10000))
        self.assertNotIn("web", self.findings(daemon))
        for version, works in (("-tls1_1", False), ("-tls1_2", True)):
            command = ["openssl", "s_client", "-connect", f"127.0.0.1:{daemon.metrics_port()}", version]
            command += ["-cipher", "DEFAULT@SECLEVEL=0"]
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            self.assertEqual(ended.returncode == 0, works, version)

    def test_the_loopback_may_have_them_too(self):
        self.check_protected(self.start(*self.tls(), *self.password(), address="127.0.0.1:0"))
        alone = self.start(*self.password(), address="127.0.0.1:0")
        self.assertEqual(self.get(alone.page_port(), "/", plain=True), 200)
        self.assertEqual(self.get(alone.page_port(), "/", password=None, plain=True), 401)

    def test_idle_and_silent_handshakes_hold_nobody_up(self):
        daemon = self.start(*self.tls(), *self.password())
        sockets = [socket.create_connection(("127.0.0.1", daemon.page_port()), timeout=60) for _ in range(IDLE)]
        for each in sockets[::2]:
            try:
                each.send(bytes([22, 3, 1, 2, 0, 1]))  # the beginning of a handshake
            except OSError:
                pass  # closed for newer ones
        begun = time.monotonic()
        self.assertEqual(self.get(daemon.page_port(), "/state.json"), 200)
        self.assertLess(time.monotonic() - begun, LIMIT_S)
        for each in sockets:
            each.close()

    def test_a_reload_takes_new_files(self):
        daemon = self.start(*self.tls(), *self.password())
        port = daemon.page_port()
        with open(self.path("cert.pem")) as file:
            before = file.read()
        self.make_certificate()
        self.write("password", "battery staple")
        daemon.process.send_signal(signal.SIGHUP)

        def served():
            return ssl.get_server_certificate(("127.0.0.1", port), timeout=60)

        wait_until(lambda: served().split() != before.split(), 60, "the old certificate is still served")
        self.assertEqual(self.get(port, password="battery staple"), 404)
        self.assertEqual(self.get(port), 401)
        self.assertEqual(daemon.page_port(), port)
        # Files that cannot be used change nothing, and are named.
        self.write("password", "anybody's", mode=0o644)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "may be read or written by others" in self.findings(daemon).get("http", ""), 60)
        self.assertEqual(self.get(port, password="battery staple"), 404)
        self.write("password", "mended")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "http" not in self.findings(daemon), 60)
        self.assertEqual(self.get(port, password="mended"), 404)

    def test_a_key_of_another_certificate_is_refused(self):
        other = self.path("other.pem")
        shutil.copy(self.path("key.pem"), other)
        self.make_certificate()
        daemon = self.start("--http-certificate", self.path("cert.pem"), "--http-key", other, *self.password())
        found = self.findings(daemon)
        self.assertIn(f"{other} is not the key of", found["http"])
        self.assertIn("cannot be served", found["web"])


if __name__ == "__main__":
    unittest.main()
