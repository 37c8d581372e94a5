"""tandemctl against a live daemon: every subcommand for people and for programs; drain, evict, events, metrics."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from harness import BIN, CUDA, Daemon, TandemTest, everybody, host_only, needs_gpus, wait_until

MOST_RANKS = 3

AR = {
    "op": "all_reduce",
    "operands": [{"role": "input", "dtype": "f32", "shape": [256]}, {"role": "output", "dtype": "f32", "shape": [256]}],
}
BINDINGS = [["ar.in", 0], ["ar.out", 0]]


class CtlTest(TandemTest):
    gpus = 2

    def working(self):
        clients = self.group(2)
        self.plan = self.all_reduce_plan(clients)[0]["plan"]
        for _ in range(3):
            self.check_all_reduce(clients)
        return clients

    def kinds(self, client):
        return [event["kind"] for event in client.call("events")["events"]]

    def await_event(self, client, kind, **fields):
        def seen():
            return any(
                event["kind"] == kind and all(event[k] == v for k, v in fields.items())
                for event in client.call("events")["events"]
            )

        wait_until(seen, 15, f"no event {kind} {fields}")


class Ctl(CtlTest):
    def test_every_listing_for_people(self):
        clients = self.working()
        gpus = [engine["gpu_uuid"] for engine in self.daemon.engines()]
        for arguments, words in (
            (
                ("topo",),
                ("GPU0", self.daemon.ctl_json("topo")["topology_class"], *(() if CUDA else ("NV18", "nvswitch"))),
            ),
            (("doctor",), ("engines are ready",)),
            (("sessions",), ("rank0", "rank1", str(clients[0].pid))),
            (("groups",), ("tp", "ready", "2")),
            (("pools",), gpus[:2]),
            (("plans",), ("all_reduce", self.plan["algorithm"], "ar")),
            (("plans", "--programs"), ("program of rank 0", "program of rank 1", "lane 0")),
            (("queue",), ("nothing in flight",)),
            (("stats",), ("2 sessions", "1 groups", "1 plans", "ready")),
            (("top", "--once"), (gpus[0], "all_reduce")),
        ):
            with self.subTest(arguments=arguments):
                result = self.daemon.ctl(*arguments)
                for word in words:
                    self.assertIn(word, result.stdout)

    def test_every_listing_for_programs(self):
        clients = self.working()
        listing = {
            name: self.daemon.ctl_json(*name.split())
            for name in ("topo", "doctor", "sessions", "groups", "pools", "plans", "queue", "stats", "top --once")
        }
        if not CUDA:
            self.assertEqual(listing["topo"]["topology_class"], "nvswitch")
        self.assertTrue(listing["doctor"]["findings"])
        self.assertEqual({s["pid"] for s in listing["sessions"]["sessions"]}, {client.pid for client in clients})
        group = listing["groups"]["groups"][0]
        self.assertEqual((group["name"], group["state"], group["world_size"]), ("tp", "ready", 2))
        self.assertEqual([member["rank"] for member in group["members"]], [0, 1])
        self.assertEqual(len(listing["pools"]["pools"]), 2)
        self.assertEqual(listing["plans"]["plans"][0]["stats"]["launches"], 3)
        info = listing["plans"]["plans"][0]["info"]
        self.assertEqual((info["op"], info["algorithm"]), ("all_reduce", self.plan["algorithm"]))
        self.assertIn("H200", listing["plans"]["prediction_model"])
        self.assertEqual(
            [gpu["uuid"] for gpu in listing["topo"]["gpus"]], [e["gpu_uuid"] for e in listing["stats"]["engines"]]
        )
        self.assertEqual(len(listing["topo"]["links"]), 2)
        self.assertEqual(listing["top --once"]["engines"][0]["launches_per_second"], 0)
        self.assertEqual(listing["queue"]["entries"], [])
        self.assertEqual(len(listing["top --once"]["engines"]), 2)

    def test_a_plan_explains_itself(self):
        self.working()
        plan = self.daemon.ctl_json("plans")["plans"][0]["info"]
        text = self.daemon.ctl("plans", str(plan["plan_id"])).stdout
        for word in ("why", "one_shot", "not chosen", "two_shot", "predicted", "measured", "workspace"):
            self.assertIn(word, text)

    def test_the_queue_names_who_is_late(self):
        clients = self.working()
        clients[0].call("launch", plan="ar", bindings=BINDINGS)
        wait_until(lambda: "waiting" in self.daemon.ctl("queue").stdout, 60)
        entry = self.daemon.ctl_json("queue")["entries"][0]
        self.assertEqual((entry["state"], entry["late_ranks"], entry["group_name"]), ("waiting", [1], "tp"))
        self.await_event(clients[0], "late")
        clients[1].call("launch", plan="ar", bindings=BINDINGS)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        wait_until(lambda: self.daemon.ctl_json("queue")["entries"] == [], 60)

    def test_the_trace_has_launches_of_all_gpus(self):
        self.working()
        with tempfile.NamedTemporaryFile() as file:
            self.daemon.ctl("trace", "-o", file.name)
            events = json.load(file)["traceEvents"]
        launches = [event for event in events if event.get("cat") == "launch"]
        self.assertEqual({event["pid"] for event in launches}, {0, 1})
        self.assertEqual(len(launches), 6)
        for event in launches:
            self.assertEqual(event["args"]["status"], "OK")
            self.assertGreater(event["dur"], 0)
        last = json.loads(self.daemon.ctl("trace", "--last", "1").stdout)["traceEvents"]
        self.assertEqual(len([event for event in last if event.get("cat") == "launch"]), 2)

    def test_stats_have_what_plans_send_beside_the_measured_links(self):
        self.working()
        plan = self.daemon.ctl_json("plans")["plans"][0]["info"]
        uuids = [engine["gpu_uuid"] for engine in self.daemon.engines()]

        def timed():  # a launch is timed when its events are read, a little after its end
            return all(sent["gb_per_second"] > 0 for sent in self.daemon.ctl_json("stats")["sent"])

        wait_until(timed, 60, "launches without a time")
        stats = self.daemon.ctl_json("stats")
        rates = {(link["from_gpu_uuid"], link["to_gpu_uuid"]): link["gb_per_second"] for link in stats["links"]}
        self.assertEqual(set(rates), {(uuids[0], uuids[1]), (uuids[1], uuids[0])})
        self.assertGreater(min(rates.values()), 0)
        self.assertEqual(
            [(sent["plan_id"], sent["rank"], sent["gpu_uuid"]) for sent in stats["sent"]],
            [(plan["plan_id"], 0, uuids[0]), (plan["plan_id"], 1, uuids[1])],
        )
        for sent, link in zip(stats["sent"], (rates[uuids[0], uuids[1]], rates[uuids[1], uuids[0]])):
            self.assertEqual(sent["bytes"], 3 * plan["bytes_moved"])
            self.assertEqual(sent["link_gb_per_second"], link)
            self.assertAlmostEqual(sent["link_fraction"], sent["gb_per_second"] / link)
        text = self.daemon.ctl("stats").stdout
        for word in ("of the link", "GB/s", " %\n", "links measured", "from GPU1"):
            self.assertIn(word, text)

    def test_top_shows_rates_over_its_interval(self):
        clients = self.working()
        engine = self.daemon.ctl_json("top", "--once", "--interval", "0.2")["engines"][0]
        self.assertEqual((engine["launches_per_second"], engine["launches"]), (0, 3))
        top = subprocess.Popen(
            [
                os.path.join(BIN, "tandemctl"),
                "--runtime-dir",
                self.daemon.runtime_dir,
                "top",
                "--json",
                "--interval",
                "2",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        launched = 0
        while top.poll() is None:
            self.check_all_reduce(clients)
            launched += 1
        shown = json.loads(top.stdout.read())
        top.stdout.close()
        self.assertGreater(shown["seconds"], 1.9)
        rate = shown["engines"][0]["launches_per_second"]
        self.assertGreater(rate, 0)
        self.assertLessEqual(rate * shown["seconds"], launched + 1)
        self.assertGreater(shown["plans"][0]["launches_per_second"], 0)

    @host_only("stops an engine")
    def test_a_frozen_engine_is_reported_at_once(self):
        self.working()
        engine = self.daemon.engines()[1]
        os.kill(engine["pid"], signal.SIGSTOP)
        try:
            begun = time.monotonic()
            doctor = self.daemon.ctl("doctor", check=False)
            queue = self.daemon.ctl("queue")
            took = time.monotonic() - begun
        finally:
            os.kill(engine["pid"], signal.SIGCONT)
        self.assertEqual(doctor.returncode, 1, doctor.stdout)
        for text in (doctor.stdout, queue.stdout):
            self.assertIn(
                f"engine of GPU 1 ({engine['gpu_uuid']}) does not run: its process {engine['pid']} is stopped", text
            )
        self.assertIn(f"kill -CONT {engine['pid']}", doctor.stdout)
        self.assertLess(took, 20)
        wait_until(lambda: self.daemon.ctl("doctor", check=False).returncode == 0, 60, "the engine goes on")
        self.assertNotIn("no queue", self.daemon.ctl("queue").stdout)

    def test_exit_codes(self):
        self.assertEqual(self.daemon.ctl("nonsense", check=False).returncode, 2)
        self.assertEqual(self.daemon.ctl("plans", "77", check=False).returncode, 4)
        self.assertEqual(self.daemon.ctl("evict", "99999", check=False).returncode, 4)
        self.assertEqual(self.daemon.ctl("evict", "--gpu", "", check=False).returncode, 2)
        self.assertEqual(self.daemon.ctl("explain", "all_reduce", "--shape", "1024", "--world", "2").returncode, 0)
        self.assertEqual(self.daemon.ctl("explain", "all_reduce", "--shape", "x", check=False).returncode, 2)
        for shell in ("bash", "zsh", "fish"):
            self.assertIn("tandemctl", self.daemon.ctl("completion", shell).stdout)
        self.daemon.process.kill()
        self.daemon.process.wait()
        gone = self.daemon.ctl("stats", check=False)
        self.assertEqual(gone.returncode, 3)
        self.assertEqual(len(gone.stderr.strip().split("\n")), 1, gone.stderr)

    def test_drain_and_undo(self):
        clients = self.working()
        stranger = self.daemon.client("stranger")
        late = self.daemon.client("late")
        late.connect()
        drained = self.daemon.ctl("drain", "--wait", "0.2", check=False)
        self.assertEqual(drained.returncode, 1, drained.stdout + drained.stderr)
        self.assertIn("1 groups left", drained.stdout)
        self.await_event(clients[0], "draining")
        reply = stranger.call("connect", runtime_dir=self.daemon.runtime_dir, check=False)
        self.assertEqual(reply["code"], "UNAVAILABLE", reply)
        self.assertIn("draining", reply["message"])
        failure = self.assertFails("UNAVAILABLE", late.call, "join", name="new", world=1, rank=0)
        self.assertIn("draining", failure.message)
        self.check_all_reduce(clients)  # the jobs that are there go on, with new plans too
        self.all_reduce_plan(clients, key="new")
        self.check_all_reduce(clients, key="new")
        self.daemon.ctl("drain", "--undo")
        stranger.connect()
        late.call("join", name="new", world=1, rank=0)
        late.call("leave", group="new")
        calls = [client.send("leave") for client in clients]
        for client, call in zip(clients, calls):
            client.reply(call)
        self.assertEqual(self.daemon.ctl("drain", "--wait", "10").returncode, 0)

    def test_evict(self):
        clients = self.working()
        victim = next(s["id"] for s in self.daemon.ctl_json("sessions")["sessions"] if s["pid"] == clients[1].pid)
        clients[0].call("launch", plan="ar", bindings=BINDINGS)
        self.daemon.ctl("evict", str(victim))
        clients[0].call("sync", deadline_ms=50000)
        failure = self.assertFails("UNAVAILABLE", clients[0].call, "wait", plan="ar")
        self.assertIn("rank 1", failure.message)
        self.await_event(clients[0], "group_broken")
        self.assertIsNone(clients[1].process.poll(), "the evicted process lives on")
        reply = clients[1].call("check", check=False)
        self.assertIn(reply["code"], ("UNAVAILABLE", "UNAUTHENTICATED"))
        self.assertEqual(reply["detail"]["reason"], "EVICTED", reply)
        self.assertIn("evicted by an operator", reply["message"])
        clients[1].connect()
        self.join(clients)
        self.all_reduce_plan(clients, key="again")
        self.check_all_reduce(clients, key="again")

    def test_events_of_restarts_and_deaths(self):
        clients = self.working()
        self.daemon.kill_engine(1)
        self.daemon.wait_engines()
        for client in clients:
            self.await_event(client, "engine_restarted")
            self.hear_restart(client)
        self.check_all_reduce(clients)
        clients[1].kill(signal.SIGKILL)
        self.await_event(clients[0], "rank_lost", rank=1)
        self.await_event(clients[0], "group_broken")


class KeptProbe(TandemTest):
    """Tests that change what tandemd keeps of the probe of the links, and start it again."""

    def setUp(self):
        super().setUp()
        self.uuids = [engine["gpu_uuid"] for engine in self.daemon.engines()]
        self.path = os.path.join(self.daemon.runtime_dir, "state", "pair-probe.txt")

    def kept(self):
        with open(self.path) as file:
            return file.read().splitlines()

    def start_again_with(self, lines):
        self.daemon.process.terminate()
        self.daemon.process.wait(60)
        with open(self.path, "w") as file:
            file.write("\n".join(lines) + "\n")
        self.daemon.log.close()
        first, self.daemon = self.daemon, Daemon(self.gpus, self.extra, runtime_dir=self.daemon.runtime_dir)
        self.daemon.own_dir = first.own_dir


@needs_gpus(2)
class KeptLinks(KeptProbe):
    gpus = 2

    def test_links_are_measured_once_a_boot(self):
        lines, figures = [], {}
        for line in self.kept():
            if line.startswith("link "):
                _, start, end, _ = line.split()
                figures[start, end] = 12345.5 + len(figures)
                line = f"link {start} {end} {figures[start, end]}"
            lines.append(line)
        self.assertEqual(len(figures), len(self.uuids) * (len(self.uuids) - 1))
        self.start_again_with(lines)
        shown = {
            (link["from_gpu_uuid"], link["to_gpu_uuid"]): link["gb_per_second"]
            for link in self.daemon.ctl_json("stats")["links"]
        }
        self.assertEqual(shown, figures)
        self.assertEqual(self.kept(), lines)

    def test_links_are_measured_anew_if_one_is_missing(self):
        lines = [line for line in self.kept() if not line.startswith(f"link {self.uuids[1]} ")]
        self.start_again_with([re.sub(r"^(link .*) \S+$", r"\1 12345.5", line) for line in lines])
        links = self.daemon.ctl_json("stats")["links"]
        self.assertEqual(len(links), len(self.uuids) * (len(self.uuids) - 1))
        self.assertNotIn(12345.5, [link["gb_per_second"] for link in links])


@needs_gpus(3)
class FailedLink(KeptProbe):
    """A probe that found a pair of GPUs wrong: its outcome is written by hand into what tandemd keeps of the probe."""

    gpus = 3
    reason = "reading back by copy engine: word 7 of 16384 differs from what was written"

    def setUp(self):
        super().setUp()
        self.a, self.b, self.c = self.uuids[:3]
        lines = self.kept()
        self.links = [tuple(line.split()[1:3]) for line in lines if line.startswith("link ")]
        self.assertEqual(lines[-1], "end")
        # As a version without measured links left it.
        lines = [line for line in lines[:-1] if not line.startswith("link ")]
        self.start_again_with([*lines, f"failed {self.a} {self.b} {self.reason}", "end"])

    def finding(self, check):
        findings = json.loads(self.daemon.ctl("doctor", "--json", check=False).stdout)["findings"]
        return [finding for finding in findings if finding["check"] == check]

    def test_doctor_names_it_and_plans_avoid_it(self):
        failed = self.finding("link_probe")
        self.assertEqual(len(failed), 1, failed)
        self.assertEqual(failed[0]["severity"], "FAILURE")
        for word in (self.a, self.b, self.reason):
            self.assertIn(word, failed[0]["message"])
        self.assertIn("the link is not used", failed[0]["advice"])
        people = self.daemon.ctl("doctor", check=False)
        self.assertIn("FAILURE", people.stdout)
        self.assertIn(self.reason, people.stdout)
        self.assertIn(self.reason, self.daemon.tail(200))
        self.assertTrue(any(self.a in f["message"] and self.b in f["message"] for f in self.finding("p2p")))

        # Ranks across the link use NCCL, in any order; other ranks do not.
        for name, gpus, by_nccl in (
            ("bad", [self.a, self.b], True),
            ("turned", [self.b, self.a], True),
            ("all", [self.a, self.b, self.c], True),
            ("good", [self.b, self.c], False),
        ):
            with self.subTest(group=name):
                clients = self.group(len(gpus), name=name, gpus=gpus)
                plan = self.all_reduce_plan(clients, group=name)[0]["plan"]
                self.assertEqual(plan["algorithm"] == "nccl", by_nccl, plan)
                if by_nccl:
                    replies = self.prepare_all_reduce(
                        clients, key="asked", group=name, check=False, algorithm="one_shot"
                    )
                    self.assertEqual({reply.get("code") for reply in replies}, {"FAILED_PRECONDITION"}, replies)
                self.check_all_reduce(clients)
                self.daemon.close_clients()

    def test_the_other_links_are_measured_anew_and_the_failure_is_kept(self):
        left = [pair for pair in self.links if set(pair) != {self.a, self.b}]
        self.assertEqual(len(left), len(self.links) - 2)
        measured = [(link["from_gpu_uuid"], link["to_gpu_uuid"]) for link in self.daemon.ctl_json("stats")["links"]]
        self.assertEqual(sorted(measured), sorted(left))
        lines = self.kept()
        self.assertIn(f"failed {self.a} {self.b} {self.reason}", lines)
        self.assertEqual(sorted(tuple(line.split()[1:3]) for line in lines if line.startswith("link ")), sorted(left))


class Metrics(CtlTest):
    extra = ("--metrics-listen", "127.0.0.1:0", "--metrics-per-plan")

    def get(self, path):
        """The status and the body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.metrics_port()}{path}", timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def test_health_paths(self):
        self.assertEqual(self.get("/livez"), (200, "live\n"))
        self.assertEqual(self.get("/readyz"), (200, "ready\n"))
        self.daemon.ctl("drain", "--wait", "1")
        self.assertEqual(self.get("/livez")[0], 200)
        code, text = self.get("/readyz")
        self.assertEqual(code, 503)
        self.assertIn("the node drains", text)

    def test_idle_and_slow_connections_hold_nobody_up(self):
        with contextlib.ExitStack() as stack:
            for i in range(64):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", self.daemon.metrics_port())))
                if i % 2:
                    connection.send(b"GET /met")
            begun = time.monotonic()
            self.assertEqual(self.get("/metrics")[0], 200)
            self.assertLess(time.monotonic() - begun, 2.5)  # an idle one is closed after 3 s

    def test_a_taken_port_costs_the_metrics_only(self):
        daemon = Daemon(1, ("--metrics-listen", f"127.0.0.1:{self.daemon.metrics_port()}"))
        self.addCleanup(daemon.stop)
        self.assertIn("serving without metrics", daemon.tail(200))
        (finding,) = [f for f in daemon.ctl_json("doctor")["findings"] if f["check"] == "metrics"]
        self.assertEqual(finding["severity"], "WARNING")
        self.assertIn(str(self.daemon.metrics_port()), finding["message"])

    def test_metrics(self):
        self.working()
        text = self.get("/metrics")[1]
        self.assertRegex(text, r'tandem_build_info\{version="[0-9.]+[^"]*",backend="\w+"\} 1')
        values = {}
        for line in text.splitlines():
            if line.startswith("tandem_"):
                self.assertRegex(line, r"^[a-z_][a-z0-9_]*(\{.*\})? [-+0-9.e]+$")
                name, value = line.rsplit(" ", 1)
                values[name] = value
        sessions = [value for name, value in values.items() if name.split("{")[0] == "tandem_sessions"]
        self.assertEqual([float(value) for value in sessions], [2.0], text[:3000])
        self.assertTrue(any("launches_total" in name for name in values))
        for family, count in (
            ("tandem_link_bytes_per_second", 2),
            ("tandem_launch_wait_seconds_count", 2),
            ("tandem_plan_sent_bytes_per_second", 2),
            ("tandem_plan_link_ratio", 2),
        ):
            self.assertEqual(len([name for name in values if name.split("{")[0] == family]), count, family)


if __name__ == "__main__":
    unittest.main()
