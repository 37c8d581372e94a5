"""The parts of the comparison that need neither a GPU nor torch."""

import contextlib
import glob
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import cases
import kernel_times
import run
import stand_ins
import stats
import table
import tune

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../results")


class TuneTest(unittest.TestCase):
    def test_every_case_is_tuned_in_its_own_words(self):
        groups = (*cases.GROUPS, *cases.MORE, "blocks")
        by_kind = {case.kind + case.scales: tune.lines(case, 4) for case in cases.cases(4, groups)}
        self.assertEqual(by_kind.pop("empty"), [])
        self.assertEqual(by_kind.pop("ring"), [])
        self.assertEqual(by_kind.pop("norm"), [])
        self.assertEqual(
            by_kind["rs8row"],
            ["--op matmul_reduce_scatter --shape 16384,8192,7168 --dtype f8e4m3 --scales row_wise --slow-accumulation"],
        )
        self.assertEqual(
            by_kind["ag8block"],
            ["--op all_gather_matmul --shape 16384,7168,8192 --dtype f8e4m3 --scales block_wise --slow-accumulation"],
        )
        self.assertEqual(by_kind["ag"], ["--op all_gather_matmul --shape 8192,3584,4096 --dtype bf16"])
        whole = "--op all_gather --shape 131072 --dtype bf16"
        self.assertEqual(tune.lines(cases.Case("all_gather", size=1 << 20), 4), [whole, whole + " --symmetric"])
        self.assertNotIn([], by_kind.values())


class TableTest(unittest.TestCase):
    def printed(self, *paths):
        with mock.patch.object(sys, "argv", ["table.py", *paths]), contextlib.redirect_stdout(io.StringIO()) as told:
            table.main()
        return told.getvalue()

    def test_every_file_of_results_has_its_table(self):
        for path in glob.glob(os.path.join(RESULTS, "gpu-*.jsonl")):
            with self.subTest(file=os.path.basename(path)):
                self.assertTrue(self.printed(path))

    def test_copies_of_one_size_stand_in_one_line_whatever_else_a_file_says(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"nccl": "no such library"}\n')
            for arm, us in (("push_by_copy_engine", 7.5), ("push_by_sm_copy", 3.25)):
                file.write(
                    f'{{"op": "all_gather", "arm": "{arm}", "gpus": 2, "bytes": 4096, "blocks": 0, "us": {us}, "min": 1}}\n'
                )
            file.flush()
            self.assertEqual(
                self.printed(file.name).splitlines(),
                [
                    "W=2 all_gather            4096 B  push_by_copy_engine 7.50  push_by_sm_copy 3.25",
                    '{"nccl": "no such library"}',
                ],
            )

    def peers(self, arms, ratios=()):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(
                json.dumps(
                    {
                        "benchmark": "peers",
                        "world": 2,
                        "case": "a case",
                        "arms": arms,
                        "failed": {},
                        "ratios": [
                            {
                                "of": ours,
                                "to": theirs,
                                "median": 1.5,
                                "low": 1.4,
                                "high": 1.6,
                                "rounds": 9,
                                "dropped": 0,
                            }
                            for ours, theirs in ratios
                        ],
                    }
                )
                + "\n"
            )
            file.flush()
            return [line.strip() for line in self.printed(file.name).splitlines()]

    def test_a_kernel_stands_beside_the_best_rival(self):
        arms = {
            "nccl": {"us": 10.0},
            "windows": {"us": 8.0},
            "tandem sm": {"us": 12.0, "kernel_us": 6.0, "kernel_by": "events"},
        }
        self.assertEqual(
            self.peers(arms, [("tandem sm", "nccl"), ("tandem sm", "windows")])[2],
            "tandem sm / windows: 1.500 [1.400, 1.600], 9 rounds, 0 dropped; kernel 6.0 µs by events, 0.750",
        )
        del arms["tandem sm"]["kernel_us"]
        self.assertEqual(
            self.peers(arms, [("tandem sm", "windows")])[2],
            "tandem sm / windows: 1.500 [1.400, 1.600], 9 rounds, 0 dropped",
        )

    def test_the_best_rival_and_the_best_composition_both_stand_there(self):
        rivals = {"nccl+cublas": 9.0, "windows+cublas": 8.0, "cublas+pytorch two-shot": 7.0, "pytorch fused rs+ag": 6.0}
        lines = self.peers(
            {**{name: {"us": us} for name, us in rivals.items()}, "tandem fused": {"us": 5.0}},
            [("tandem fused", name) for name in rivals],
        )
        self.assertEqual(
            [line.split(":")[0] for line in lines[2:]],
            ["tandem fused / windows+cublas", "tandem fused / pytorch fused rs+ag"],
        )
        self.assertIn("torch fused rs+ag 6.0", lines[0])

    def test_the_newest_library_may_be_the_best_rival(self):
        arms = {"windows": {"us": 8.0}, "windows 2.32.3": {"us": 7.0}, "tandem sm": {"us": 6.0}}
        lines = self.peers(arms, [("tandem sm", "windows"), ("tandem sm", "windows 2.32.3")])
        self.assertIn("windows 8.0  windows 2.32.3 7.0", lines[0])
        self.assertEqual(lines[2].split(":")[0], "tandem sm / windows 2.32.3")

    def test_an_error_is_told_where_it_is_above_the_rivals(self):
        arms = {
            "nccl+cublas": {"us": 9.0, "error_fp64": 2e-3},
            "tandem ring": {"us": 9.0, "error_fp64": 2.5e-3},
            "tandem fused": {"us": 8.0, "error_fp64": 2e-3},
        }
        self.assertEqual(
            self.peers(arms)[2:], ["error against float64: nccl+cublas 0.002, above it tandem ring 0.0025"]
        )
        arms["tandem ring"]["error_fp64"] = 1e-3
        self.assertEqual(self.peers(arms)[2:], [])


