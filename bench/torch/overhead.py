"""The CPU time of an eager op call of torch.ops.tandem above the library's launch.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 1 bench/torch/overhead.py [--device cuda] [--families all] [--json FILE]

One rank, so that nobody waits for another. Printed are medians in microseconds: of the whole op; of the time in the library's
functions in the same calls, launch and on the host backend wait; and of their difference. The difference has the copies to and
from registered memory that CPU tensors need. On CUDA both only enqueue, and the GPU is waited for between the rounds. "Recorded" is
a forward whose gradient is wanted, with autograd's part. --families says which calls a plan of any number of rows serves: those of
configure(families=). "Other rows" are such calls whose number of rows is another than in the call before. They stand there where the
ranks' own streams run the plans, which --families asks for.

TANDEM_TORCH_KERNELS=python measures the kernels in Python. They do not measure the library's time: "library" is then a launch
of the same plan by ctypes, in separate calls.

The last lines are for scale: ops of torch's own; what the way in and out of a call costs in Python; and whole ops with a library
whose functions return at once, so that no other process disturbs the caches.
"""

import argparse
import ctypes
import itertools
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


def medians_us(calls):
    """{name: (context, function)} -> {name: medians over rounds of a call's time, of its part in the library, and of the
    difference}.

    All take turns in each round, so that whatever else the machine does falls on all of them. A first round warms up."""
    rounds = {name: [] for name in calls}
    for _ in range(1 + ROUNDS):
        for name, (context, function) in calls.items():
            with context():
                rounds[name].append(round_us(function))
    return {
        name: (
            statistics.median(whole for whole, _ in taken[1:]),
            statistics.median(inside for _, inside in taken[1:]),
            statistics.median(whole - inside for whole, inside in taken[1:]),
        )
        for name, taken in rounds.items()
    }


def bare_call(attached, operands):
    """The launch of the plan that was used last, as a program in C makes it; on the host backend, its wait too."""
    prepared = attached.plans.prepared()[-1]
    library, plan, count = _c.library(), prepared.plan._open(), prepared._count
    options = _c.LaunchOptions(ctypes.sizeof(_c.LaunchOptions), 0, None, prepared.rows)
    if attached.device_type == "cuda":
        pointers = (_c.Pointer * count)(*[tensor.data_ptr() for tensor in operands])
        stream = torch.cuda.current_stream().cuda_stream
        return lambda: library.raise_status(
            library.launch_cuda_pointers_with_options(plan, stream, pointers, count, options)
        )
    stream, bindings = attached.group.client.host_stream()._open(), prepared._bindings

    def launch_and_wait():
        library.raise_status(library.launch_with_options(plan, stream, bindings, count, options))
        prepared.wait()

    return launch_and_wait


def measured(calls, attached, operands):
    """{case: (op, library, above it)} in microseconds. operands: of the C calls that stand for the library's part, by case."""
    for context, call in calls.values():
        with context():
            call()  # prepares
    if _native.kernels is None:
        found = {}
        for name, each in calls.items():
            with each[0]():
                each[1]()  # used last
            timed = medians_us({"op": each, "bare": (each[0], bare_call(attached, operands[name]))})
            found[name] = (timed["op"][0], timed["bare"][0], timed["op"][0] - timed["bare"][0])
        return found
    before = _native.counts()
    figures = medians_us(calls)
    after = _native.counts()
    if after.handed_on != before.handed_on:
        raise SystemExit(f"{after.handed_on - before.handed_on} calls ran in Python")
    return figures


def other_rows(a, cases):
    """Calls of 1 to all rows of `a` in turn, by the families' plans."""
    made = {}
    for case in ("all_reduce", "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"):
        calls = [cases(a[:rows])[case] for rows in range(1, a.shape[0] + 1)]
        for call in calls:
            call()  # prepares
        turn = itertools.cycle(calls)
        made[f"{case}, other rows"] = (torch.no_grad, lambda turn=turn: next(turn)())
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--families", choices=("none", "collectives", "all"), help="the ops that families serve, in clients"
    )
    parser.add_argument("--json", help="a file that gets a line of JSON for each case")
    args = parser.parse_args()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    if args.families is not None:
        tandem.torch.configure(families=args.families, placement="client")
    attached = tandem.torch.attach(group, on_unavailable="error")
    print(f"{attached.group}, torch {torch.__version__}; medians of {ROUNDS} rounds of {CALLS} calls, us")
    a, b = torch.randn(16, 64, device=args.device), torch.randn(64, 64, device=args.device)
    leaf = a.clone().requires_grad_()
    c, out = torch.empty(16, 64, device=args.device), torch.empty_like(a)
    ops, name = torch.ops.tandem, group.group_name

    def cases(x):
        return {
            "all_reduce": lambda: ops.all_reduce(x, "sum", name),
            "all_reduce.out": lambda: ops.all_reduce.out(x, "sum", name, out=out),
            "all_gather_matmul": lambda: ops.all_gather_matmul(x, [b], 0, name, return_A=False),
            "matmul_reduce_scatter": lambda: ops.matmul_reduce_scatter(x, b, "sum", 0, name),
            "matmul_all_reduce": lambda: ops.matmul_all_reduce(x, b, "sum", name),
        }

    plain = {case: (torch.no_grad, call) for case, call in cases(a).items()}
    inference = {case + ", inference": (torch.inference_mode, call) for case, call in cases(a).items()}
    recorded = {case + ", recorded": (torch.enable_grad, call) for case, call in cases(leaf).items()}
    del recorded["all_reduce.out, recorded"]  # it has no gradients
    calls = plain | inference | recorded
    if args.families == "all" and _native.kernels is not None:
        calls |= other_rows(a, cases)
    rows = []
    if _native.kernels is not None:
        _native.kernels.measure(1)
    operands = {case: (a, out) if case.startswith("all_reduce") else (a, b, c) for case in calls}
    for case, (whole, alone, above) in measured(calls, attached, operands).items():
        rows.append({"case": case, "op_us": whole, "library_us": alone, "above_us": above})
        print(f"{case:32} op {whole:8.1f}   library {alone:8.1f}   above it {above:6.1f}")
    scale = {
        "torch.add(out=)": (torch.no_grad, lambda: torch.add(a, a, out=out)),
        "torch.empty": (torch.no_grad, lambda: torch.empty(16, 64, device=args.device)),
        "guard of the call": (torch.no_grad, _native.guarded(lambda: None)),
    }
    taken = medians_us(scale)
    if _native.kernels is not None:
        _native.kernels.launch_nothing()
        taken |= medians_us({f"{case}, no launch": call for case, call in (plain | recorded).items()})
    for case, (took, _, _) in taken.items():
        rows.append({"case": case, "op_us": took})
        print(f"{case:42} op {took:8.1f}")
    if args.json:
        with open(args.json, "a") as file:
            file.writelines(json.dumps({"benchmark": "overhead", "device": args.device, **row}) + "\n" for row in rows)
    tandem.torch.detach(group)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
