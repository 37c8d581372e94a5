"""The runner's own logic, with jobs that are small scripts: no GPU, no daemon."""

import contextlib
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import fused_jobs
import jobs
import main
import schedule
import verdict
from job import PARTS, Job

REPOSITORY = os.path.join(HERE, "../../../..")


def python(text):
    return (sys.executable, "-c", text)


class Log:
    """A report that keeps what happened."""

    def __init__(self):
        self.codes, self.times, self.out, self.left, self.gpus, self.visible = {}, {}, {}, {}, {}, {}

    def begun(self, one):
        self.times[one.job.name] = [time.monotonic(), None]
        self.gpus[one.job.name] = list(one.gpus)

    def ended(self, one, code, left_behind):
        self.times[one.job.name][1] = time.monotonic()
        self.codes[one.job.name] = "time" if one.timed_out else code
        self.left[one.job.name] = left_behind
        with open(one.log_path, errors="replace") as log:
            self.visible[one.job.name] = log.read().strip()

    def left_out(self, job, why, later=False):
        self.out[job.name] = (why, later)

    def beside(self, one, other):
        (a, b), (c, d) = self.times[one], self.times[other]
        return a < d and c < b


class ScheduleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_jobs(self, *chosen, gpus=("g0", "g1", "g2", "g3"), budget=None):
        log = Log()
        schedule.Schedule(self.folder, self.folder, gpus, log, budget).run(chosen)
        return log

    def job(self, name, text="pass", expect=1.0, limit=60.0, **named):
        return Job(name, "tests", python(text), expect, limit, **named)

    # Two jobs that each wait until the other is there.
    def meeting(self, name, other):
        return (
            f"import os, time\nopen('{self.folder}/{name}', 'w')\n"
            f"end = time.monotonic() + 30\n"
            f"while not os.path.exists('{self.folder}/{other}'):\n"
            f"    assert time.monotonic() < end\n    time.sleep(0.01)\n"
        )

    def test_a_failing_job_stops_no_other(self):
        log = self.run_jobs(
            self.job("bad", "raise SystemExit(3)"),
            self.job("good"),
            Job("missing", "tests", ("/nonexistent/program",), 1, 1),
            self.job("last"),
        )
        self.assertEqual(log.codes, {"bad": 3, "good": 0, "missing": 127, "last": 0})

    def test_pairs_run_beside_each_other_on_gpus_of_their_own(self):
        show = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n"
        log = self.run_jobs(
            self.job("a", show + self.meeting("a", "b"), gpus=2), self.job("b", show + self.meeting("b", "a"), gpus=2)
        )
        self.assertEqual(log.codes, {"a": 0, "b": 0})
        self.assertEqual([log.visible["a"], log.visible["b"]], ["g0,g1", "g2,g3"])

    def test_gpus_keep_the_machines_order(self):
        show = self.job("first", "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n", gpus=2)
        again = dataclasses.replace(show, name="again")
        log = self.run_jobs(show, again, gpus=("z", "a"))
        self.assertEqual([log.visible["first"], log.visible["again"]], ["z,a", "z,a"])

    def test_who_measures_is_alone(self):
        log = self.run_jobs(
            self.job("a", gpus=1),
            self.job("alone", "import time; time.sleep(0.3)", gpus=1, alone=True),
            self.job("b", gpus=1),
        )
        self.assertFalse(log.beside("a", "alone") or log.beside("alone", "b"))
        self.assertEqual(set(log.codes.values()), {0})

    def test_a_wide_job_is_not_starved_and_short_ones_fill_its_wait(self):
        sleep = "import time; time.sleep(1)"
        log = self.run_jobs(
            self.job("pair", self.meeting("pair", "short"), gpus=2, expect=60),
            self.job("wide", gpus=4),
            self.job("long", sleep, gpus=2, expect=1000),
            self.job("short", self.meeting("short", "pair"), gpus=2),
        )
        self.assertEqual(set(log.codes.values()), {0}, log.visible)
        self.assertLess(log.times["wide"][0], log.times["long"][0])

    def test_what_runs_over_its_limit_ends_and_leaves_nothing(self):
        # It has a child in another session, as a server in the background is, and ignores SIGTERM.
        text = (
            "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
            "print(child.pid, flush=True)\ntime.sleep(600)\n"
        )
        kept, schedule.GRACE_S = schedule.GRACE_S, 0.5
        self.addCleanup(setattr, schedule, "GRACE_S", kept)
        log = self.run_jobs(self.job("stuck", text, limit=10), self.job("next"))
        self.assertEqual(log.codes, {"stuck": "time", "next": 0})
        self.assertEqual(log.left["stuck"], 1)
        with self.assertRaises(ProcessLookupError):
            self.wait_gone(int(log.visible["stuck"]))

    def wait_gone(self, pid):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":  # nobody has reaped it: it has ended
                    raise ProcessLookupError(pid)
            time.sleep(0.05)

    def test_what_cannot_run_is_said(self):
        log = self.run_jobs(
            self.job("wide", gpus=8),
            self.job("tool", needs="/nonexistent/tool"),
            self.job("late", expect=100),
            self.job("now"),
            budget=40,
        )
        self.assertEqual(
            log.out,
            {"wide": ("needs 8 GPUs", False), "tool": ("no /nonexistent/tool", False), "late": ("no time left", True)},
        )
        self.assertEqual(log.codes, {"now": 0})


