"""A server's trace by torch.ops.tandem: numbers of rows that change from call to call, log-uniform up to a bound.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/serving.py [--device cuda] [--calls 2000] [--json FILE]

Printed for each op, as rank 0 has it: the numbers of rows that were new; the CPU time in microseconds of a first call with new rows
and of a later one, medians and 95th percentiles; how many plans all ranks met for; and whether every result was right. --families
none shows the same with a plan for each number of rows.
"""

import argparse
import json
import os
import random
import statistics
import time

import tandem.torch
import torch
import torch.distributed as dist

OPS = torch.ops.tandem


def percentile(times, part):
    """In microseconds; 0 of none."""
    return sorted(times)[min(len(times) - 1, int(part * len(times)))] if times else 0.0


def cases(name, world, columns, device):
    """{case: (call of some rows, whether its result is right)}. Rank r's rows are all r + 1."""
    rank = dist.get_rank()
    total = world * (world + 1) / 2
    weight = torch.eye(columns, dtype=torch.bfloat16, device=device)
    most = torch.full((8192, columns), rank + 1.0, dtype=torch.bfloat16, device=device)
    residual = most.clone()
    norm_weight = torch.ones(columns, dtype=torch.bfloat16, device=device)
    return {
        "all_reduce": (lambda rows: OPS.all_reduce(most[:rows], "sum", name), total),
        "all_reduce_rms_norm": (
            lambda rows: OPS.all_reduce_rms_norm(most[:rows], residual[:rows], norm_weight, 0.0, name),
            1.0,
        ),
        "all_gather": (lambda rows: OPS.all_gather(most[:rows], 0, name)[:rows], 1.0),
        "matmul_all_reduce": (lambda rows: OPS.matmul_all_reduce(most[:rows], weight, "sum", name), total),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=2000, help="of each op (default: 2000)")
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--max-rows", type=int, default=8192)
    parser.add_argument("--families", choices=("none", "collectives", "all"), default="all")
    parser.add_argument("--json", help="a file that gets a line of JSON for each op")
    args = parser.parse_args()
    device = args.device
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        device = f"cuda:{torch.cuda.current_device()}"
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    world, name = dist.get_world_size(), dist.group.WORLD.group_name
    placement = "auto" if args.device == "cuda" else "client"
    tandem.torch.configure(families=args.families, max_rows=args.max_rows, placement=placement, on_unavailable="error")
    plans = tandem.torch.attach(name).plans
    for case, (call, expected) in cases(name, world, args.columns, device).items():
        trace = random.Random(7)
        seen, first, later, right, before = set(), [], [], True, plans._made
        for _ in range(args.calls):
            rows = max(1, int(args.max_rows ** trace.random()))
            begun = time.perf_counter()
            result = call(rows)
            (later if rows in seen else first).append((time.perf_counter() - begun) * 1e6)
            seen.add(rows)
            right = right and result.shape[0] == rows and bool((result == expected).all())
        line = {
            "op": case,
            "device": args.device,
            "families": args.families,
            "calls": args.calls,
            "new_rows": len(seen),
            "first_us": statistics.median(first),
            "first_p95_us": percentile(first, 0.95),
            "later_us": statistics.median(later),
            "later_p95_us": percentile(later, 0.95),
            "meetings": plans._made - before,
            "right": right,
        }
        if dist.get_rank() == 0:
            print(
                f"{case:22} {len(seen):5} new rows: first {line['first_us']:8.1f} us (p95 {line['first_p95_us']:9.1f}), later "
                f"{line['later_us']:7.1f} us (p95 {line['later_p95_us']:8.1f}), {line['meetings']} meetings, "
                f"{'all right' if right else 'WRONG'}",
                flush=True,
            )
            if args.json:
                with open(args.json, "a") as file:
                    file.write(json.dumps(line) + "\n")
    tandem.torch.synchronize()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
