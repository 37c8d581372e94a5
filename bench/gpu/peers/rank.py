"""One rank of a comparison; run.py starts it. Rank 0 appends a JSON line a case to the results."""

import argparse
import datetime
import gc
import json
import os
import re
import sys
import time

import arm_parts
import arms
import cases
import rivals
import stats
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from measure import Bench

WINDOW_BYTES = 2304 << 20  # the largest case's operands, four sets of them
BASELINES = (
    "gemm",
    "nccl+cublas",
    "nccl+cublas stream",
    "windows+cublas",
    "pytorch fused",
    "cublas+pytorch two-shot",
    "pytorch fused rs+ag",
    arm_parts.BESIDE,
    "nccl",
    "windows",
    "pytorch one-shot",
    "pytorch two-shot",
    "bare pushes",
    "flashinfer one-shot",
    "flashinfer two-shot",
    "flashinfer vllm",
    "nccl+torch norm",
    "windows+torch norm",
)


def result_line(world, case, count, measured, failed, watts, clocks_seen):
    """A case's line: medians, ratios of every Tandem arm to every rival, and all rounds."""
    rounds = {name: stats.slowest(arm["times"]) for name, arm in measured.items()}
    ratios = []
    for ours in measured:
        for theirs in measured:
            if ours.startswith("tandem") and stats.family(theirs) in BASELINES:
                ratios.append(
                    {
                        "of": ours,
                        "to": theirs,
                        **stats.ratio(
                            rounds[ours], rounds[theirs], measured[ours]["clocks"], measured[theirs]["clocks"]
                        ),
                    }
                )
    return {
        "benchmark": "peers",
        "world": world,
        "case": case.name,
        "calls": count,
        "power_w": watts,
        **clocks_seen,
        "arms": {
            name: {
                **stats.summary(rounds[name]),
                "error": arm["error"],
                **({"error_fp64": arm["error_fp64"]} if arm["error_fp64"] is not None else {}),
                **arm["kernel"],
                **({"plan": arm["note"]} if arm["note"] else {}),
            }
            for name, arm in measured.items()
        },
        "ratios": ratios,
        "failed": failed,
        "rounds_us": {name: [round(value, 2) for value in values] for name, values in rounds.items()},
    }


def clock_range(measured):
    seen = [clock for arm in measured.values() for row in arm["clocks"] for clock in row if clock]
    return {"sm_clock_mhz": [round(min(seen)), round(max(seen))]} if seen else {}


def main():
    parser = argparse.ArgumentParser()
    for name in ("rank", "world", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("meet", "out", "groups", "job_key"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--runtime_dir", default="")  # empty: without Tandem
    parser.add_argument("--skip", default="[]")  # JSON: [case, arm] pairs
    parser.add_argument("--done", default="[]")  # JSON: names of cases
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--arms", default="")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--ranks_per_gpu", type=int, default=1)
    options = parser.parse_args()
    begun = time.monotonic()
    gc.disable()  # collected between cases, not in the middle of a measurement

    def log(text):
        print(f"{time.monotonic() - begun:8.2f} {text}", file=sys.stderr, flush=True)

    shared = options.ranks_per_gpu > 1
    torch.cuda.set_device(options.rank // options.ranks_per_gpu)
    torch.manual_seed(1000 + options.rank)
    dist.init_process_group(
        "gloo" if shared else "nccl",
        init_method=f"file://{options.meet}",
        rank=options.rank,
        world_size=options.world,
        timeout=datetime.timedelta(seconds=120),
        **({} if shared else {"device_id": torch.device("cuda", options.rank)}),
    )
    try:
        symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    except Exception as failure:  # newer versions need it no more and say so
        log(f"enable_symm_mem_for_group: {failure}")
    log(f"torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
    bench = Bench(options.rank, options.world, log)
    bench.skip = frozenset(tuple(pair) for pair in json.loads(options.skip))
    absent = {}  # what could not be set up, with the first case that is measured
    windows = [] if shared else rivals.every_windows(bench, WINDOW_BYTES, absent)
    (flashinfer, vllm), tandem = (None, None) if shared else rivals.flashinfer(bench, absent), None
    if options.runtime_dir:
        from tandem_side import TandemSide

        log("joining Tandem's group")
        try:
            # As --testing-engines-per-gpu names the shares of a GPU.
            uuid = f"{bench.uuid}#{options.rank % options.ranks_per_gpu}" if shared else bench.uuid
            tandem = TandemSide(options.runtime_dir, options.rank, options.world, uuid, options.job_key)
        except Exception as failure:
            log(f"no Tandem: {failure}")
        if not bench.agree(tandem is not None):
            tandem = None
        bench.trace = tandem.trace if tandem is not None else None
    done = set(json.loads(options.done))
    for case in cases.chosen(options.world, options.groups.split(","), options.small, options.only):
        if case.name in done or not bench.agree(time.monotonic() - begun < options.seconds):
            continue
        log(f"case {case.name}")
        torch.manual_seed(1000 + options.rank)
        context = arm_parts.Context(bench, windows, tandem, flashinfer, vllm)
        count = case.calls()
        factories, reference, tolerance = arms.BUILDERS[case.kind](context, case)
        factories = [
            (name, make)
            for name, make in factories
            if re.search(options.arms, name) and not (shared and "nccl" in name)
        ]
        if not factories:
            sys.exit(f"no arm of {case.name} has {options.arms}")
        measured, failed, watts = bench.compare(
            case.name, factories, reference, tolerance, count, options.rounds, context.exact
        )
        failed = {**absent, **failed}
        absent = {}
        if options.rank == 0:
            with open(options.out, "a") as out:
                more = {**clock_range(measured), **({"ranks_per_gpu": options.ranks_per_gpu} if shared else {})}
                out.write(json.dumps(result_line(options.world, case, count, measured, failed, watts, more)) + "\n")
        if tandem is not None:
            tandem.end_case()
        del factories, reference, context
        gc.collect()
        log(f"done {case.name}")
    if tandem is not None:
        tandem.close()
    log("finished")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # NCCL's and torch's own teardown may wait for each other


if __name__ == "__main__":
    main()
