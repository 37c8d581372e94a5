"""The node's page: what it shows of jobs, that it only reads, and that names of clients stay text, also in a browser where
there is one (TANDEM_TEST_BROWSER, else chromium, chrome or Playwright's headless shell). TANDEM_TEST_SCREENSHOT: a file for a picture.
"""

import contextlib
import glob
import html
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from harness import BACKEND, BIN, Daemon, TandemTest, everybody, host_only, wait_until

try:
    import jsonschema
except ImportError:
    jsonschema = None

MOST_RANKS = 4

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SCHEMA = os.path.join(ROOT, "deploy/monitoring/page-state.schema.json")
BINDINGS = [["ar.in", 0], ["ar.out", 0]]
MARKUP = "<img src=x onerror=document.title='pwned'><script>document.title='pwned'</script>"


TELEPHONE = 400  # pixels
# Runs in the page, in a frame. Gives the outer page the elements that are too wide, and the size of texts in pictures.
MEASURE = """
setInterval(() => {
  if (document.documentElement.dataset.drawn !== "yes") return;
  const elements = [...document.body.querySelectorAll("*")];
  const wide = elements.filter((each) => each.getBoundingClientRect().right > innerWidth + 1);
  const names = wide.map((each) => `${each.tagName} of ${each.closest("[id]")?.id}`);
  if (document.documentElement.scrollWidth > innerWidth) names.push("the page");
  const sizes = ["timeline", "pools", "topology"].flatMap((id) => [...document.querySelectorAll(`#${id} svg`)]).map((picture) =>
    12 * picture.getBoundingClientRect().width / picture.viewBox.baseVal.width);
  parent.document.documentElement.dataset.measured = JSON.stringify([names, Math.min(...sizes), innerWidth]);
}, 100);
"""


@contextlib.contextmanager
def serve(pages):
    """Serves texts by their path on a port of the loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            kind, text = pages.get(self.path, ("text/plain", ""))
            body = text.encode()
            self.send_response(200 if text else 404)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def find_browser():
    """A browser that runs without a screen, or None."""
    shells = glob.glob(os.path.expanduser("~/.cache/ms-playwright/chromium_headless_shell-*/*/*headless[-_]shell"))
    names = [
        os.environ.get("TANDEM_TEST_BROWSER", ""),
        "chromium",
        "chromium-browser",
        "chromium-headless-shell",
        "google-chrome",
    ]
    return next((found for found in map(shutil.which, [*names, *shells]) if found), None)


BROWSER = find_browser()


class WebTest(TandemTest):
    extra = ("--web-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")

    def ask(self, path, method="GET", port=None, **headers):
        """Status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.daemon.page_port(), timeout=60)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def state(self):
        status, headers, body = self.ask("/state.json")
        self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
        state = json.loads(body)
        if jsonschema is not None:
            with open(SCHEMA) as file:
                jsonschema.validate(state, json.load(file))
        return state