class VerdictTest(unittest.TestCase):
    def read(self, kind, text, code=1, timed_out=False, summary=None):
        with tempfile.TemporaryDirectory() as folder:
            log, path = os.path.join(folder, "log"), os.path.join(folder, "summary")
            with open(log, "w") as file:
                file.write(text)
            if summary is not None:
                with open(path, "w") as file:
                    json.dump(summary, file)
            found = verdict.read(kind, log, code, timed_out, path)
        self.cut_short = found.cut_short
        return (found.passed, found.failed, found.skipped, found.failures)

    def test_gtest(self):
        lines = (
            "[ RUN      ] A.b\n[       OK ] A.b (1 ms)\n[ RUN      ] A.c\n[  SKIPPED ] A.c (0 ms)\n[ RUN      ] A/B.d/0\n"
            "[  FAILED  ] A/B.d/0, where GetParam() = 3 (12 ms)\n[  FAILED  ] 1 test, listed below:\n"
        )
        self.assertEqual(self.read("gtest", lines), (1, 1, 1, ["A/B.d/0, where GetParam() = 3"]))
        self.assertEqual(
            self.read("gtest", lines + "[ RUN      ] A.e\n", 139)[1:],
            (2, 1, ["A/B.d/0, where GetParam() = 3", "A.e (did not end)"]),
        )

    def test_unittest(self):
        ran = (
            "test_a (m.C.test_a) ... ok\ntest_b (m.C.test_b)\nWhat it does. ... noise\nFAIL\n"
            "test_c (m.C.test_c) ... skipped 'no'\n\n===\nFAIL: test_b (m.C.test_b)\n---\nRan 3 tests in 1.0s\n\n"
            "FAILED (failures=1, skipped=1)\n"
        )
        self.assertEqual(self.read("unittest", ran), (1, 1, 1, ["m.C.test_b"]))
        cut = "test_a (m.C.test_a) ... ok\ntest_b (m.C.test_b) ... --- m.C.test_b\nFAIL\ntest_c (m.C.test_c) ... "
        self.assertEqual(
            self.read("unittest", "test_a (m.C.test_a) ... ok\ntest_c (m.C.test_c) ... ", 124, True),
            (1, 1, 0, ["m.C.test_c (did not end)"]),
        )
        self.assertEqual(
            self.read("unittest", cut.replace("... --- ", "...\n--- "), 124, True)[3],
            ["m.C.test_b", "m.C.test_c (did not end)"],
        )

    def test_conformance(self):
        summary = {
            "run": 10,
            "refused": 2,
            "wrong": 1,
            "failures": [{"world": 2, "case": "all_reduce/sm", "code": "INTERNAL", "first_wrong": "slot 1: [0]"}],
        }
        self.assertEqual(
            self.read("conformance", "", summary=summary), (7, 1, 2, ["W2 all_reduce/sm: INTERNAL, slot 1: [0]"])
        )
        nothing = {"run": 0, "refused": 0, "wrong": 1, "failures": [{"world": 2, "message": "no daemon"}]}
        self.assertEqual(self.read("conformance", "", summary=nothing), (0, 1, 0, ["W2 : no daemon"]))
        self.assertEqual(
            self.read("conformance", "ok 1 - x\nnot ok 2 - y\nBail out! W2: gone\n", 137, True),
            (1, 2, 0, ["y", "W2: gone"]),
        )

    def test_digits(self):
        log = (
            "--- --world 2\n  ok      every rank has the same loss\n  FAILED  accuracy 12.00 % (at least 90 %)\n"
            "1 of 2 checks FAILED.\n--- FAILED: --world 2\n--- --world 1\n  ok      every rank has the same loss\n"
        )
        self.assertEqual(self.read("digits", log), (2, 1, 0, ["accuracy 12.00 % (at least 90 %)"]))
        self.assertEqual(
            self.read("digits", "--- --world 2\n--- FAILED: --world 2\n"), (0, 1, 0, ["exit 1: --- FAILED: --world 2"])
        )

    def test_a_conformance_run_that_its_limit_has_cut_short(self):
        summary = {"drawn": 60, "run": 10, "refused": 2, "wrong": 0, "failures": [], "cut_short": True}
        self.assertEqual(self.read("conformance", "", 0, summary=summary), (8, 0, 2, []))
        self.assertEqual(self.cut_short, "10 of 60 cases")
        self.read("conformance", "", 0, summary={**summary, "cut_short": False})
        self.assertEqual(self.cut_short, "")

    def test_a_bad_end_is_a_failure_whatever_the_log_says(self):
        self.assertEqual(self.read("plain", "x\nno device\n", 2), (0, 1, 0, ["exit 2: no device"]))
        self.assertEqual(self.read("gtest", "[ RUN      ] A.b\n[       OK ] A.b (1 ms)\n", 1)[1], 1)
        self.assertEqual(self.read("plain", "", -9, True), (0, 1, 0, ["ended by its limit"]))
        self.assertEqual(self.read("plain", "", 0), (1, 0, 0, []))


