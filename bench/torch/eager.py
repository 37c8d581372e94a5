"""Eager collectives of torch.distributed, by Tandem behind install() and by the process group's own backend, in one run.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/eager.py [--device cuda] [--json FILE]

For each collective and size: the CPU's time of a call that only enqueues, and the time from end to end of a row of calls, both in
microseconds, and Tandem's part of the backend's. Both take turns in each round; printed are medians over the rounds. On the CPU a
call ends with its collective, so that both times are one. Results of random calls are compared first.

--only-tandem is for ranks that share a GPU, which NCCL refuses: nothing is compared, and the CPU's times alone mean something.
Under MPS, with `tandemd --testing-engines-per-gpu 2`.
"""

import argparse
import math
import statistics
import time

import tandem.torch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from arms import begin, end, from_all_ranks, write_json

ROUNDS, CALLS = 9, 40


def collectives(count, device):
    """Name -> function of no arguments, for tensors of `count` elements a rank; and what draws their values anew: sums grow."""
    world = dist.get_world_size()
    x = torch.randn(count, device=device).to(torch.bfloat16)
    wide = torch.randn(count * world, device=device).to(torch.bfloat16)
    into, part = torch.empty_like(wide), torch.empty_like(x)
    group = dist.group.WORLD
    functions = {
        "torch.add, for scale": lambda: torch.add(x, x, out=part),
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce async": lambda: dist.all_reduce(x, async_op=True).wait(),
        "all_reduce functional": lambda: functional.wait_tensor(functional.all_reduce(x, "sum", group)),
        "all_gather": lambda: dist.all_gather_into_tensor(into, x),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, wide),
        "all_to_all": lambda: dist.all_to_all_single(into, wide),
        "broadcast": lambda: dist.broadcast(x, 0),
    }
    return functions, x.normal_


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def round_us(function, device, calls):
    """(the CPU's time of a call, the whole time of a call) of one round."""
    dist.barrier()
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(calls):
        function()
    enqueued = time.perf_counter()
    synchronize(device)
    return 1e6 * (enqueued - begun) / calls, 1e6 * (time.perf_counter() - begun) / calls


def measure(function, refresh, device, calls, only_tandem):
    """By "tandem" and by "backend": medians of the CPU's time and of the whole."""
    rounds = {"tandem": []} if only_tandem else {"tandem": [], "backend": []}
    for _ in range(1 + ROUNDS):
        for by, taken in rounds.items():
            tandem.torch.install(collectives=by == "tandem")
            refresh()
            for _ in range(3):
                function()
            taken.append(round_us(function, device, calls))
    return {by: [statistics.median(one[i] for one in taken[1:]) for i in (0, 1)] for by, taken in rounds.items()}


def check(device, calls):
    """Compares random calls on three groups with the backend's."""
    groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
    wrong, draw = 0, torch.Generator().manual_seed(5)
    own = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(calls):
        group = groups[int(torch.randint(3, (1,), generator=draw))]
        kind = int(torch.randint(4, (1,), generator=draw))
        count = int(2 ** (torch.rand(1, generator=draw).item() * 20))
        dtype = (torch.float32, torch.bfloat16, torch.int32)[int(torch.randint(3, (1,), generator=draw))]
        world = dist.get_world_size()
        x = torch.randint(-8, 9, (count * world,), generator=own).to(dtype).to(device)
        results = []
        for taken in (True, False):
            tandem.torch.install(collectives=taken)
            if kind == 0:
                out = x.clone()
                dist.all_reduce(out, group=group)
            elif kind == 1:
                out = torch.empty(count * world, dtype=dtype, device=device)
                dist.all_gather_into_tensor(out, x[:count], group=group)
            elif kind == 2:
                out = torch.empty(count, dtype=dtype, device=device)
                dist.reduce_scatter_tensor(out, x, group=group)
            else:
                out = torch.empty_like(x)
                dist.all_to_all_single(out, x, group=group)
            results.append(out)
        wrong += not torch.equal(*results)
    return sum(from_all_ranks(wrong))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bytes", default="1024,8192,65536,1048576,16777216", help="of one rank's tensor")
    parser.add_argument("--checks", type=int, default=300, help="random calls that are compared")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--only-tandem", action="store_true")
    parser.add_argument("--json")
    given = parser.parse_args()
    begin(given.device, with_nccl=not given.only_tandem)
    tandem.torch.configure(on_unavailable="error")
    checks = 0 if given.only_tandem else given.checks
    wrong = check(given.device, checks)
    rows = []
    if dist.get_rank() == 0:
        print(f"{checks} random calls on three groups: {wrong} wrong")
        print(
            f"{'':22} {'bytes':>9} {'CPU us':>8} {'backend':>8} {'ratio':>6} {'all us':>8} {'backend':>8} {'ratio':>6}"
        )
    for size in (int(text) for text in given.bytes.split(",")):
        functions, refresh = collectives(size // 2, given.device)
        for name, function in functions.items():
            times = measure(function, refresh, given.device, given.calls, given.only_tandem)
            row = {"collective": name, "bytes": size, **times}
            rows.append(row)
            if dist.get_rank() == 0:
                (cpu, whole), (cpu_of_backend, whole_of_backend) = times["tandem"], times.get("backend", [math.nan] * 2)
                print(
                    f"{name:22} {size:9} {cpu:8.1f} {cpu_of_backend:8.1f} {cpu / cpu_of_backend:6.2f}"
                    f" {whole:8.1f} {whole_of_backend:8.1f} {whole / whole_of_backend:6.2f}",
                    flush=True,
                )
    if dist.get_rank() == 0:
        print(tandem.torch.report())
    write_json(given.json, {"wrong": wrong, "rows": rows})
    end()


if __name__ == "__main__":
    main()