class Page(WebTest):
    gpus = 2

    def test_it_shows_a_job(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        for _ in range(3):
            self.check_all_reduce(clients)
        state = self.state()
        self.assertEqual([session["pid"] for session in state["sessions"]], [client.pid for client in clients])
        (group,) = state["groups"]
        self.assertEqual((group["name"], group["state"], group["world_size"]), ("tp", "ready", 2))
        self.assertEqual([member["pid"] for member in group["members"]], [client.pid for client in clients])
        self.assertEqual([engine["state"] for engine in state["engines"]], ["ready", "ready"])
        self.assertEqual(sum(engine["launches"] for engine in state["engines"]), 6)
        self.assertEqual(len(state["timeline"]), 6)
        for launch in state["timeline"]:
            self.assertEqual((launch["group_name"], launch["code"]), ("tp", "OK"))
            self.assertLessEqual(launch["arrive_us"], launch["start_us"])
            self.assertLess(launch["start_us"], launch["end_us"])
            self.assertGreater(launch["end_us"], -60e6)
        self.assertGreater(sum(pool["used_bytes"] for pool in state["pools"]), 0)
        self.assertTrue(state["health"]["ready"])
        self.daemon.ctl("cordon")
        time.sleep(0.6)  # a state is handed out for half a second
        state = self.state()
        self.assertEqual((state["admission"], state["health"]["ready"]), ("cordoned", False))

    @unittest.skipUnless(jsonschema, "needs jsonschema (Debian's package python3-jsonschema)")
    def test_the_schema_is_one_and_leaves_nothing_open(self):
        with open(SCHEMA) as file:
            schema = json.load(file)
        jsonschema.Draft202012Validator.check_schema(schema)
        state = self.state()
        state["sessions"] = [{"id": 1}]
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate(state, schema)

    def test_it_names_a_late_rank(self):
        clients = self.group(2)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        clients[1].call("launch", plan="ar", bindings=BINDINGS)
        late = []

        def named():
            late[:] = self.state()["late_ranks"]
            return bool(late)

        wait_until(named, 60, "no late rank is named")
        (entry,) = late
        self.assertEqual((entry["group_name"], entry["rank"], entry["pid"]), ("tp", 0, clients[0].pid))
        queue = [entry for entry in self.state()["queue"] if entry["missing_ranks"]]
        self.assertEqual({tuple(entry["missing_ranks"]) for entry in queue}, {(0,)})
        clients[0].call("launch", plan="ar", bindings=BINDINGS)
        everybody(clients, "sync")

    @host_only("stops an engine that other tests would wait for")
    def test_a_silent_engine_does_not_silence_the_page(self):
        pid = self.daemon.engine_pids()[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            self.assertIn("SIGSTOP", self.state()["engines"][1]["why"])
        finally:
            os.kill(pid, signal.SIGCONT)

    def test_no_secret_is_shown(self):
        key = "a-key-that-nobody-may-see-" + self.job_key
        clients = self.group(2, job_key=key)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        body = self.ask("/state.json")[2]
        self.assertNotIn(key, body)
        self.assertNotIn("token", body)

    def test_it_only_reads(self):
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            self.assertEqual(self.ask("/state.json", method)[0], 405, method)
        for path in ("/metrics", "/livez", "/state", "/page.html", "/state.json/more"):
            self.assertEqual(self.ask(path)[0], 404, path)
        metrics = self.daemon.metrics_port()
        self.assertEqual(
            [self.ask(path, port=metrics)[0] for path in ("/", "/state.json", "/metrics")], [404, 404, 200]
        )

    def test_another_name_is_refused(self):
        for path in ("/", "/state.json"):
            self.assertEqual(self.ask(path, Host="stranger.example")[0], 403)
            self.assertEqual(self.ask(path, Host="localhost:1")[0], 200)

    def test_headers_keep_markup_from_running(self):
        nonces = set()
        for _ in range(2):
            status, headers, body = self.ask("/")
            self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            policy = headers["Content-Security-Policy"]
            (nonce,) = set(re.findall(r"'nonce-([0-9a-f]{32})'", policy))
            self.assertEqual(body.count(f'nonce="{nonce}"'), 2)
            self.assertNotIn("@NONCE@", body)
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertNotRegex(body, r"https?://(?!www\.w3\.org/2000/svg)")
            nonces.add(nonce)
        self.assertEqual(len(nonces), 2)
        headers = self.ask("/state.json")[1]
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertEqual(headers["Cache-Control"], "no-store")
        self.assertIsNone(headers["Access-Control-Allow-Origin"])

    def test_nothing_has_the_width_of_a_desk(self):
        """What holds without a browser: the page takes the screen's width, tables lie in boxes that scroll, and no style asks for more
        than a telephone has. Browser measures the page."""
        body = self.ask("/")[2]
        self.assertIn('<meta name="viewport" content="width=device-width, initial-scale=1">', body)
        style, script = re.search(r"<style[^>]*>(.*?)</style>.*<script[^>]*>(.*?)</script>", body, re.S).groups()
        (narrow,) = re.findall(r"@media \(max-width: 40rem\) \{(.*?)\n\}", style, re.S)
        self.assertRegex(narrow, r"table, tbody, tr, td \{ display: block; \}")
        for container in set(re.findall(r'show\("(\w+)", table\(', script)):
            self.assertRegex(body, rf'<div id="{container}" class="scroll">')
        self.assertRegex(style, r"\.scroll \{[^}]*overflow: auto")
        for number, unit in re.findall(r"[^-]width: (\d+)(px|rem)", re.sub(r"@media \([^)]*\)", "", style)):
            self.assertLessEqual(int(number) * {"px": 1, "rem": 16}[unit], 400)

    def test_names_are_text(self):
        clients = [self.daemon.client(MARKUP) for _ in range(2)]
        for client in clients:
            client.connect()
        self.join(clients, name=MARKUP, group="tp")
        state = self.state()
        self.assertEqual({session["name"] for session in state["sessions"]}, {MARKUP})
        self.assertEqual(state["groups"][0]["name"], MARKUP)


class Listening(unittest.TestCase):
    def test_there_is_no_page_unasked(self):
        daemon = Daemon(1)
        self.addCleanup(daemon.stop)
        self.assertNotIn("page is served", daemon.tail(1000))
        with open("/proc/net/tcp") as file:
            listening = {line.split()[9] for line in file.readlines()[1:] if line.split()[3] == "0A"}
        own = set()
        for fd in glob.glob(f"/proc/{daemon.process.pid}/fd/*"):
            try:
                own |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(fd)))
            except FileNotFoundError:
                pass
        self.assertFalse(listening & own)

    def test_a_taken_address_costs_the_page_only(self):
        first = Daemon(1, ("--web-listen", "127.0.0.1:0"))
        self.addCleanup(first.stop)
        second = Daemon(1, ("--web-listen", f"127.0.0.1:{first.page_port()}"))
        self.addCleanup(second.stop)
        (finding,) = [each for each in second.ctl_json("doctor")["findings"] if each["check"] == "web"]
        self.assertEqual(finding["severity"], "WARNING")
        self.assertIn("the page cannot be served", finding["message"])

    def test_an_address_that_others_reach_is_warned_of(self):
        daemon = Daemon(1, ("--web-listen", "0.0.0.0:0", "--http-allow-plain"))
        self.addCleanup(daemon.stop)
        wait_until(lambda: "shows all users' sessions to everybody" in daemon.tail(200), 60)


