"""What an eager op call of torch.ops.tandem costs the CPU above the library's launch.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 1 bench/torch/overhead.py [--device cuda] [--json FILE]

One rank, so that nobody waits for another. Printed are medians in microseconds: of the whole op; of the same plan by bare calls of
the C interface; of their difference; and of an op of torch's own, for scale. On the host backend an op launches and waits, and the
difference has the copies to and from registered memory that CPU tensors need. On CUDA both only enqueue, and the GPU is waited for
between the rounds.
"""

import argparse
import json
import os
import statistics
import sys
import time

import tandem.torch
import torch
import torch.distributed as dist
from tandem import _c

ROUNDS, CALLS = 15, 100


def median_us(function):
    """The median over rounds of a call's time."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(CALLS):
            function()
        times.append((time.perf_counter() - begun) / CALLS * 1e6)
        tandem.torch.synchronize()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    return statistics.median(times)


def bare_call(attached, operands):
    """The launch of the plan that was used last, as a program in C makes it; on the host backend, its wait too."""
    prepared = next(reversed(attached.plans._plans.values()))
    library, plan, count = _c.library(), prepared.plan._open(), prepared._count
    if attached.device_type == "cuda":
        pointers = (_c.Pointer * count)(*[tensor.data_ptr() for tensor in operands])
        stream = torch.cuda.current_stream().cuda_stream
        return lambda: library.raise_status(library.launch_cuda_pointers(plan, stream, pointers, count, 0, None))
    stream, bindings = attached.group.client.host_stream()._open(), prepared._bindings

    def launch_and_wait():
        library.raise_status(library.launch(plan, stream, bindings, count, 0, None))
        prepared.wait()

    return launch_and_wait


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", help="a file that gets a line of JSON for each case")
    args = parser.parse_args()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    attached = tandem.torch.attach(group, on_unavailable="error")
    print(f"{attached.group}, torch {torch.__version__}; medians of {ROUNDS} rounds of {CALLS} calls, us")
    a, b = torch.randn(16, 64, device=args.device), torch.randn(64, 64, device=args.device)
    c, out = torch.empty(16, 64, device=args.device), torch.empty_like(a)
    ops, name = torch.ops.tandem, group.group_name
    cases = {
        "all_reduce": (lambda: ops.all_reduce(a, "sum", name), (a, out)),
        "all_reduce.out": (lambda: ops.all_reduce.out(a, "sum", name, out=out), (a, out)),
        "all_gather_matmul": (lambda: ops.all_gather_matmul(a, [b], 0, name, return_A=False), (a, b, c)),
        "matmul_reduce_scatter": (lambda: ops.matmul_reduce_scatter(a, b, "sum", 0, name), (a, b, c)),
    }
    rows = []
    with torch.no_grad():
        for case, (call, operands) in cases.items():
            call()
            whole, alone = median_us(call), median_us(bare_call(attached, operands))
            rows.append({"case": case, "op_us": whole, "library_us": alone, "above_us": whole - alone})
            print(f"{case:24} op {whole:8.1f}   library {alone:8.1f}   above it {whole - alone:6.1f}")
        added = median_us(lambda: torch.add(a, a, out=out))
        rows.append({"case": "torch.add(out=)", "op_us": added})
        print(f"{'torch.add(out=)':24} op {added:8.1f}")
    if args.json:
        with open(args.json, "a") as file:
            file.writelines(json.dumps({"benchmark": "overhead", "device": args.device, **row}) + "\n" for row in rows)
    tandem.torch.detach(group)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
