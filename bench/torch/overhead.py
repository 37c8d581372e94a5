"""What an eager op call of torch.ops.tandem costs the CPU above the library's launch, on the host backend.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 1 bench/torch/overhead.py

One rank, so that nobody waits for another. Printed are medians in microseconds: of the whole op; of the same plan by bare calls of
the C interface (launch and wait); of their difference, in which lie the dispatcher, the plan's look-up, and the copies to and from
registered memory that CPU tensors need; and of an op of torch's own, for scale.
"""

import os
import statistics
import sys
import time

import tandem.torch
import torch
import torch.distributed as dist
from tandem import _c

ROUNDS, CALLS = 15, 200


def median_us(function):
    """The median over rounds of a call's time."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(CALLS):
            function()
        times.append((time.perf_counter() - begun) / CALLS * 1e6)
    return statistics.median(times)


def main():
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    attached = tandem.torch.attach(group, on_unavailable="error")
    print(f"{attached.group}, torch {torch.__version__}; medians of {ROUNDS} rounds of {CALLS} calls, us")
    a, b = torch.randn(16, 64), torch.randn(64, 64)
    ops, name = torch.ops.tandem, group.group_name
    cases = {
        "all_reduce": lambda: ops.all_reduce(a, "sum", name),
        "all_gather_matmul": lambda: ops.all_gather_matmul(a, [b], 0, name, return_A=False),
        "matmul_reduce_scatter": lambda: ops.matmul_reduce_scatter(a, b, "sum", 0, name),
    }
    with torch.no_grad():
        for case, call in cases.items():
            call()
            prepared = next(reversed(attached.plans._plans.values()))
            library, stream = _c.library(), attached.group.client.host_stream()._open()
            plan, bindings, count = prepared.plan._open(), prepared._bindings, prepared._count

            def bare():
                library.raise_status(library.launch(plan, stream, bindings, count, 0, None))
                prepared.wait()

            whole, alone = median_us(call), median_us(bare)
            print(f"{case:24} op {whole:8.1f}   library {alone:8.1f}   above it {whole - alone:6.1f}")
        out = torch.empty_like(a)
        print(f"{'torch.add(out=)':24} op {median_us(lambda: torch.add(a, a, out=out)):8.1f}")
    tandem.torch.detach(group)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