@unittest.skipUnless(BROWSER, "needs a headless Chromium")
class Browser(WebTest):
    gpus = 4

    def browse(self, *arguments, port=None):
        with tempfile.TemporaryDirectory() as profile:
            return subprocess.run(
                [
                    BROWSER,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--hide-scrollbars",
                    f"--user-data-dir={profile}",
                    "--virtual-time-budget=6000",
                    *arguments,
                    f"http://127.0.0.1:{port or self.daemon.page_port()}/",
                ],
                capture_output=True,
                text=True,
                timeout=120,
            )

    def test_the_page_is_drawn_and_markup_is_not(self):
        training = subprocess.Popen(
            [
                os.path.join(BIN, "tandem-train-digits"),
                "--runtime-dir",
                self.daemon.runtime_dir,
                "--backend",
                BACKEND,
                "--world",
                "4",
                "--epochs",
                "100",
            ],
            stdout=subprocess.DEVNULL,
        )
        self.addCleanup(training.wait)
        self.addCleanup(training.kill)
        wait_until(lambda: len(self.state()["timeline"]) >= 32, 60, "the job launches nothing")
        client = self.daemon.client(MARKUP)
        client.connect()
        self.join([client], name=MARKUP, group="x")
        page = self.browse("--dump-dom").stdout
        self.assertIn('data-drawn="yes"', page)
        self.assertRegex(page, r"<title>Tandem on [^<]")
        self.assertNotIn("<img", page)
        self.assertIn("&lt;img src=x onerror=", page)
        self.assertEqual(len(re.findall(r'class="gpu ready"', page)), 4)
        self.assertGreater(len(re.findall(r'class="run"', page)), 16)
        # On a telephone pictures are no wider than the screen, so text keeps its size, and each value has its name beside it.
        page = self.browse("--dump-dom", "--window-size=400,900").stdout
        for part in ("timeline", "pools"):
            width = re.search(rf'id="{part}"><svg viewBox="0 0 (\d+) ', page)
            self.assertTrue(width, page)
            self.assertLessEqual(int(width.group(1)), 500)
        self.assertIn('data-name="Command"', page)
        picture = os.environ.get("TANDEM_TEST_SCREENSHOT")
        if picture:
            client.close()
            self.browse(f"--screenshot={picture}", "--window-size=1280,1010")
            self.assertTrue(os.path.exists(picture))

    def test_nothing_is_wider_than_a_telephone(self):
        """In a frame of 400 pixels no element passes the right edge, and texts of pictures keep their size."""
        client = self.daemon.client("n" * 128)
        client.connect()
        self.join([client], name="g" * 128, group="x")
        self.all_reduce_plan([client], group="x")
        for _ in range(20):
            client.call("launch", plan="ar", bindings=BINDINGS)
        client.call("wait", plan="ar")
        wait_until(lambda: len(self.state()["timeline"]) >= 8, 60, "the job launches nothing")
        page, state = self.ask("/")[2], self.ask("/state.json")[2]
        self.assertIn("</body>", page)
        pages = {
            "/": ("text/html", f"<iframe src=/page width={TELEPHONE} height=4000 style='border: 0'></iframe>"),
            "/page": ("text/html", page.replace("</body>", f"<script>{MEASURE}</script></body>")),
            "/state.json": ("application/json", state),
        }
        with serve(pages) as port:
            drawn = self.browse("--dump-dom", "--window-size=800,4000", port=port).stdout
        measured = re.search(r'data-measured="([^"]*)"', drawn)
        self.assertTrue(measured, drawn)
        wide, smallest, width = json.loads(html.unescape(measured.group(1)))
        self.assertEqual(width, TELEPHONE)
        self.assertEqual(wide, [], "wider than the screen")
        self.assertGreaterEqual(smallest, 10, "pixels of the smallest text of a picture")


if __name__ == "__main__":
    unittest.main()
