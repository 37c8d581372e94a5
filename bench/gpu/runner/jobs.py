"""The jobs of a bundle: each with its part, GPUs, time and limit, the most useful first.

An entry's `expect` is what it took or should take; it decides what still fits a budget of time and what may run beside
what. `limit` ends it.
"""

import os
import re
from dataclasses import replace

from fused_jobs import float8_jobs, fused_jobs
from job import Job

# Suites with a separate MPS server: in them nobody is killed or faults. Under MPS a fault is
# shared by all on the GPU, and the tests of faults expect the culprit alone to fall; tests/gpu/recovery has both.
UNDER_MPS = (
    "test_basic",
    "test_captured",
    "test_cuda",
    "test_fused",
    "test_late_rank",
    "test_sharing",
    "test_operations",
    "test_autotune",
    "test_tune",
)
# Seconds, by suite; DEFAULT_SUITE for another.
SUITES = {
    "test_captured": 35,
    "test_client_faults": 40,
    "test_client_placement": 150,
    "test_renewal": 130,
    "test_engine_faults": 60,
    "test_kill_every_call": 50,
    "test_daemon_death": 35,
    "test_sharing": 15,
    "test_fused": 70,
    "test_cuda": 25,
    "test_basic": 15,
    "test_operations": 40,
    "test_late_rank": 10,
    "test_rounds": 160,
    "test_process_faults": 60,
    "test_conformance_faults": 50,
    "test_autotune": 30,
    "test_tune": 60,
    "test_outcomes": 40,
    "test_fork": 15,
    "test_c_api": 15,
    "test_rogue": 85,
    "test_admin": 60,
    "test_limits": 50,
    "test_bad_input": 40,
}
DEFAULT_SUITE = 45
# Those whose paths differ most on GPUs; the others in the order of their names.
FIRST_SUITES = (
    "test_captured",
    "test_client_faults",
    "test_engine_faults",
    "test_kill_every_call",
    "test_daemon_death",
    "test_sharing",
    "test_cuda",
)
# After all that measures.
LATE = ("conformance_w3", "conformance_client_w4", "stress_client_w4", "stress_renewed_w4")
# gpu tests: (GPUs, seconds); others take a pair and half a minute.
GPU_TESTS = {
    "cuda_kernels_test": (1, 10),
    "cuda_pool_test": (1, 10),
    "client_cuda_test": (1, 20),
    "cuda_planned_test": (4, 90),
    "cuda_collective_test": (4, 60),
    "cuda_nccl_test": (2, 30),
    "cuda_client_launch_test": (1, 25),
    "cuda_client_product_test": (1, 90),
    "cuda_client_skinny_test": (1, 35),
    "cuda_fused_race_test": (1, 60),
    "cuda_fused_long_test": (1, 20),
    "cuda_skinny_race_test": (1, 10),
    "cuda_skinny_long_test": (1, 10),
    "cuda_import_test": (2, 20),
    "cuda_words_test": (2, 10),
}
# Their measurements have goals, so they run alone, except for rounds that measure nothing.
RECOVERY = {
    "with_mps": (("test_recovery.RecoveryWithMps", "figures.WhatItTook"), 60),
    "without_mps": (("test_recovery.RecoveryWithoutMps", "figures.WhatItTook"), 40),
    "servers": (("test_servers",), 180),
}  # fifty rounds among them
# (tool, test, its cases, seconds). Products of cuBLASLt's under racecheck take minutes; of the skinny kernel it reports a word
# that threads pass by acquire and release (docs/gotchas.md).
RIGHT = "*RaceTest.IsRight*-*Queue*"
GUARDED = "*AGuardThatIsRaised*"
SANITIZED = (
    ("memcheck", "cuda_fused_race_test", RIGHT, 15),
    ("synccheck", "cuda_fused_race_test", RIGHT, 15),
    ("racecheck", "cuda_fused_race_test", RIGHT + ":*Shares*", 30),
    ("memcheck", "cuda_client_product_test", "*EagerFused*/0:*AFused*/0", 60),
    ("memcheck", "cuda_skinny_race_test", RIGHT, 10),
    ("synccheck", "cuda_skinny_race_test", RIGHT, 10),
    ("memcheck", "cuda_collective_test", GUARDED, 10),
    ("racecheck", "cuda_collective_test", GUARDED, 10),
    ("synccheck", "cuda_collective_test", GUARDED, 10),
    ("memcheck", "cuda_kernels_test", "", 90),
    ("racecheck", "cuda_kernels_test", "*Sums*:*Copies*", 90),
    ("synccheck", "cuda_kernels_test", "*Sums*:*Copies*:*Float8*", 90),
)
# Calls that tests expect to be refused are no findings.
SANITIZER_OPTIONS = {"memcheck": ("--report-api-errors", "no"), "racecheck": (), "synccheck": ()}


