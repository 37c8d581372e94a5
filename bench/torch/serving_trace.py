"""A server's trace, mixed: collectives, norms and products in any order, each with another number of rows, eager and captured.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/serving_trace.py [--device cuda] [--calls 100000] [--json FILE]

Numbers of rows are log-uniform up to a bound, and alike on all ranks. On GPUs some of them are captured in graphs before any call has
had them, and each fourth call replays one. Rank 0 prints how long the attachment and the families took, how many plans all ranks met
for and how many calls went through Python after that, and how many results were wrong. Every result is compared: sums and products
by their bits, norms within bf16's rounding.
"""

import argparse
import json
import os
import random
import time

import tandem.torch
import torch
import torch.distributed as dist
from tandem.torch import _native

OPS = torch.ops.tandem
EPSILON = 1e-5


class Data:
    """This rank's operands for the greatest number of rows, and the results of all ops. Whole numbers: bf16 holds all sums of them."""

    def __init__(self, rows, columns, device):
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        parts = [self._whole(rows, columns, seed).to(device) for seed in range(self.world)]
        self.mine, self.total = parts[self.rank], torch.stack(parts).float().sum(0).bfloat16()
        self.parts = parts
        self.residual = self._whole(rows, columns, 100).to(device)
        self.norm_weight = torch.ones(columns, dtype=torch.bfloat16, device=device)
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(7))
        self.order = order.to(device)
        self.weight = torch.eye(columns, dtype=torch.bfloat16)[:, order].contiguous().to(device)
        summed = self.residual.float() + self.total.float()
        self.normed = summed * torch.rsqrt(summed.pow(2).mean(-1, keepdim=True) + EPSILON)

    @staticmethod
    def _whole(rows, columns, seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-8, 9, (rows, columns), generator=generator).bfloat16()


def ops_of(data, name):
    """{op: (its call of some rows, what is wrong with the result)}. Rows of a scatter are those of a rank's result."""
    world, rank = data.world, data.rank

    def differs(result, wanted):
        return result.shape != wanted.shape or not torch.equal(result, wanted)

    def gathered(rows):
        return torch.cat([part[:rows] for part in data.parts])[:, data.order]

    def scattered(rows):
        return data.total[: rows * world][rank * rows : (rank + 1) * rows][:, data.order]

    return {
        "all_reduce": (
            lambda rows: OPS.all_reduce(data.mine[:rows], "sum", name),
            lambda rows, result: differs(result, data.total[:rows]),
        ),
        "all_reduce_rms_norm": (
            lambda rows: OPS.all_reduce_rms_norm(
                data.mine[:rows], data.residual[:rows].clone(), data.norm_weight, EPSILON, name
            ),
            lambda rows, result: not torch.allclose(result.float(), data.normed[:rows], rtol=0.02, atol=0.02),
        ),
        "all_gather_matmul": (
            lambda rows: OPS.all_gather_matmul(data.mine[:rows], [data.weight], 0, name, return_A=False)[1][0],
            lambda rows, result: differs(result, gathered(rows)),
        ),
        "matmul_reduce_scatter": (
            lambda rows: OPS.matmul_reduce_scatter(data.mine[: rows * world], data.weight, "sum", 0, name),
            lambda rows, result: differs(result, scattered(rows)),
        ),
        "matmul_all_reduce": (
            lambda rows: OPS.matmul_all_reduce(data.mine[:rows], data.weight, "sum", name),
            lambda rows, result: differs(result, data.total[:rows][:, data.order]),
        ),
    }


def prepare(data, name, most):
    """Prepares the families of all ops. Returns the seconds that this and the attachment took."""
    dist.barrier()
    begun = time.perf_counter()
    tandem.torch.attach(name)
    tandem.torch.prepare("all_reduce", data.mine, "sum", name, max_rows=most)
    residual = data.residual
    tandem.torch.prepare("all_reduce_rms_norm", data.mine, residual, data.norm_weight, EPSILON, name, max_rows=most)
    tandem.torch.prepare("all_gather_matmul", data.mine, [data.weight], 0, name, max_rows=most, return_A=False)
    tandem.torch.prepare("matmul_reduce_scatter", data.mine, data.weight, "sum", 0, name, max_rows=most)
    tandem.torch.prepare("matmul_all_reduce", data.mine, data.weight, "sum", name, max_rows=most)
    return time.perf_counter() - begun


class Captured:
    """Graphs of calls with numbers of rows that no call has had."""

    def __init__(self, ops, draw, count):
        self.graphs = []
        for _ in range(count):
            op, rows = draw()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = ops[op][0](rows)
            self.graphs.append((op, rows, graph, result))

    def replay(self, trace):
        op, rows, graph, result = trace.choice(self.graphs)
        result.zero_()
        graph.replay()
        return op, rows, result


def run(args, data, ops, plans):
    """The figures of the trace."""
    trace, wrong, replays = random.Random(7), dict.fromkeys(ops, 0), 0

    def draw():
        op = trace.choice(sorted(ops))
        most = args.max_rows // data.world if op == "matmul_reduce_scatter" else args.max_rows
        return op, max(1, int(most ** trace.random()))

    captured = Captured(ops, draw, args.captured) if args.device == "cuda" and args.captured else None
    seen, before, served = set(), plans._made, _native.counts().launched if _native.kernels is not None else 0
    begun = time.perf_counter()
    for call in range(args.calls):
        if captured is not None and call % 4 == 3:
            op, rows, result = captured.replay(trace)
            replays += 1
        else:
            op, rows = draw()
            result = ops[op][0](rows)
            seen.add((op, rows))
        wrong[op] += int(ops[op][1](rows, result))
    eager = args.calls - replays
    launched = _native.counts().launched - served if _native.kernels is not None else 0
    return {
        "calls": args.calls,
        "seconds": time.perf_counter() - begun,
        "replays": replays,
        "graphs": 0 if captured is None else len(captured.graphs),
        "rows": len(seen),
        "meetings": plans._made - before,
        "by_python": eager - launched,
        "wrong": wrong,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=10000, help="in all (default: 10000)")
    parser.add_argument("--captured", type=int, default=60, help="graphs, of GPUs (default: 60)")
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--max-rows", type=int, default=8192)
    parser.add_argument("--json", help="a file that gets the figures")
    args = parser.parse_args()
    device = args.device
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        device = f"cuda:{torch.cuda.current_device()}"
    dist.init_process_group("gloo")
    name = dist.group.WORLD.group_name
    placement = "auto" if args.device == "cuda" else "client"
    tandem.torch.configure(families="all", max_rows=args.max_rows, placement=placement, on_unavailable="error")
    data = Data(args.max_rows, args.columns, device)
    took = prepare(data, name, args.max_rows)
    ops = ops_of(data, name)
    figures = run(args, data, ops, tandem.torch.attach(name).plans) | {"prepare_seconds": took, "device": args.device}
    if dist.get_rank() == 0:
        print(
            f"{figures['calls']} calls in {figures['seconds']:.1f} s, {figures['replays']} of them replays of {figures['graphs']} graphs; "
            f"{figures['rows']} pairs of op and rows; attached and prepared in {took:.2f} s\n"
            f"after that {figures['meetings']} meetings, {figures['by_python']} calls by Python, wrong: {figures['wrong']}",
            flush=True,
        )
        if args.json:
            with open(args.json, "w") as file:
                json.dump(figures, file)
    tandem.torch.synchronize()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