class KernelTimesTest(unittest.TestCase):
    def test_it_knows_which_launches_the_engine_times(self):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../engine/launch/launch_timing.cc")
        with open(source) as file:
            text = file.read()
        self.assertIn(f"kTimeEvery = {kernel_times.TIMED_EVERY};", text)
        self.assertIn(f"kTimeStepsEvery = {kernel_times.STEPS_EVERY};", text)
        self.assertEqual(
            [launch for launch in range(1, 1200) if kernel_times.is_timed(launch)][:7],
            [96, 160, 192, 224, 288, 320, 352],
        )
        self.assertFalse(kernel_times.is_timed(3072))

    def test_launches_follow_until_enough_are_timed_unless_that_takes_long(self):
        self.assertEqual(kernel_times.more_calls(200, 20), 88)
        self.assertEqual(kernel_times.more_calls(288, 20), 0)
        self.assertEqual(kernel_times.more_calls(30, 2000), 0)

    def trace(self, durations):
        """Slices of plan 3 on two GPUs: {launch: µs by GPU}."""
        return [
            {"cat": "launch", "pid": gpu, "dur": us, "args": {"plan": 3, "launch": launch}}
            for launch, gpus in durations.items()
            for gpu, us in gpus.items()
        ]

    def test_the_slowest_rank_counts_and_a_launch_that_one_lacks_does_not(self):
        events = self.trace({192: {0: 5.0, 1: 7.0}, 320: {0: 9.0}}) + [{"cat": "wait", "pid": 0}, {"ph": "M"}]
        self.assertEqual(kernel_times.by_plan(events, 2), {3: {192: 7.0}})

    def test_events_go_before_the_clock_and_launches_with_timed_steps_count_nowhere(self):
        launches = {64: 300.0, 128: 300.0, 192: 6.0, 320: 7.0, 384: 8.0, 65: 9.0, 66: 10.0, 67: 11.0, 5: 500.0}
        self.assertEqual(
            kernel_times.figures(launches, 24),
            {"kernel_us": 7.0, "kernel_by": "events", "kernel_launches": 3, "kernel_clock_us": 10.0},
        )
        del launches[320]
        self.assertEqual(
            kernel_times.figures(launches, 24),
            {"kernel_us": 10.0, "kernel_by": "clock", "kernel_launches": 3, "kernel_clock_us": 10.0},
        )

    def test_a_plan_without_steps_has_no_kernel_time(self):
        self.assertEqual(kernel_times.figures({65: 0.0, 66: 0.0}, 24), {})
        self.assertEqual(kernel_times.figures({}, 24), {})