def shell(text):
    return ("bash", "-c", text)


def most_ranks(path):
    """How many GPUs a suite's tests use: its MOST_RANKS. Read, since importing it would start what it measures with; the suites'
    harness fails a test that uses more."""
    with open(path) as file:
        said = re.search(r"^MOST_RANKS = (\d+)$", file.read(), re.M)
    return int(said.group(1)) if said else 2


def suite_jobs(bundle, backend, count):
    folder = os.path.join(bundle, "tests/integration")
    found = os.listdir(folder) if os.path.isdir(folder) else ()  # a bundle may be cut down
    names = sorted(name[:-3] for name in found if name.startswith("test_") and name.endswith(".py"))
    for name in sorted(names, key=lambda n: (FIRST_SUITES.index(n) if n in FIRST_SUITES else len(FIRST_SUITES), n)):
        expect = SUITES.get(name, DEFAULT_SUITE)
        yield Job(
            name,
            "integration",
            ("python3", "-B", "-m", "unittest", "-v", name),
            expect,
            2.5 * expect + 30,
            gpus=min(count, most_ranks(os.path.join(folder, name + ".py"))),
            kind="unittest",
            mps=backend == "cuda" and name in UNDER_MPS,
            folder="tests/integration",
            environment={"TANDEM_TEST_BACKEND": backend},
        )


def digits_jobs(backend, count):
    """A training from its data to its end, which checks itself; then with a rank killed and recovered, and on fewer ranks."""
    for world in (2, 4) if backend == "cuda" else (4,):  # emulated GPUs are not handed out: there are always enough
        if world <= count:
            yield Job(
                f"digits_w{world}",
                "integration",
                ("python3", "-B", "run_digits.py"),
                20 * world,
                240,
                gpus=world,
                kind="digits",
                mps=backend == "cuda",
                folder="tests/integration",
                environment={"TANDEM_TEST_BACKEND": backend},
            )


def gpu_test_jobs(bundle, count):
    folder = os.path.join(bundle, "tests/bin")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        gpus, expect = GPU_TESTS.get(name, (2, 30))
        yield Job(
            name,
            "tests",
            (os.path.join(folder, name),),
            expect,
            2 * expect + 60,
            gpus=min(gpus, max(count, 2)),
            kind="gtest",
        )


def conformance_job(bundle, results, backend, name, world, seconds, *more, mps=True):
    summary = os.path.join(results, name + ".json")
    return Job(
        name,
        "conformance",
        (
            os.path.join(bundle, "bin/tandem-conformance"),
            "--backend",
            backend,
            "--world",
            str(world),
            "--json",
            summary,
            "--daemon-log",
            os.path.join(results, name + "-tandemd.log"),
            *more,
        ),
        seconds + 20,
        1.5 * seconds + 60,
        gpus=world,
        kind="conformance",
        mps=mps and backend == "cuda",
    )


