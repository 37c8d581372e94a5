"""All-reduces with a residual and a norm that is quantised to fp8, beside the norm in bf16 and a quantisation of its own kernel.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/quantized_norms.py --device cuda [--json FILE]

Arms: `bf16` is the norm alone. `static` has a given scale, `rows` makes one a row, `blocks` one for 128 columns. `apart` is `bf16`
and then a compiled quantisation by rows. On GPUs each arm is a graph of 20 calls, and arms take turns in each round. Printed are
microseconds of a call, the slowest rank's, median and quartiles over rounds, and the ratio to `bf16` and to `apart` of the same
round. Before that each fp8 element and scale is compared with the quantised norm of `bf16`: a difference ends the script. With
--device cpu, a trial without figures of interest, nothing is captured.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from arms import begin, end, from_all_ranks, write_json

EPSILON, MAX_E4M3, LEAST_AMAX, BLOCK = 1e-6, 448.0, 1 / 512, 128
CALLS = 20  # of a graph


def scales_of(norm, columns):
    """The scale of each `columns` columns of a row, as the ops make it. Divided by a tensor: by a number torch multiplies."""
    most = norm.float().abs().unflatten(-1, (-1, columns)).amax(-1).clamp(min=LEAST_AMAX)
    return most / torch.full((1,), MAX_E4M3, device=norm.device)


def quantized(norm, scales):
    return (norm.float() / scales).clamp(-MAX_E4M3, MAX_E4M3).to(torch.float8_e4m3fn)


class Case:
    """The operands of one number of rows, and the arms: functions without arguments, which work on them in place."""

    def __init__(self, rows, columns, device):
        name = dist.group.WORLD.group_name
        bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
        torch.manual_seed(dist.get_rank())
        self.x = torch.randn(rows, columns, device=device, dtype=bf16)
        torch.manual_seed(1000)  # residual and weight are alike on all ranks
        self.residual0 = torch.randn(rows, columns, device=device, dtype=bf16)
        self.weight = 1 + 0.1 * torch.randn(columns, device=device, dtype=bf16)
        self.residual, self.norm = self.residual0.clone(), torch.empty_like(self.x)
        self.out = torch.empty(rows, columns, device=device, dtype=fp8)
        self.scale = torch.full((1,), 0.01, device=device)
        self.by_row = torch.empty(rows, 1, device=device)
        # Column by column, as matrix kernels take it.
        self.by_block = torch.empty(columns // BLOCK, (rows + 3) // 4 * 4, device=device).t()[:rows]
        ops, given = torch.ops.tandem, (self.x, self.residual, self.weight)
        compiled = torch.compile(lambda norm: quantized(norm, scales_of(norm, norm.shape[-1])), dynamic=False)

        def norm():
            ops.all_reduce_rms_norm.out(*given, EPSILON, name, out=self.norm)

        def apart():
            norm()
            return compiled(self.norm)

        dynamic = ops.all_reduce_rms_norm_dynamic_fp8.out
        self.arms = {
            "bf16": norm,
            "static": lambda: ops.all_reduce_rms_norm_static_fp8.out(*given, self.scale, EPSILON, name, out=self.out),
            "rows": lambda: dynamic(*given, self.by_row, EPSILON, name, out=self.out),
            "blocks": lambda: dynamic(*given, self.by_block, EPSILON, name, out=self.out),
            "apart": apart,
        }

    def check(self):
        """Raises where an element or a scale is another than that of the norm in bf16."""
        self.residual.copy_(self.residual0)
        self.arms["bf16"]()
        for arm, made, columns in (
            ("static", None, 0),
            ("rows", self.by_row, self.x.shape[1]),
            ("blocks", self.by_block, BLOCK),
        ):
            self.residual.copy_(self.residual0)
            self.out.view(torch.uint8).zero_()
            self.arms[arm]()
            scales = self.scale if made is None else scales_of(self.norm, columns)
            if made is not None and not torch.equal(made, scales):
                raise AssertionError(f"{tuple(self.x.shape)}, {arm}: another scale")
            each = scales if made is None else scales.repeat_interleave(columns, -1)
            wrong = int((self.out.view(torch.uint8) != quantized(self.norm, each).view(torch.uint8)).sum())
            if wrong:
                raise AssertionError(f"{tuple(self.x.shape)}, {arm}: {wrong} elements differ")


def captured(run):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    return graph.replay


def seconds_of(call, on_gpu):
    """The slowest rank's. A replay before the timed one lets the ranks begin together."""
    dist.barrier()
    if not on_gpu:
        begun = time.perf_counter()
        call()
        return max(from_all_ranks(time.perf_counter() - begun))
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    begun.record()
    call()
    ended.record()
    torch.cuda.synchronize()
    return max(from_all_ranks(begun.elapsed_time(ended) / 1000 / CALLS))


def measured(case, rounds, on_gpu):
    """{arm: [microseconds of a call, by round]}"""
    for run in case.arms.values():  # compiles and prepares
        run()
    calls = {arm: captured(run) if on_gpu else run for arm, run in case.arms.items()}
    found = {arm: [] for arm in calls}
    for _ in range(rounds):
        for arm, call in calls.items():
            found[arm].append(1e6 * seconds_of(call, on_gpu))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", default="1,8,64,512,2048", help="by commas")
    parser.add_argument("--columns", type=int, default=8192, help="a multiple of 128")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="a file that gets all rows")
    given = parser.parse_args()
    if given.columns % BLOCK:
        parser.error(f"--columns is a multiple of {BLOCK}")
    begin(given.device, with_nccl=False)
    table = []
    for rows in map(int, given.rows.split(",")):
        case = Case(rows, given.columns, given.device)
        case.check()
        times = measured(case, given.rounds, given.device == "cuda")
        for arm, own in times.items():
            low, middle, high = statistics.quantiles(own, n=4, method="inclusive") if len(own) > 1 else 3 * own
            ratios = [
                statistics.median(a / b for a, b in zip(own, times[other], strict=True)) for other in ("bf16", "apart")
            ]
            table.append({"rows": rows, "arm": arm, "us": middle, "quartiles": [low, high], "ratios": ratios})
            if dist.get_rank() == 0:
                spread = f"[{low:.2f}, {high:.2f}]"
                print(
                    f"{rows:6} {arm:7} {middle:9.2f} {spread:22} bf16 x {ratios[0]:.2f}  apart x {ratios[1]:.2f}",
                    flush=True,
                )
    write_json(given.json, table)
    end()


if __name__ == "__main__":
    main()
