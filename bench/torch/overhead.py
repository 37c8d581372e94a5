"""What an eager op call of torch.ops.tandem costs the CPU above the library's launch.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 1 bench/torch/overhead.py [--device cuda] [--json FILE]

One rank, so that nobody waits for another. Printed are medians in microseconds: of the whole op; of the time in the library's
functions in the same calls, launch and on the host backend wait; and of their difference. The difference has the copies to and
from registered memory that CPU tensors need. On CUDA both only enqueue, and the GPU is waited for between the rounds. "Recorded" is
a forward whose gradient is wanted, with autograd's part.

TANDEM_TORCH_KERNELS=python measures the kernels in Python. They do not measure the library's time: "library" is then a launch of the
same plan by ctypes, in calls of its own.

The last lines are for scale: ops of torch's own; what the way in and out of a call costs in Python; and whole ops with a library
whose functions return at once, so that no other process disturbs the caches.
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
from tandem.torch import _native

ROUNDS, CALLS = 15, 100


def round_us(function):
    """(a call's time, its part in the library) of one round."""
    inside = _native.counts().library_ns
    begun = time.perf_counter()
    for _ in range(CALLS):
        function()
    took = (time.perf_counter() - begun) * 1e6
    inside = (_native.counts().library_ns - inside) / 1e3
    tandem.torch.synchronize()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return took / CALLS, inside / CALLS


def medians_us(function):
    """Medians over rounds: of a call's time, of its part in the library, and of the difference."""
    rounds = [round_us(function) for _ in range(ROUNDS)]
    return (
        statistics.median(whole for whole, _ in rounds),
        statistics.median(inside for _, inside in rounds),
        statistics.median(whole - inside for whole, inside in rounds),
    )


def bare_call(attached, operands):
    """The launch of the plan that was used last, as a program in C makes it; on the host backend, its wait too."""
    prepared = attached.plans.prepared()[-1]
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


def measured(call, attached, operands):
    """(op, library, above it) in microseconds."""
    call()  # prepares
    if _native.kernels is None:
        whole, alone = medians_us(call)[0], medians_us(bare_call(attached, operands))[0]
        return whole, alone, whole - alone
    before = _native.counts()
    figures = medians_us(call)
    after = _native.counts()
    if after.handed_on != before.handed_on:
        raise SystemExit(f"{after.handed_on - before.handed_on} calls ran in Python")
    return figures


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
        "matmul_all_reduce": (lambda: ops.matmul_all_reduce(a, b, "sum", name), (a, b, c)),
    }
    rows = []
    if _native.kernels is not None:
        _native.kernels.measure(1)
    for mode, context in (
        ("", torch.no_grad),
        (", inference", torch.inference_mode),
        (", recorded", torch.enable_grad),
    ):
        recorded = context is torch.enable_grad
        a.requires_grad_(recorded)
        with context():
            for case, (call, operands) in cases.items():
                if recorded and case.endswith(".out"):  # it has no gradients
                    continue
                whole, alone, above = measured(call, attached, operands)
                rows.append({"case": case + mode, "op_us": whole, "library_us": alone, "above_us": above})
                print(f"{case + mode:32} op {whole:8.1f}   library {alone:8.1f}   above it {above:6.1f}")
    a.requires_grad_(False)
    with torch.no_grad():
        scale = {
            "torch.add(out=)": lambda: torch.add(a, a, out=out),
            "torch.empty": lambda: torch.empty(16, 64, device=args.device),
            "guard of the call": _native.guarded(lambda: None),
        }
        if _native.kernels is not None:
            scale |= {f"{case}, no launch": call for case, (call, _) in cases.items()}
        for case, call in scale.items():
            if case.endswith("no launch"):
                _native.kernels.launch_nothing()
            took = medians_us(call)[0]
            rows.append({"case": case, "op_us": took})
            print(f"{case:42} op {took:8.1f}")
    if _native.kernels is not None:
        a.requires_grad_(True)
        for case, (call, _) in cases.items():
            if not case.endswith(".out"):
                took = medians_us(call)[0]
                rows.append({"case": f"{case}, recorded, no launch", "op_us": took})
                print(f"{case + ', recorded, no launch':42} op {took:8.1f}")
    if args.json:
        with open(args.json, "a") as file:
            file.writelines(json.dumps({"benchmark": "overhead", "device": args.device, **row}) + "\n" for row in rows)
    tandem.torch.detach(group)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