def conformance_jobs(bundle, results, backend, count):
    def job(name, world, seconds, *more, **named):
        return conformance_job(bundle, results, backend, name, world, seconds, *more, **named)

    if backend != "cuda":  # a trial
        yield job("conformance_w2", 2, 20, "--quiet", "--no-heavy", "--sample", "60", "--time-limit", "60")
        yield job("stress_w2", 2, 10, "--stress", "1000")
        return
    matrix = ("--quiet", "--max-failures", "40")
    yield job("conformance_w2", 2, 120, *matrix, "--time-limit", "120")
    yield job(
        "conformance_w2_without_mps", 2, 40, *matrix, "--sample", "60", "--seed", "2", "--time-limit", "40", mps=False
    )
    yield job("stress_w2", 2, 20, "--stress", "100000")
    in_client = (*matrix, "--placement", "client")
    renewed = ("--stress", "20000", "--placement", "client", "--renew-every", "2")
    if count < 4:
        yield job("conformance_client_w2", 2, 60, *in_client, "--time-limit", "60")
        yield job(
            "conformance_client_w2_without_mps", 2, 40, *in_client, "--seed", "2", "--time-limit", "40", mps=False
        )
        yield job("stress_client_w2", 2, 12, "--stress", "100000", "--placement", "client")
        yield job("stress_renewed_w2", 2, 40, *renewed)
    else:
        yield job("conformance_client_w4", 4, 60, *in_client, "--time-limit", "60")
        yield job("stress_client_w4", 4, 20, "--stress", "100000", "--placement", "client")
        yield job("stress_renewed_w4", 4, 40, *renewed)
    if count >= 4:
        yield job("conformance_w4", 4, 100, *matrix, "--time-limit", "100")
        # No power of two, and extents that three does not divide.
        yield job("conformance_w3", 3, 60, *matrix, "--seed", "3", "--time-limit", "60")
        yield job("stress_w4", 4, 30, "--stress", "100000")


