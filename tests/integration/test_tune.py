"""tandemctl tune: measured with real engines, kept over a restart, and chosen by."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

from harness import BIN, CUDA, Daemon, TandemTest, everybody, host_only, wait_until

NO_TABLES = tempfile.TemporaryDirectory(prefix="tandem-no-tables.")
unittest.addModuleCleanup(NO_TABLES.cleanup)
M, N, K = 256, 128, 64
RING, FUSED = "ring", "fused"
TUNE = (
    "--timeout",
    "30",
    "tune",
    "--op",
    "all_gather_matmul",
    "--shape",
    f"{M},{N},{K}",
    "--dtype",
    "bf16",
    "--world",
    "2",
)


def gather_matmul(**request):
    return {
        "op": "all_gather_matmul",
        "operands": [
            {"role": "a", "dtype": "bf16", "shape": [M // 2, K]},
            {"role": "b", "dtype": "bf16", "shape": [K, N]},
            {"role": "c", "dtype": "bf16", "shape": [M, N]},
        ],
        **request,
    }


class Tune(TandemTest):
    gpus = 2
    extra = (
        "--tuning-dir",
        NO_TABLES.name,
    )  # what ships is for other shapes, and would be listed beside what is measured here

    def tune(self, *more, check=True):
        return self.daemon.ctl(*TUNE, "--rounds", "3", "--launches", "2", *more, check=check, timeout=240)

    def plan(self, key, **request):
        """The plan of a new group of two."""
        clients = self.group(2, name=key)
        replies = everybody(clients, "prepare", group=key, key=key, plan=key, request=gather_matmul(**request))
        plans = [reply["plan"] for reply in replies]
        self.assertEqual(plans[0]["algorithm"], plans[1]["algorithm"])
        everybody(clients, "leave", group=key)
        self.daemon.close_clients()
        return plans[0]

    def restart(self):
        """A new tandemd over the same directories."""
        old = self.daemon
        old.own_dir = False
        old.stop()
        self.daemon = Daemon(self.gpus, self.extra, runtime_dir=old.runtime_dir)
        self.daemon.own_dir = True

    def test_the_measured_algorithm_is_chosen_after_a_restart(self):
        before = self.plan("before")
        self.assertNotEqual(before["algorithm"], "ring")
        result = self.tune("--candidates", "ring:4x2,ring:2x3,fused", "--json")
        (entry,) = json.loads(result.stdout)["entries"]
        self.assertEqual(entry["shape"], [M, N, K])
        self.assertEqual(len(entry["candidates"]), 3)
        rings = [candidate for candidate in entry["candidates"] if candidate["algorithm"] == RING]
        self.assertEqual({(ring["steps"], ring["lanes"]) for ring in rings}, {(4, 2), (2, 3)})
        for ring in rings:
            self.assertEqual(ring["samples"], 3)
            self.assertGreater(ring["p10_us"], 0)
            self.assertLessEqual(ring["p10_us"], ring["median_us"])
            self.assertLessEqual(ring["median_us"], ring["p90_us"])
        self.assertLessEqual(rings[0]["median_us"], rings[1]["median_us"], "the fastest comes first")
        fused = next(candidate for candidate in entry["candidates"] if candidate["algorithm"] == FUSED)
        if not CUDA:
            self.assertIn("fused", fused["refused"])
            self.assertIn("fused: refused: ", result.stderr)
        self.assertIn("round 3 of 3", result.stderr)

        fastest = fused if not fused["refused"] and fused["median_us"] < rings[0]["median_us"] else rings[0]

        def check(key):
            plan = self.plan(key)
            if fastest is fused:
                self.assertEqual(plan["algorithm"], "fused")
            else:
                self.assertEqual(
                    (plan["algorithm"], plan["steps"], plan["lanes"]), ("ring", fastest["steps"], fastest["lanes"])
                )
            self.assertIn("measured fastest", plan["reason"])
            self.assertIn(f"{fastest['median_us']:.1f} us (predicted ", plan["reason"])
            self.assertIn("state/tuning.toml", plan["reason"])

        check("after")
        self.restart()
        check("restarted")
        self.assertEqual(self.plan("asked", algorithm="pipeline")["reason"], "asked for")
        self.assertEqual(self.plan("lanes", lanes=3)["algorithm"], before["algorithm"])

    def test_list_show_and_forget(self):
        self.assertIn("nothing has been measured", self.daemon.ctl("tuning", "list").stdout)
        table = self.tune("--candidates", "ring")
        self.assertIn("ring", table.stdout)
        self.assertEqual(self.plan("tuned")["algorithm"], "ring")  # the only one that was measured
        entries = self.daemon.ctl_json("tuning", "list")["entries"]
        self.assertEqual(len(entries), 1)
        entry = entries[0]["id"]
        self.assertIn(f"{M}x{N}x{K}", self.daemon.ctl("tuning", "list").stdout)
        self.assertIn("bf16 x bf16 -> bf16", self.daemon.ctl("tuning", "show", entry).stdout)
        self.assertEqual(self.daemon.ctl("tuning", "show", "0" * 16, check=False).returncode, 4)
        self.assertEqual(self.daemon.ctl("tuning", "forget", "0" * 16, check=False).returncode, 4)
        self.assertEqual(self.daemon.ctl("tuning", "forget", check=False).returncode, 2)
        for command in ("show", "forget"):  # a script's empty variable: neither all entries nor a crash
            self.assertEqual(self.daemon.ctl("tuning", command, "", check=False).returncode, 2)
        self.assertEqual(len(self.daemon.ctl_json("tuning", "list")["entries"]), 1)
        self.assertIn("1 forgotten", self.daemon.ctl("tuning", "forget", entry).stdout)
        self.assertNotEqual(self.plan("forgotten")["algorithm"], "ring")
        self.assertEqual(self.daemon.ctl("tuning", "show", "", check=False).returncode, 2)
        self.assertIn("0 forgotten", self.daemon.ctl("tuning", "forget", "--all").stdout)

    def test_launches_on_the_ranks_own_streams_have_times_of_their_own(self):
        tune = ("--timeout", "30", "tune", "--op", "all_reduce", "--dtype", "f32", "--shape", "4096", "--world", "2")
        tune += ("--rounds", "2", "--launches", "2", "--candidates", "two_shot,nccl", "--placement", "client", "--json")
        entry = json.loads(self.daemon.ctl(*tune, timeout=240).stdout)["entries"][0]
        self.assertEqual(entry["traits"], "client")
        by_name = {candidate["algorithm"]: candidate for candidate in entry["candidates"]}
        self.assertGreater(by_name["two_shot"]["samples"], 0)
        self.assertIn("outside the kernel", by_name["nccl"]["refused"])
        clients = self.group(2)
        for placement, measured in (("client", True), ("engine", False)):
            reply = self.all_reduce_plan(clients, 4096, key=placement, placement=placement)[0]
            self.assertEqual("measured fastest" in reply["plan"]["reason"], measured, reply["plan"]["reason"])
            self.check_all_reduce(clients, 4096, key=placement)

    def test_a_file_of_cases_is_measured_by_one_command(self):
        path = os.path.join(self.daemon.runtime_dir, "cases")
        with open(path, "w") as file:
            file.write(
                f"# the layer\n--op all_gather_matmul --shape {M},{N},{K} {2 * M},{N},{K} --candidates ring\n"
                f"--op matmul_reduce_scatter --shape {M},{N},{K} --candidates fused\n"
                "--op all_reduce --dtype f32 --shape 4096 --candidates one_shot,two_shot --symmetric\n"
            )
        from_file = ("--timeout", "30", "tune", "--from", path, "--world", "2", "--rounds", "2", "--launches", "2")
        result = self.daemon.ctl(*from_file, "--json", check=False, timeout=240)
        kept = json.loads(result.stdout)["entries"]
        done = [entry["shape"] for entry in kept]
        if not CUDA:  # the one that nothing can run costs itself
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("1 of 4 cases failed, the first: no candidate can run", result.stderr)
            self.assertEqual(done, [[M, N, K], [2 * M, N, K], [4096 * 4]])
        self.assertEqual(kept[-1]["traits"], "symmetric")
        self.assertEqual({e["id"] for e in self.daemon.ctl_json("tuning", "list")["entries"]}, {e["id"] for e in kept})
        self.assertEqual(self.plan("tuned")["algorithm"], "ring")  # the only one that was measured
        self.assertNotIn("tune", self.daemon.ctl("groups").stdout)
        # No case begins when the time is up.
        result = self.daemon.ctl(*from_file, "--time-limit", "0.001", check=False, timeout=240)
        self.assertEqual(result.returncode, 6, result.stderr)
        self.assertIn("4 cases were left out", result.stderr)
        # A file that is wrong is refused before anything is measured.
        with open(path, "a") as file:
            file.write("--op barrier --shape 1\n")
        result = self.daemon.ctl(*from_file, check=False)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("barrier", result.stderr)
        self.assertEqual(self.daemon.ctl("tune", "--world", "2", check=False).returncode, 2)

    def test_what_plans_wanted_is_measured_as_they_asked_for_it(self):
        self.assertIn("no plan was made", self.daemon.ctl("tuning", "wanted").stdout)
        self.plan("asked", algorithm="ring")
        self.assertEqual(self.daemon.ctl_json("tuning", "list")["wanted"], [])
        transposed = {
            "operands": [
                {"role": "a", "dtype": "bf16", "shape": [M // 2, K]},
                {"role": "b", "dtype": "bf16", "shape": [K, N], "strides": [1, K]},
                {"role": "c", "dtype": "bf16", "shape": [M, N], "symmetric": True},
            ]
        }
        self.plan("first")
        self.plan("second")
        self.plan("third", **transposed)
        wanted = self.daemon.ctl("tuning", "wanted").stdout.splitlines()
        self.assertEqual(
            wanted[1:],
            [
                f"    2  all_gather_matmul {M}x{N}x{K}, bf16 x bf16 -> bf16, b_rows, 2 ranks",
                f"    1  all_gather_matmul {M}x{N}x{K}, bf16 x bf16 -> bf16, symmetric, 2 ranks",
            ],
        )
        result = self.daemon.ctl(
            "--timeout", "30", "tune", "--wanted", "--rounds", "1", "--launches", "1", "--json", timeout=240
        )
        entries = json.loads(result.stdout)["entries"]
        self.assertEqual([entry["traits"] for entry in entries], ["b_rows", "symmetric"])
        self.assertEqual(self.daemon.ctl_json("tuning", "list")["wanted"], [])
        self.assertIn("measured fastest", self.plan("after")["reason"])
        self.assertIn("measured fastest", self.plan("after too", **transposed)["reason"])
        again = self.daemon.ctl("tune", "--wanted")
        self.assertIn("no plan was made without a time", again.stderr)

    def test_a_gather_in_place_is_measured_in_place(self):
        count = 3 << 18  # 3 MiB of f32, and the whole 6 MiB: both slots are bound to the whole
        request = {
            "op": "all_gather",
            "operands": [
                {"role": "input", "dtype": "f32", "shape": [count]},
                {"role": "output", "dtype": "f32", "shape": [2 * count], "alias_of": 0},
            ],
        }
        self.plan("wanted", **request)
        result = self.daemon.ctl(
            "--timeout", "30", "tune", "--wanted", "--rounds", "1", "--launches", "1", "--json", timeout=240
        )
        (entry,) = json.loads(result.stdout)["entries"]
        self.assertEqual((entry["traits"], entry["shape"]), ("in_place", [2 * count * 4]))
        measured = [candidate for candidate in entry["candidates"] if candidate["samples"]]
        self.assertGreaterEqual(len(measured), 3, result.stderr)  # sm, copy_engine, nccl
        self.assertIn("measured fastest", self.plan("after", **request)["reason"])

    def start_long(self, *more):
        """A tandemctl tune of many rounds, once it is in the first case's rounds."""
        process = subprocess.Popen(
            [
                os.path.join(BIN, "tandemctl"),
                "--runtime-dir",
                self.daemon.runtime_dir,
                "--timeout",
                "30",
                "tune",
                "--op",
                "all_reduce",
                "--shape",
                "1024",
                "2048",
                "--dtype",
                "f32",
                "--world",
                "2",
                "--candidates",
                "one_shot",
                "--rounds",
                "400",
                "--launches",
                "5",
                "--deadline",
                "20",
                *more,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        def end():
            process.kill()
            process.wait(60)
            process.stdout.close()
            process.stderr.close()

        self.addCleanup(end)
        while not (line := process.stderr.readline()).startswith("round 1 of"):
            self.assertNotEqual(line, "", "it has ended")
        return process

    @host_only("kills an engine, which may take others along under MPS")
    def test_a_case_that_an_engine_dies_in_costs_itself(self):
        process = self.start_long("--json")
        os.kill(self.daemon.engine_pids()[1], signal.SIGKILL)
        out, err = process.communicate(timeout=240)
        self.assertNotEqual(process.returncode, 0, err)
        self.assertIn("all_reduce 1024 f32: FAILED: ", err)
        self.assertIn("1 of 2 cases failed", err)
        self.assertEqual([entry["shape"] for entry in json.loads(out)["entries"]], [[2048 * 4]])
        self.assertEqual(len(self.daemon.ctl_json("tuning", "list")["entries"]), 1)

    def test_ranks_end_with_their_tandemctl(self):
        process = self.start_long()
        process.kill()
        process.wait(60)
        wait_until(lambda: "tune" not in self.daemon.ctl("sessions").stdout, 60, "the ranks go on")
        self.assertEqual(self.daemon.ctl_json("tuning", "list")["entries"], [])
        self.assertEqual(self.daemon.ctl_json("groups")["groups"], [])

    def test_a_dry_run_changes_nothing(self):
        dry = self.tune("--candidates", "unfused", "--dry-run").stdout
        self.assertIn("not kept", dry)
        self.assertIn(f"{M}x{N}x{K}", dry)
        self.assertEqual(self.daemon.ctl_json("tuning", "list")["entries"], [])

    def test_every_default_candidate_of_a_collective(self):
        result = self.daemon.ctl(
            "--timeout",
            "30",
            "tune",
            "--op",
            "all_reduce",
            "--shape",
            "4096",
            "--dtype",
            "f32",
            "--world",
            "2",
            "--rounds",
            "1",
            "--launches",
            "1",
            "--json",
            timeout=240,
        )
        (entry,) = json.loads(result.stdout)["entries"]
        self.assertEqual(entry["shape"], [4096 * 4])
        self.assertEqual(len(entry["candidates"]), 6)
        measured = [c["algorithm"] for c in entry["candidates"] if c["samples"]]
        self.assertIn("one_shot", measured)
        refused = [c["refused"] for c in entry["candidates"] if not c["samples"]]
        self.assertTrue(any("hybrid cube mesh" in why for why in refused), refused)

    def test_not_beside_a_running_job(self):
        clients = self.group(2, name="job")
        result = self.tune("--candidates", "unfused", check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("is used by group 'job'", result.stderr)
        self.assertEqual(self.daemon.ctl_json("tuning", "list")["entries"], [])
        everybody(clients, "leave", group="job")
        self.daemon.close_clients()

    def test_nothing_that_can_run_is_an_error(self):
        result = self.tune("--candidates", "fused", check=False) if not CUDA else None
        if result is not None:
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("no candidate can run", result.stderr)
        self.assertEqual(self.tune("--candidates", "one_shot", check=False).returncode, 2)
        self.assertEqual(self.tune("--gpus", "0", check=False).returncode, 2)
        self.assertEqual(self.tune("--gpus", "0,7", check=False).returncode, 4)

    @host_only("needs another user's process and a daemon of this one's")
    def test_who_is_no_operator_is_refused_before_anything_runs(self):
        ctl = os.path.join(self.daemon.runtime_dir, "tandemctl")
        shutil.copy(os.path.join(BIN, "tandemctl"), ctl)
        os.chmod(self.daemon.runtime_dir, 0o755)
        arguments = [ctl, "--runtime-dir", self.daemon.runtime_dir]
        other = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
        if not other:
            os.chmod(os.path.join(self.daemon.admin_dir, "admin.sock"), 0)
        for command in (TUNE, ("tuning", "forget", "--all")):
            result = subprocess.run([*arguments, *command], capture_output=True, text=True, timeout=60, **other)
            self.assertEqual(result.returncode, 5, result.stderr)
            self.assertIn("admin.sock", result.stderr)
        self.assertNotIn("tune", self.daemon.ctl("groups").stdout)

    @host_only("the daemon and its answers are the same")
    def test_a_rank_program_that_is_missing_or_broken_is_no_unreachable_daemon(self):
        with tempfile.TemporaryDirectory() as folder:
            ctl = shutil.copy(os.path.join(BIN, "tandemctl"), folder)
            rank = os.path.join(folder, "tandem-tune-rank")

            def tune():
                return subprocess.run(
                    [ctl, "--runtime-dir", self.daemon.runtime_dir, *TUNE, "--dry-run"],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )

            result = tune()
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(f"there is no tandem-tune-rank beside {ctl}", result.stderr)
            for script, word in (("exit 127", "cannot be loaded"), ("exit 9", "ended with 9")):
                with open(rank, "w") as file:
                    file.write(f"#!/bin/sh\n{script}\n")
                os.chmod(rank, 0o755)
                result = tune()
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(word, result.stderr)
                self.assertIn("rank 0: tandem-tune-rank", result.stderr)

    def test_a_corrupt_file_is_refused_and_named(self):
        os.makedirs(os.path.join(self.daemon.runtime_dir, "state"), exist_ok=True)
        path = os.path.join(self.daemon.runtime_dir, "state", "tuning.toml")
        with open(path, "w") as file:
            file.write("format = 99\n")
        self.restart()
        line = [line for line in self.daemon.tail(400).splitlines() if "tuning file refused" in line]
        self.assertEqual(len(line), 1)
        self.assertIn("format 99", line[0])
        findings = [f["message"] for f in self.daemon.ctl_json("doctor")["findings"] if f["check"] == "tuning"]
        self.assertEqual(len(findings), 1)
        self.assertIn(path, findings[0])
        self.tune("--candidates", "ring")
        self.assertEqual(self.plan("again")["algorithm"], "ring")
        self.assertTrue(os.path.exists(path + ".refused"))


if __name__ == "__main__":
    unittest.main()
