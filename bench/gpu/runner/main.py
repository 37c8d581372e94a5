"""Runs a bundle's parts: see the head of bench/gpu/run, which calls this with the environment set."""

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jobs
import verdict
from job import ALIASES, PARTS
from schedule import Schedule, estimate

SHOWN = 8  # failures of a job on the terminal
RESULTS = "results.jsonl"


def gpus():
    """The UUIDs of the GPUs that CUDA_VISIBLE_DEVICES (indices or UUIDs) leaves to us."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)", listed, re.M)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return [uuid for _, uuid in found]
    wanted = [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    return [
        uuid
        for index, uuid in found
        if index in wanted or any(name.startswith("GPU-") and uuid.startswith(name) for name in wanted)
    ]


def sanitizer():
    """Where compute-sanitizer is, or None."""
    return shutil.which("compute-sanitizer") or next(
        (path for path in ("/usr/local/cuda/bin/compute-sanitizer",) if os.path.exists(path)), None
    )


class Report:
    """Says what begins and ends, and keeps a line of each in results.jsonl."""

    def __init__(self, results):
        self.results, self.begun_at, self.rows, self.later = results, time.monotonic(), [], []
        self.lines = open(os.path.join(results, RESULTS), "a", buffering=1)

    def say(self, text):
        print(f"{time.monotonic() - self.begun_at:7.1f} s  {text}", flush=True)

    def begun(self, one):
        where = f" on {len(one.gpus)} GPUs" if one.gpus else ""
        self.say(f"begin {one.job.name}{where}, {'MPS, ' if one.job.mps else ''}limit {one.limit:.0f} s")

    def ended(self, one, code, left_behind):
        job = one.job
        seconds = round(one.seconds, 1)
        log = os.path.basename(one.log_path)
        found = verdict.read(
            job.kind, one.log_path, code, one.timed_out, os.path.join(self.results, job.name + ".json")
        )
        cut = one.asked_to_end is not None and (not one.timed_out or one.limit < job.limit)  # not by its own limit
        row = {
            "job": job.name,
            "part": job.part,
            "code": code,
            "timed_out": one.timed_out,
            "cut": cut,
            "passed": found.passed,
            "failed": found.failed,
            "skipped": found.skipped,
            "cut_short": found.cut_short,
            "seconds": seconds,
            "gpus": len(one.gpus),
            "mps": job.mps,
            "left_behind": left_behind,
            "log": log,
            "failures": found.failures,
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        self.rows.append(row)
        if cut:
            self.later.append(job.name)
        self.lines.write(json.dumps(row) + "\n")
        self.say(
            f"end   {job.name}: {word(row)}, {found.passed} passed, {found.failed} failed, {found.skipped} skipped, "
            f"{seconds} s"
            + (f", {found.cut_short}" if found.cut_short else "")
            + (f", {left_behind} processes left behind" if left_behind else "")
        )
        for failure in found.failures[:SHOWN]:
            print(f"{'':11}- {failure[:160]}", flush=True)

    def left_out(self, job, why, later=False):
        """`later`: a next call will run it."""
        self.say(f"left out {job.name}: {why}")
        if later:
            self.later.append(job.name)
        else:
            self.rows.append({"job": job.name, "part": job.part, "left_out": why})

    def table(self):
        print(f"\n{'part':12} {'job':28} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>8}  {'':8} log")
        for row in sorted(self.rows, key=lambda row: PARTS.index(ALIASES.get(row["part"], row["part"]))):
            if "left_out" in row:
                print(f"{row['part']:12} {row['job']:28} left out: {row['left_out']}")
            else:
                print(
                    f"{row['part']:12} {row['job']:28} {row['passed']:6} {row['failed']:6} {row['skipped']:7} "
                    f"{row['seconds']:8.1f}  {word(row):8} {row['log']}"
                    + (f", {row['cut_short']}" if row["cut_short"] else "")
                )
        if self.later:
            print(f"not run, call again: {' '.join(self.later)}")


def word(row):
    if row["code"] != 0:
        return "TIME" if row["timed_out"] else "FAILED"
    if row["cut_short"]:
        return "cut"
    return "ok" if row["passed"] else "skipped"


def rows_of(results):
    """Jobs that earlier calls with the same RESULTS have run to the end, by their last lines."""
    rows = {}
    try:
        with open(os.path.join(results, RESULTS)) as lines:
            for line in lines:
                row = json.loads(line)
                if not row["cut"]:
                    rows[row["job"]] = row
    except OSError:
        pass
    return rows


def gpu_state(path):
    with open(path, "a") as file:
        subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv,noheader"],
            stdout=file,
            check=False,
        )


def parse(arguments):
    more = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, more = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(prog="run", description="Parts: all, " + ", ".join(PARTS))
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("-o", "--results", default=None, help="folder (default: results in the bundle)")
    parser.add_argument(
        "-w", "--world", type=int, default=0, help="of peers and tune (default: all that the GPUs allow)"
    )
    parser.add_argument(
        "-s",
        "--seconds",
        type=float,
        default=None,
        help="of the whole call; what is left, the next call with the same RESULTS runs",
    )
    parser.add_argument("--only", default="", help="regular expression for the jobs' names")
    parser.add_argument("--again", action="store_true", help="also what an earlier call with the same RESULTS has run")
    parser.add_argument("--list", action="store_true", help="print the jobs, and run none")
    parser.add_argument(
        "--backend",
        choices=("cuda", "host"),
        default="cuda",
        help="host: conformance and integration without GPUs, on four emulated ones",
    )
    options = parser.parse_args(arguments)
    options.parts = [ALIASES.get(part, part) for part in options.parts]
    unknown = set(options.parts) - {*PARTS, "all"}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.more = tuple(more)
    return options


def main():
    bundle = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    options = parse(sys.argv[1:])
    results = os.path.abspath(options.results or os.path.join(bundle, "results"))
    devices = gpus() if options.backend == "cuda" else [""] * 4
    os.makedirs(results, exist_ok=True)
    wanted = set(PARTS) if not options.parts or "all" in options.parts else set(options.parts)
    chosen = [
        job
        for job in jobs.all_jobs(
            bundle, results, options.backend, len(devices), options.world, options.more, sanitizer()
        )
        if job.part in wanted and re.search(options.only, job.name)
    ]
    if options.list:
        begins, end = estimate(chosen, len(devices))
        for job in chosen:
            at = f"{begins[job.name]:6.0f} s" if job.name in begins else f"{'never':>8}"
            print(
                f"{at}  {job.part:12} {job.name:28} {job.gpus} GPUs, {job.expect:.0f} s, limit {job.limit:.0f} s"
                f"{', MPS' if job.mps else ''}{', alone' if job.alone else ''}"
            )
        print(f"{end:6.0f} s  the end, as expected")
        return 0
    earlier = {} if options.again else rows_of(results)
    report = Report(results)
    report.rows += [earlier[job.name] for job in chosen if job.name in earlier]
    schedule = Schedule(bundle, results, devices, report, options.seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: schedule.stop())
    state = os.path.join(results, "gpus.txt")
    if options.backend == "cuda":
        gpu_state(state)
    schedule.run([job for job in chosen if job.name not in earlier])
    if options.backend == "cuda":
        gpu_state(state)
        figures = sorted(
            os.path.join(results, name) for name in os.listdir(results) if name.endswith(".jsonl") and name != RESULTS
        )
        print(flush=True)
        subprocess.run([sys.executable, "-B", os.path.join(bundle, "peers/table.py"), *figures], check=False)
    report.table()
    return 0 if report.rows and not report.later and all(row.get("code", 0) == 0 for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