def shared_jobs(bundle, results, count):
    """More ranks than GPUs (docs/topology.md): whether they are right, where no machine of so many is at hand."""
    gpus = max(share for share in (1, 2, 4) if share <= max(count, 1))
    for world in (world for world in (4, 8) if world > count):
        engines = str(world // gpus)
        # Each process has separate hardware queues, out of one pool a GPU.
        environment = {
            "CUDA_DEVICE_MAX_CONNECTIONS": str(min(8, 32 * gpus // world)),
            "TANDEM_TEST_BACKEND": "cuda",
            "TANDEM_TEST_ENGINES_PER_GPU": engines,
        }
        for name, seconds, more in (
            (f"shared_w{world}", 80, ("--quiet", "--seed", "4", "--time-limit", "80")),
            (f"shared_stress_w{world}", 20, ("--stress", "20000")),
        ):
            job = conformance_job(
                bundle,
                results,
                "cuda",
                name,
                world,
                seconds,
                "--daemon-option=--testing-engines-per-gpu=" + engines,
                *more,
            )
            yield replace(job, part="shared", gpus=gpus, environment=environment)
        scripts = [("digits", ("run_digits.py",), "digits")]
        scripts += [("side_by_side", ("-m", "unittest", "-v", "test_side_by_side"), "unittest")] if world == 8 else []
        for name, words, kind in scripts:
            yield Job(
                f"shared_{name}_w{world}",
                "shared",
                ("python3", "-B", *words),
                60,
                200,
                gpus=gpus,
                kind=kind,
                mps=True,
                folder="tests/integration",
                environment=environment,
            )


def recovery_jobs():
    for name, (words, expect) in RECOVERY.items():
        yield Job(
            f"recovery_{name}",
            "recovery",
            ("python3", "-B", "-m", "unittest", "-v", *words),
            expect,
            1.5 * expect + 30,
            gpus=2,
            kind="unittest",
            alone=name != "servers",
            folder="tests/gpu/recovery",
        )


def sanitizer_jobs(bundle, tool):
    for what, test, only, expect in SANITIZED:
        yield Job(
            f"{what}_{test}",
            "sanitizer",
            (
                tool or "compute-sanitizer",
                "--tool",
                what,
                "--error-exitcode",
                "9",
                *SANITIZER_OPTIONS[what],
                os.path.join(bundle, "tests/bin", test),
                *([f"--gtest_filter={only}"] if only else []),
            ),
            expect,
            expect + 60,
            gpus=1,
            kind="gtest",
            needs=tool or "compute-sanitizer",
        )
    for what in ("memcheck", "racecheck"):
        yield Job(
            f"{what}_fused_gemm",
            "sanitizer",
            (
                tool or "compute-sanitizer",
                "--tool",
                what,
                "--error-exitcode",
                "9",
                *SANITIZER_OPTIONS[what],
                os.path.join(bundle, "bin/fused_gemm"),
                "check",
                "0",
            ),
            90,
            150,
            gpus=1,
            needs=tool or "compute-sanitizer",
        )


def handover_jobs(bundle, count):
    for how in ("with", "without"):
        yield Job(
            f"handover-{how}-mps",
            "handover",
            ("python3", "-B", os.path.join(bundle, "peers/handover.py"), "--label", f"{how} MPS"),
            45,
            150,
            gpus=4 if count >= 4 else 2,
            mps=how == "with",
            alone=True,
            stdout=f"handover-{how}-mps.jsonl",
        )


def bench_jobs(bundle):
    yield Job(
        "backend",
        "bench",
        (os.path.join(bundle, "bin/bench_backend"),),
        30,
        150,
        gpus=2,
        alone=True,
        stdout="backend.jsonl",
    )
    for world in (2, 4):
        for name, mode in (("collectives", "compare"), ("copies", "copies")):
            yield Job(
                f"{name}_w{world}",
                "bench",
                (os.path.join(bundle, "bin/bench_collective"), mode, str(world)),
                12,
                60,
                gpus=world,
                alone=True,
                stdout=f"{name}-w{world}.jsonl",
            )


def peers_jobs(bundle, results, world, count, more):
    for ranks in [world] if world else [w for w in (4, 2, 8) if w <= count]:
        out = os.path.join(results, f"peers-w{ranks}.jsonl")
        seconds = 170
        yield Job(
            f"peers_w{ranks}",
            "peers",
            (
                "python3",
                "-B",
                os.path.join(bundle, "peers/run.py"),
                "--world",
                str(ranks),
                "--out",
                out,
                *(more or ("--small", "--seconds", str(seconds))),
            ),
            seconds + 10,
            570 if more else seconds + 60,
            gpus=ranks,
            mps=True,
            alone=True,
        )


def tune_jobs(bundle, results, world, count, more):
    for ranks in [world] if world else [w for w in (4, 2) if w <= count]:
        yield Job(
            f"tune_w{ranks}",
            "tune",
            (
                "python3",
                "-B",
                os.path.join(bundle, "peers/tune.py"),
                "--world",
                str(ranks),
                "--out",
                os.path.join(results, f"tuning-w{ranks}.toml"),
                *(more or ("--time-limit", "150")),
            ),
            160,
            590 if more else 240,
            gpus=ranks,
            mps=True,
            alone=True,
            needs=os.path.join(bundle, "peers/tune.py"),
        )


def all_jobs(bundle, results, backend, count, world=0, more=(), tool=None):
    """Everything that the bundle can run on `count` GPUs, the most useful first. `world`, `more`: of peers and tune.

    First what proves the data plane right where it has never run, in pairs beside each other; then what needs four GPUs;
    then what measures and must be alone."""
    conformance = list(conformance_jobs(bundle, results, backend, count))
    suites = list(suite_jobs(bundle, backend, count))
    digits = list(digits_jobs(backend, count))
    if backend != "cuda":
        return conformance + suites + digits
    tests, recovery = list(gpu_test_jobs(bundle, count)), list(recovery_jobs())
    pairs = [job for job in suites if job.gpus <= 2]
    first = [job for job in pairs if job.name in FIRST_SUITES]
    wide = [job for job in suites if job.gpus > 2 and job.name in FIRST_SUITES]
    later = [job for job in suites if job.name not in FIRST_SUITES]
    peers = list(peers_jobs(bundle, results, world, count, more))
    fused = list(fused_jobs(bundle))
    return [
        *(job for job in tests if job.gpus <= 2),
        *(job for job in conformance if job.gpus <= 2),
        *first,
        *digits[:1],
        *recovery,
        *(job for job in fused if not job.alone),
        *(job for job in tests if job.gpus > 2),
        *(job for job in conformance if job.gpus > 2 and job.name not in LATE),
        *wide,
        *handover_jobs(bundle, count),
        *(job for job in fused if job.alone),
        *peers,
        *sanitizer_jobs(bundle, tool),
        *bench_jobs(bundle),
        *float8_jobs(bundle),
        *tune_jobs(bundle, results, world, count, more),
        *digits[1:],
        *shared_jobs(bundle, results, count),
        *later,
        *(job for job in conformance if job.name in LATE),
    ]
