"""Rules and board of deploy/monitoring: promtool accepts them, each alert fires where it should, and nothing in them is unknown to a running
tandemd or to docs/alerts.md."""

import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import unittest

from daemon import Daemon

try:
    import yaml
except ImportError:
    raise unittest.SkipTest("needs PyYAML (Debian's package python3-yaml)") from None

try:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import dashboard
except ImportError:
    dashboard = None

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", ROOT / "build/check/bin"))
RULES = ROOT / "deploy/monitoring/tandem.rules.yml"
BOARD = ROOT / "deploy/monitoring/grafana-tandem.json"
PROMTOOL = shutil.which("promtool", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
# Metrics of Prometheus itself.
OWN_NAMES = {"up"}


def promtool(*arguments, **options):
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)
    return done.returncode, done.stdout + done.stderr


def lost(given, understood, path):
    """Parts of a JSON value that are not in another one, or are other values there."""
    if isinstance(given, dict) and isinstance(understood, dict):
        for key, value in given.items():
            if key in understood:
                yield from lost(value, understood[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(given, list) and isinstance(understood, list) and len(given) == len(understood):
        for number, (one, other) in enumerate(zip(given, understood)):
            yield from lost(one, other, f"{path}/{number}")
    elif given != understood:
        yield path


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def board_expressions():
    """The board's queries, with values for Grafana's own variables."""
    board = json.loads(BOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [
        re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"]).group(1)
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    return [
        query.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$gpu", ".*") for query in queries
    ]


def selectors(expression):
    """The series that an expression reads: name → labels it selects by."""
    found = {}
    for name, labels in re.findall(
        r"(?<![\w:])((?:\w+:)*(?:tandem_|process_|up\b)\w*(?::\w+)*)(?:\{([^}]*)\})?", expression
    ):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels))
    return found


def grouped(expression):
    return {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}


class Files(unittest.TestCase):
    @unittest.skipUnless(PROMTOOL, "needs promtool (Debian's package prometheus)")
    def test_rules(self):
        code, text = promtool("check", "rules", str(RULES))
        self.assertEqual(code, 0, text)
        code, text = promtool("test", "rules", str(ROOT / "tests/deploy/monitoring/rules_test.yml"))
        self.assertEqual(code, 0, text)

    @unittest.skipUnless(PROMTOOL, "needs promtool (Debian's package prometheus)")
    def test_the_scrape_of_protected_nodes(self):
        # Prometheus looks for the files that it is to read.
        config = (ROOT / "deploy/monitoring/prometheus.yml").read_text()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("tandem-ca.pem", "tandem-password", "tandem.rules.yml"):
                (pathlib.Path(folder) / name).write_text("groups: []\n")
            (pathlib.Path(folder) / "prometheus.yml").write_text(config.replace("/etc/prometheus", folder))
            code, text = promtool("check", "config", str(pathlib.Path(folder) / "prometheus.yml"))
        self.assertEqual(code, 0, text)
        (scrape,) = yaml.safe_load(config)["scrape_configs"]
        self.assertEqual((scrape["job_name"], scrape["scheme"]), ("tandem", "https"))

    def test_every_alert_is_tested_in_both_directions(self):
        tests = yaml.safe_load((ROOT / "tests/deploy/monitoring/rules_test.yml").read_text())["tests"]
        fires, silent = (
            {
                case["alertname"]
                for test in tests
                for case in test.get("alert_rule_test", [])
                if bool(case["exp_alerts"]) == expected
            }
            for expected in (True, False)
        )
        alerts = {rule["alert"] for rule in rules() if "alert" in rule}
        self.assertEqual((fires, silent), (alerts, alerts))

    def test_every_recording_rule_is_tested_and_described(self):
        tests = (ROOT / "tests/deploy/monitoring/rules_test.yml").read_text()
        page = (ROOT / "docs/alerts.md").read_text()
        records = [rule["record"] for rule in rules() if "record" in rule]
        self.assertGreater(len(records), 8)
        for record in records:
            self.assertRegex(tests, rf"expr: .*{re.escape(record)}")
            self.assertIn(f"| `{record}` |", page)

    def test_every_alert_has_a_runbook(self):
        headings = {
            re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", (ROOT / "docs/alerts.md").read_text(), re.M)
        }
        for rule in rules():
            if "alert" in rule:
                page, anchor = rule["annotations"]["runbook_url"].split("#")
                self.assertEqual(page, "file:///usr/share/doc/tandem/alerts.md")
                self.assertIn(anchor, headings)
                self.assertEqual(anchor, rule["alert"].lower())
                self.assertIn(rule["labels"]["severity"], ("critical", "warning", "info"))

    @unittest.skipUnless(PROMTOOL, "needs promtool (Debian's package prometheus)")
    def test_the_boards_queries_are_promql(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(
                json.dumps(
                    {
                        "groups": [
                            {
                                "name": "board",
                                "rules": [
                                    {"record": f"board:panel:{number}", "expr": query}
                                    for number, query in enumerate(board_expressions())
                                ],
                            }
                        ]
                    }
                )
            )
            file.flush()
            code, text = promtool("check", "rules", file.name)
        self.assertEqual(code, 0, text)

    def test_the_boards_layout(self):
        panels = json.loads(BOARD.read_text())["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            self.assertFalse(cells & taken, f"{panel['title']} lies over another panel")
            taken |= cells
            if panel["type"] != "row":
                self.assertTrue(panel["description"] and panel["targets"], panel["title"])
                self.assertTrue(all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"]))

    @unittest.skipUnless(dashboard, "needs grafana-foundation-sdk (tests/deploy/setup_tools)")
    def test_the_board_has_grafanas_types(self):
        given = json.loads(BOARD.read_text())
        understood = json.loads(json.dumps(dashboard.Dashboard.from_json(given), cls=JSONEncoder))
        for variable in given["templating"]["list"]:
            variable.pop("definition", None)  # for the editor only, and not in the types
        self.assertEqual(list(lost(given, understood, "")), [])
        given["panels"][0]["gridpos"] = {}
        self.assertEqual(list(lost(given, understood, "")), ["/panels/0/gridpos"])


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(BIN / "tandemd")
        cls.addClassCleanup(cls.daemon.stop)
        cls.run_job()  # before the first scrape: its launches are counted all the same
        cls.text = cls.daemon.get("/metrics")
        cls.series = {}
        for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", cls.text, re.M):
            cls.series.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))

    @classmethod
    def run_job(cls):
        """A job of two ranks, from its start to its end."""
        environment = {
            **os.environ,
            "TANDEM_RUNTIME_DIR": str(cls.daemon.runtime_dir),
            "TANDEM_JOB_KEY": secrets.token_hex(16),
        }
        ranks = [
            subprocess.Popen([BIN / "tandem-example-all_reduce", str(rank), "2"], env=environment) for rank in range(2)
        ]
        codes = [rank.wait(timeout=120) for rank in ranks]
        assert codes == [0, 0], codes

    def sums(self, name):
        """By GPU: the values of a metric's all-reduces."""
        text = self.daemon.get("/metrics")
        sums = {}
        for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.M):
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if named["op"] == "all_reduce":
                sums[named["gpu"]] = sums.get(named["gpu"], 0) + float(value)
        return sums

    def test_a_job_between_two_scrapes_is_counted(self):
        names = ("tandem_launches_total", "tandem_launch_duration_seconds_count", "tandem_launch_wait_seconds_count")
        before = {name: self.sums(name) for name in names}
        self.run_job()
        self.assertIn("\ntandem_plans 0\n", self.daemon.get("/metrics"))
        added = {}
        for name in names:
            after = self.sums(name)
            self.assertEqual(len(after), 2, after)
            added[name] = [after[gpu] - before[name][gpu] for gpu in sorted(after)]
        self.assertGreater(min(added[names[0]]), 0, added)
        self.assertEqual(added[names[1]], added[names[0]])
        self.assertEqual(added[names[2]], added[names[0]])

    def test_failures_of_every_code_begin_at_zero(self):
        codes = {series["code"] for series in self.series["tandem_launch_failures_total"]}
        self.assertEqual(len(codes), 16)
        self.assertLessEqual({"ABORTED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}, codes)

    def test_plans_have_no_series_of_their_own(self):
        self.assertFalse([name for name in self.series if name.startswith("tandem_plan_")])

    def test_every_name_and_label_is_exported(self):
        recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
        expressions = [rule["expr"] for rule in rules()] + board_expressions()
        self.assertGreater(len(expressions), 30)
        for expression in expressions:
            read = selectors(expression)
            self.assertTrue(read, expression)
            known = {"instance", "job", "le"}
            for name, labels in read.items():
                if name in recorded:
                    known |= grouped(recorded[name])
                    continue
                if name in OWN_NAMES:
                    continue
                self.assertIn(name, self.series, expression)
                exported = {label for series in self.series[name] for label in series}
                self.assertLessEqual(labels, exported | {"instance", "job"}, f"{name} in {expression}")
                known |= exported
            self.assertLessEqual(grouped(expression), known, expression)

    def test_every_selected_state_is_exported(self):
        states = {series["state"] for series in self.series["tandem_engine_state"]}
        texts = RULES.read_text() + BOARD.read_text().replace('\\"', '"')
        selected = {state for value in re.findall(r'state(?:=~|!=|=)"([^"]+)"', texts) for state in value.split("|")}
        self.assertGreaterEqual(len(selected), 3)
        self.assertLessEqual(selected, states)

    @unittest.skipUnless(PROMTOOL, "needs promtool (Debian's package prometheus)")
    def test_the_scrape_is_clean(self):
        code, text = promtool("check", "metrics", input=self.text)
        self.assertEqual((code, text), (0, ""))


if __name__ == "__main__":
    unittest.main()