class LaunchesBehindTheRoundsTest(unittest.TestCase):
    """Of rank 0 of two; the other one takes twice as long."""

    def bench(self, trace):
        measure = stand_ins.with_torch("measure")
        bench = measure.Bench.__new__(measure.Bench)
        bench.rank, bench.world, bench.trace, bench.told, bench.calls = 0, 2, trace, [], []
        bench.log = bench.told.append
        bench.gather = lambda value: [value, value and {name: 2 * us for name, us in value.items()}]
        bench.time = lambda prepared, count: bench.calls.append(prepared)
        live = {
            "nccl": (measure.Arm("nccl", None), "rival", None),
            "tandem sm": (measure.Arm("tandem sm", None, plan=3), "ours", None),
        }
        self.figures = bench.kernel_times("a case", live, {"nccl": [5.0], "tandem sm": [self.us]}, 20, 10)
        return bench

    def events(self, last):
        self.last = last
        return [
            {"cat": "launch", "pid": gpu, "dur": 4.0 + gpu, "args": {"plan": 3, "launch": launch}}
            for launch in range(600)
            for gpu in range(2)
        ]

    def test_only_tandems_arms_follow_until_enough_launches_are_timed(self):
        self.us = 10.0
        bench = self.bench(self.events)
        self.assertEqual(bench.calls, ["ours"] * 4)  # 3 + 20 · 11 launches before, 288 wanted
        self.assertEqual(bench.told, ["measure a case / tandem sm"])
        self.assertEqual(self.last, (10 + 4 + 2) * 20)
        self.assertEqual(
            (self.figures["tandem sm"]["kernel_us"], self.figures["tandem sm"]["kernel_launches"]), (5.0, 13)
        )

    def test_the_slowest_rank_says_whether_they_take_too_long(self):
        self.us = 5000.0  # 65 launches of it are within MOST_SECONDS, of 10000 µs not
        self.assertEqual(self.bench(self.events).calls, [])

    def test_without_a_trace_the_comparison_goes_on(self):
        self.us = 10.0
        bench = self.bench(mock.Mock(side_effect=RuntimeError("no daemon")))
        self.assertEqual((self.figures, bench.told[-1]), ({}, "no kernel times: RuntimeError: no daemon"))


class StatsTest(unittest.TestCase):
    def test_an_error_is_that_of_all_ranks_rows(self):
        self.assertEqual(stats.relative_norm([(9e-6, 4.0), (16e-6, 21.0)]), 1e-3)
        self.assertIsNone(stats.relative_norm([(9e-6, 4.0), None]))

    def test_a_round_takes_as_long_as_its_slowest_rank(self):
        self.assertEqual(stats.slowest([[1, 5, 3], [4, 2, 3]]), [4, 5, 3])

    def test_ratio_is_the_median_of_ratios_not_the_ratio_of_medians(self):
        ours, theirs = [10.0, 20.0, 90.0], [20.0, 20.0, 100.0]
        self.assertEqual(stats.ratio(ours, theirs)["median"], 0.9)
        self.assertEqual(stats.median(ours) / stats.median(theirs), 1.0)

    def test_interval_covers_the_median_and_narrows_with_rounds(self):
        few = stats.ratio([0.9, 1.1, 1.0, 0.95, 1.05], [1.0] * 5)
        many = stats.ratio([0.9, 1.1, 1.0, 0.95, 1.05] * 20, [1.0] * 100)
        for result in (few, many):
            self.assertLessEqual(result["low"], result["median"])
            self.assertLessEqual(result["median"], result["high"])
        self.assertLess(many["high"] - many["low"], few["high"] - few["low"])

    def test_rounds_at_other_clocks_are_dropped_and_counted(self):
        clocks = [(1980, 1980), (1980, 1980), (1980, 1700)]
        result = stats.ratio([1.0, 1.0, 5.0], [1.0, 1.0, 1.0], clocks, [(1980, 1980), (1965, 1980), (1980, 1980)])
        self.assertEqual((result["median"], result["rounds"], result["dropped"]), (1.0, 2, 1))

    def test_unread_clocks_drop_nothing(self):
        result = stats.ratio([1.0, 2.0], [1.0, 1.0], [(None,), (1980,)], [(1980,), (None,)])
        self.assertEqual((result["rounds"], result["dropped"]), (2, 0))

    def test_no_round_left_is_no_figure(self):
        self.assertIsNone(stats.ratio([1.0], [1.0], [(1000,)], [(2000,)])["median"])