class WithMpsTest(unittest.TestCase):
    """bench/gpu/with_mps, with a stand-in for the control daemon that lists a server once it was told to start one, if it can."""

    CONTROL = """#!/bin/bash
if [ "$1" = -d ]; then exit; fi
read -r command
echo "$command" >> "$KEPT/log"
[ "$command" != "start_server -uid $(id -u)" ] || [ -n "$NO_SERVER" ] || touch "$KEPT/server"
[ "$command" != get_server_list ] || [ ! -e "$KEPT/server" ] || echo 4711
"""

    def under_mps(self, no_server):
        """The result of a command under with_mps, which may take a second in place of ten, and what the stand-in was told."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(HERE, "../../with_mps")) as file:
                script = file.read()
            self.assertEqual(script.count("timeout -k 1 10 "), 1)
            for name, text in (
                ("nvidia-cuda-mps-control", self.CONTROL),
                ("with_mps", script.replace("-k 1 10 ", "-k 1 1 ")),
            ):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
                os.chmod(file.name, 0o755)
            done = subprocess.run(
                [os.path.join(folder, "with_mps"), "bash", "-c", "cat $KEPT/log; exit 3"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "KEPT": folder, "NO_SERVER": no_server},
            )
            with open(os.path.join(folder, "log")) as file:
                self.assertEqual(file.read().splitlines()[-1], "quit -t 5")
            return done.returncode, done.stdout.splitlines(), done.stderr

    def test_the_server_is_up_before_the_command(self):
        code, told, errors = self.under_mps("")
        self.assertEqual((code, told), (3, [f"start_server -uid {os.getuid()}", "get_server_list"]), errors)

    def test_the_command_runs_without_a_server_too(self):
        code, told, errors = self.under_mps("1")
        self.assertEqual(
            (code, told[0], set(told[1:])), (3, f"start_server -uid {os.getuid()}", {"get_server_list"}), errors
        )
        self.assertIn("no MPS server yet", errors)


class PlanTest(unittest.TestCase):
    """That what the jobs name is there, and that the default order fits what it is for."""

    def plan(self, count, backend="cuda", **named):
        return jobs.all_jobs(REPOSITORY, "/results", backend, count, tool="/tool", **named)

    def test_every_program_is_in_a_bundle(self):
        with open(os.path.join(HERE, "../../bundle.sh")) as file:
            bundled = file.read().split("programs=(")[1].split(")")[0].split()
        named = {
            os.path.relpath(word, os.path.join(REPOSITORY, "bin"))
            for job in self.plan(4)
            for word in job.command
            if word.startswith(os.path.join(REPOSITORY, "bin/")) and " " not in word
        }
        self.assertIn("tandem-conformance", named)
        self.assertLessEqual(named, set(bundled))

    def test_every_gpu_test_of_the_tree_is_known(self):
        tests = set()
        for folder in ("tests/gpu", "tests/gpu/fused"):
            with open(os.path.join(REPOSITORY, folder, "CMakeLists.txt")) as file:
                tests |= {line.split("(")[1].split()[0] for line in file if line.startswith("tandem_gpu_test(")}
        self.assertGreaterEqual(tests, set(jobs.GPU_TESTS))

    def test_every_suite_runs_once_wherever_it_can(self):
        suites = {
            name[:-3] for name in os.listdir(os.path.join(REPOSITORY, "tests/integration")) if name.startswith("test_")
        }
        for count, backend in ((4, "cuda"), (2, "cuda"), (4, "host")):
            names = [
                job.name for job in self.plan(count, backend) if job.kind == "unittest" and job.part == "integration"
            ]
            self.assertEqual(sorted(names), sorted(suites))
        names = [job.name for job in self.plan(4)]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual({job.part for job in self.plan(4)} | {"tests"}, set(PARTS))
        self.assertLessEqual(set(jobs.FIRST_SUITES) | set(jobs.SUITES) | set(jobs.UNDER_MPS), suites)

    def test_the_old_name_of_a_part_stays(self):
        self.assertEqual(main.parse(["native", "peers"]).parts, ["fused", "peers"])

    def test_the_training_runs_on_two_and_on_four_gpus(self):
        def digits(count, backend="cuda"):
            return [
                (job.name, job.gpus, job.mps, job.environment["TANDEM_TEST_BACKEND"])
                for job in self.plan(count, backend)
                if job.command[-1] == "run_digits.py" and job.part == "integration"
            ]

        two, four = ("digits_w2", 2, True, "cuda"), ("digits_w4", 4, True, "cuda")
        self.assertEqual([digits(1), digits(2), digits(4), digits(8)], [[], [two], [two, four], [two, four]])
        self.assertEqual(digits(4, "host"), [("digits_w4", 4, False, "host")])

    def test_more_ranks_than_gpus_share_them(self):
        def shared(count):
            return {
                job.name: (job.gpus, job.environment["TANDEM_TEST_ENGINES_PER_GPU"], job.mps)
                for job in self.plan(count)
                if job.part == "shared"
            }

        names = ("shared_w{}", "shared_stress_w{}", "shared_digits_w{}")
        two, eight = [name.format(4) for name in names], [name.format(8) for name in names] + ["shared_side_by_side_w8"]
        self.assertEqual(shared(2), {**dict.fromkeys(two, (2, "2", True)), **dict.fromkeys(eight, (2, "4", True))})
        self.assertEqual(shared(4), dict.fromkeys(eight, (4, "2", True)))
        self.assertEqual(shared(8), {})
        self.assertEqual({(gpus, engines) for gpus, engines, _ in shared(1).values()}, {(1, "4"), (1, "8")})
        for count, engines, connections in ((2, "4", "8"), (1, "8", "4")):
            (stress,) = [job for job in self.plan(count) if job.name == "shared_stress_w8"]
            self.assertIn("--daemon-option=--testing-engines-per-gpu=" + engines, stress.command)
            self.assertEqual(stress.environment["CUDA_DEVICE_MAX_CONNECTIONS"], connections)

    def test_every_mode_of_the_collectives_benchmark_has_a_job_with_a_file_of_its_own(self):
        with open(os.path.join(HERE, "../../bench_collective.cc")) as file:
            modes = set(re.findall(r'mode == "(\w+)"', file.read()))
        found = {
            (job.command[1], int(job.command[2])): job
            for job in self.plan(4)
            if os.path.basename(job.command[0]) == "bench_collective"
        }
        self.assertEqual(
            set(found), {(mode, world) for mode in modes - {"sweep"} for world in (2, 4)}
        )  # sweep: to tune by hand
        self.assertEqual(len({job.stdout for job in found.values()}), len(found))
        for (_, world), job in found.items():
            self.assertEqual(
                (job.gpus, job.alone, job.stdout.endswith(f"-w{world}.jsonl")), (world, True, True), job.name
            )

    def test_what_tells_most_fits_27_minutes_on_four_gpus(self):
        tests = [
            Job(name, "tests", ("x",), seconds, 2 * seconds, gpus=gpus)
            for name, (gpus, seconds) in jobs.GPU_TESTS.items()
        ]  # a bundle has them, the tree does not
        plan = self.plan(4)
        wide = next(index for index, job in enumerate(plan) if job.gpus > 2)
        plan = (
            [job for job in tests if job.gpus <= 2] + plan[:wide] + [job for job in tests if job.gpus > 2] + plan[wide:]
        )
        begins, _ = schedule.estimate(plan, 4)
        ends = {job.name: begins[job.name] + job.expect for job in plan}
        late = {*jobs.LATE, *(job.name for job in fused_jobs.float8_jobs(REPOSITORY))}
        for job in plan:
            if job.name in late:
                self.assertGreater(begins[job.name], begins["peers_w4"])
            elif job.part in ("tests", "conformance", "recovery", "handover", "fused") or job.name in jobs.FIRST_SUITES:
                self.assertLess(ends[job.name], 27 * 60, job.name)
        self.assertLess(ends["peers_w4"], 27 * 60)
        self.assertLess(ends["conformance_w2"], 5 * 60)

    def test_the_matrix_runs_on_every_number_of_ranks_that_the_gpus_allow(self):
        def worlds(count):
            return {job.gpus for job in self.plan(count) if job.name.startswith("conformance_")}

        self.assertEqual([worlds(count) for count in (2, 4)], [{2}, {2, 3, 4}])

    def test_faults_are_tested_without_mps_and_a_job_outlives_what_is_expected(self):
        for job in self.plan(4):
            self.assertGreater(job.limit, job.expect, job.name)
            self.assertFalse(job.mps and "fault" in job.name, job.name)
        self.assertFalse(any(job.gpus > 2 for job in self.plan(2) if job.part == "integration"))

    def test_a_call_goes_on_where_the_last_one_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, main.RESULTS), "w") as file:
                for row in (
                    {"job": "a", "cut": False, "code": 1},
                    {"job": "b", "cut": True, "code": -15},
                    {"job": "a", "cut": False, "code": 0},
                ):
                    file.write(json.dumps(row) + "\n")
            self.assertEqual({name: row["code"] for name, row in main.rows_of(folder).items()}, {"a": 0})
        self.assertEqual(main.rows_of("/nonexistent"), {})

    def test_words(self):
        def word(code, passed, timed_out=False, cut_short=""):
            return main.word({"code": code, "passed": passed, "timed_out": timed_out, "cut_short": cut_short})

        self.assertEqual([word(0, 3), word(0, 0), word(1, 3), word(-15, 3, True)], ["ok", "skipped", "FAILED", "TIME"])
        self.assertEqual(
            [word(0, 3, cut_short="3 of 4 cases"), word(1, 3, cut_short="3 of 4 cases")], ["cut", "FAILED"]
        )

    def test_the_table_says_how_many_cases_ran(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as told:
            report = main.Report(folder)
            self.addCleanup(report.lines.close)
            report.rows = [
                {
                    "job": "conformance_w4",
                    "part": "conformance",
                    "code": 0,
                    "passed": 8,
                    "failed": 0,
                    "skipped": 2,
                    "cut_short": "10 of 60 cases",
                    "seconds": 1.0,
                    "timed_out": False,
                    "log": "conformance_w4.log",
                }
            ]
            report.table()
        self.assertRegex(told.getvalue(), r"conformance_w4 .* cut +conformance_w4\.log, 10 of 60 cases\n")

    def test_arguments(self):
        options = main.parse(["tests", "peers", "-o", "r", "-s", "560", "--", "--groups", "fp8"])
        self.assertEqual(
            (options.parts, options.results, options.seconds, options.more),
            (["tests", "peers"], "r", 560, ("--groups", "fp8")),
        )
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(HERE, "../main.py"), "nonsense", "--backend", "host"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("no such part: nonsense", done.stderr)


if __name__ == "__main__":
    unittest.main()