class CasesTest(unittest.TestCase):
    def test_names_are_unique_and_rows_divide(self):
        for world in (2, 4, 8):
            found = cases.cases(world, cases.GROUPS + cases.MORE)
            self.assertEqual(len({case.name for case in found}), len(found))
            for case in found:
                self.assertEqual(case.m % world, 0, case.name)
                self.assertEqual(case.size % (2 * world), 0, case.name)

    def test_measurements_use_every_operand_set_equally(self):
        for case in cases.cases(2, cases.GROUPS + cases.MORE):
            self.assertEqual(case.calls() % 4, 0, case.name)


# The cases with goals: kind, then rows (N and K are the 70B model's, split over the ranks) or bytes.
ROWS = (512, 2048, 4096, 8192, 16384)
GOALS = (
    *((kind, m, None) for kind in ("ag", "rs", "ar") for m in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
    *((kind, m, scales) for kind in ("ag8", "rs8") for m in ROWS for scales in ("tensor", "row")),
)
SMALL_MODEL = {
    2: {"ag": (7168, 4096), "rs": (4096, 7168), "ar": (4096, 7168)},
    4: {"ag": (3584, 4096), "rs": (4096, 3584), "ar": (4096, 3584)},
    8: {"ag": (1792, 4096), "rs": (4096, 1792), "ar": (4096, 1792)},
}
LARGE_MODEL = {2: (14336, 8192), 4: (7168, 8192), 8: (3584, 8192)}
MESSAGES = (
    1024,
    2048,
    4096,
    8192,
    16384,
    32768,
    65536,
    131072,
    262144,
    524288,
    1048576,
    2097152,
    4194304,
    8388608,
    16777216,
    67108864,
    268435456,
)
PLAIN = {"nccl+cublas", "windows+cublas"}
RIVALS_OF = {
    "ag": PLAIN | {"pytorch fused"},
    "rs": PLAIN | {"pytorch fused"},
    "ring": PLAIN | {"pytorch fused"},
    "ag8": PLAIN | {"pytorch fused"},
    "rs8": PLAIN | {"pytorch fused"},
    "ar": PLAIN | {"cublas+pytorch two-shot", "pytorch fused rs+ag"},
    "all_reduce": {"nccl", "windows", "pytorch one-shot", "pytorch two-shot"},
    "all_gather": {"nccl", "windows", "bare pushes"},
    "reduce_scatter": {"nccl", "windows"},
    "norm": {"nccl+torch norm", "windows+torch norm"},
    "empty": set(),
}
FLASHINFER = {"flashinfer one-shot", "flashinfer two-shot"}


class GoalsTest(unittest.TestCase):
    def test_every_cell_of_the_goals_has_a_case(self):
        for world in (2, 4, 8):
            split, whole = LARGE_MODEL[world]
            wanted = {
                cases.Case(kind, m, *((split, whole) if kind.startswith("ag") else (whole, split)), scales or "")
                for kind, m, scales in GOALS
            }
            wanted |= {cases.Case(kind, 8192, *shape) for kind, shape in SMALL_MODEL[world].items()}
            wanted |= {cases.Case("rs", 8192, 4096, 1024)}
            wanted |= {cases.Case("ring", size, size, size) for size in (2048, 4096, 8192)}
            wanted |= {
                cases.Case(kind, size=size)
                for size in MESSAGES
                for kind in ("all_reduce", "all_gather", "reduce_scatter")
            }
            self.assertEqual(
                {case.name for case in wanted - set(cases.cases(world, cases.GROUPS))}, set(), f"W={world}"
            )

    def of_kinds(self, rivals):
        """(kind, its context, names of its arms)."""
        arms = stand_ins.with_torch("arms")
        for kind, case in {case.kind: case for case in reversed(cases.cases(2, cases.GROUPS + cases.MORE))}.items():
            context = stand_ins.context(0, 2, rivals)
            yield kind, context, [name for name, _ in arms.BUILDERS[kind](context, case)[0]]

    def test_every_kind_has_its_rivals_and_the_table_and_the_ratios_know_them(self):
        rank = stand_ins.with_torch("rank")
        known = {name for names in table.RIVALS.values() for name in names} | {"bare pushes"}
        kinds = set()
        for kind, context, names in self.of_kinds(rivals=False):
            kinds.add(kind)
            made = set(names)
            with self.subTest(kind=kind):
                self.assertEqual(len(made), len(names))
                self.assertLessEqual(RIVALS_OF[kind], made)
                self.assertLessEqual(RIVALS_OF[kind], known)
                self.assertLessEqual(RIVALS_OF[kind], set(rank.BASELINES))
                self.assertTrue(any(name.startswith("tandem") for name in made))
                # Memory that peers write to is symmetric for all; the case without stands beside it.
                self.assertEqual("tandem auto, ordinary" in made, kind in ("ar", "all_reduce", "all_gather"))
                self.assertEqual(context.exact is not None, "nccl+cublas" in made)
        self.assertEqual(kinds, set(RIVALS_OF))

    def test_newer_rivals_stand_beside_the_others_where_they_are_there(self):
        rank = stand_ins.with_torch("rank")
        vllm = {"flashinfer vllm"}
        self.assertLessEqual(FLASHINFER | vllm, set(rank.BASELINES) & set(table.RIVALS["collective"]))
        for (kind, _, before), (_, _, names) in zip(self.of_kinds(rivals=False), self.of_kinds(rivals=True)):
            with self.subTest(kind=kind):
                newer = set(names) - set(before)
                self.assertEqual(len(set(names)), len(names))
                self.assertEqual(newer & FLASHINFER, FLASHINFER if kind in ("all_reduce", "norm") else set())
                self.assertEqual(newer & vllm, vllm if kind == "all_reduce" else set())
                versioned = newer - FLASHINFER - vllm
                self.assertEqual(bool(versioned), kind != "empty")
                for name in versioned:
                    self.assertIn("2.32.3", name)
                    self.assertIn(stats.family(name), RIVALS_OF[kind])


class ChoiceTest(unittest.TestCase):
    def options(self, *arguments):
        with mock.patch.object(sys, "argv", ["run.py", *arguments]), contextlib.redirect_stdout(io.StringIO()) as told:
            run.main()
        return told.getvalue().splitlines()

    def test_cases_are_listed_by_group_and_expression(self):
        chosen = self.options(
            "--list", "--world", "4", "--groups", "matmul,collectives", "--only", "K=1024$|reduce bf16 128 KiB"
        )
        self.assertEqual(chosen, ["GEMM+RS bf16 M=8192 N=4096 K=1024", "all_reduce bf16 128 KiB"])

    def test_an_expression_that_finds_nothing_and_a_missing_file_are_errors(self):
        for arguments in (("--list", "--only", "no such case"), ("--only", "empty")):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
                self.options(*arguments)
            self.assertEqual(ended.exception.code, 2)

    def test_what_the_file_lacks_is_left(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"world": 2, "case": "all_reduce bf16 2 KiB"}\n{"world": 4, "case": "all_reduce bf16 4 KiB"}\n')
            file.flush()
            options = mock.Mock(out=file.name, groups="collectives", small=False, only="all_reduce bf16 [24] KiB")
            self.assertEqual(run.cases_left(options, 2), ["all_reduce bf16 4 KiB"])


class StoodAtTest(unittest.TestCase):
    def test_the_last_arm_is_read_from_the_log(self):
        ranks = run.Ranks.__new__(run.Ranks)
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"stood-at.{os.getpid()}.log")
        with open(path, "w") as log:
            log.write(
                "    1.00 torch 2.11\n    2.00 prepare AG+GEMM bf16 M=512 / gemm\n"
                "    3.00 measure AG+GEMM bf16 M=512 / tandem ring\nTraceback (most recent call last):\n"
            )
        try:
            ranks.logs = [path]
            self.assertEqual(ranks.stood_at(), ["AG+GEMM bf16 M=512", "tandem ring"])
        finally:
            os.unlink(path)


if __name__ == "__main__":
    unittest.main()
