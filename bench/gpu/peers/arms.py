"""The arms of every case: what PyTorch, NCCL's windows, FlashInfer and Tandem do with the same operands. A builder returns
(factories, reference, tolerance): factories are (name, function that makes the Arm), the reference is what operand set 0
must give."""

import exact
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from arm_parts import (
    BF16,
    SETS,
    TOLERANCE,
    beside_copies,
    client_arms,
    ordinary_arm,
    plain,
    pushes,
    tandem_arms,
    writing,
)
from flashinfer_side import flashinfer_arms
from measure import Arm
from norm_arms import all_reduce_norm
from scaled_arms import all_gather_scaled_matmul, scaled_matmul_reduce_scatter
from vllm_side import vllm_arms


def all_gather_matmul(context, case):
    m, n, k, world = case.m, case.n, case.k, context.world
    a, b = context.random(m // world, k), [weight.t() for weight in context.random(n, k)]
    full, out = context.empty(m, k), context.empty(m, n)

    def unfused(i):
        dist.all_gather_into_tensor(full[i], a[i])
        torch.mm(full[i], b[i], out=out[i])

    unfused(0)
    reference = out[0].clone()
    for i in range(SETS):
        unfused(i)
    context.exact = exact.of(context, exact.gathered, a[0], b[0])
    own = context.empty(m, n) if context.tandem else None

    def on_windows(name, windows):
        shards, whole = context.window_copies(windows, a), context.window_empty(windows, m, k)

        def call(i):
            windows.all_gather(whole[i], shards[i])
            torch.mm(whole[i], b[i], out=out[i])

        return Arm(name, writing(out, call))

    def fused(i):
        return torch.ops.symm_mem.fused_all_gather_matmul(a[i % SETS], [b[i % SETS]], 0, context.group)[1][0]

    arms = [
        ("gemm", lambda: Arm("gemm", writing(out, lambda i: torch.mm(full[i], b[i], out=out[i])))),
        ("nccl+cublas", lambda: Arm("nccl+cublas", writing(out, unfused))),
        ("nccl+cublas stream", lambda: Arm("nccl+cublas stream", writing(out, unfused), graph=False)),
        ("pytorch fused", lambda: Arm("pytorch fused", fused)),
        beside_copies(context, lambda i: torch.mm(full[i], b[i], out=out[i]), a[0].numel()),
    ]
    arms += context.each_nccl("windows+cublas", on_windows)
    arms += tandem_arms(
        context,
        case.name,
        "all_gather_matmul",
        {"a": a, "b": b, "c": own},
        own,
        plain("unfused", "nccl", "pipeline", "ring", "fused", "low_latency"),
    )
    arms += client_products(context, case, "all_gather_matmul", {"a": a, "b": b}, (m, n))
    return arms, reference, TOLERANCE


def client_products(context, case, op, operands, shape):
    """Products before or behind a kernel on the caller's stream, or in it ("fused")."""
    if not context.tandem:
        return []
    out = context.empty(*shape)
    choices = [(name, name) for name in ("unfused", "low_latency", "fused", "auto")]
    return client_arms(context, case.name, op, {**operands, "c": out}, out, choices)


def all_reduce_compositions(context, a, b, out):
    """PyTorch has no fused matmul -> all-reduce; these are what it can be put together from."""
    ops, shape = torch.ops.symm_mem, out[0].shape

    def two_shot():
        sums = [symm_mem.empty(*shape, device=context.bench.device, dtype=BF16) for _ in range(SETS)]
        for tensor in sums:
            symm_mem.rendezvous(tensor, context.group)

        def call(i):
            torch.mm(a[i], b[i], out=sums[i])
            ops.two_shot_all_reduce_(sums[i], "sum", context.group)

        return Arm("cublas+pytorch two-shot", writing(sums, call))

    def scattered_and_gathered(i):
        part = ops.fused_matmul_reduce_scatter(a[i], b[i], "sum", 0, context.group)
        dist.all_gather_into_tensor(out[i], part.contiguous())

    return [
        ("cublas+pytorch two-shot", two_shot),
        ("pytorch fused rs+ag", lambda: Arm("pytorch fused rs+ag", writing(out, scattered_and_gathered))),
    ]


def matmul_reduce(context, case):
    """matmul -> reduce-scatter (rs, ring) and matmul -> all-reduce (ar)."""
    m, n, k, world = case.m, case.n, case.k, context.world
    scatter = case.kind != "ar"
    a, b = context.random(m, k), [weight.t() for weight in context.random(n, k)]
    full = context.empty(m, n)
    out = context.empty(m // world, n) if scatter else full
    reduce_plain = (
        (lambda i: dist.reduce_scatter_tensor(out[i], full[i])) if scatter else (lambda i: dist.all_reduce(full[i]))
    )

    def unfused(i):
        torch.mm(a[i], b[i], out=full[i])
        reduce_plain(i)

    unfused(0)
    reference = out[0].clone()
    context.exact = exact.of(context, exact.reduced, a[0], b[0], scatter)
    # The sums of all ranks are every rank's: PyTorch's two-shot and NCCL's windows have them in symmetric memory, so these have too.
    shared = case.kind == "ar"
    own = context.symmetric(m, n) if shared else context.empty(*out[0].shape) if context.tandem else None

    def on_windows(name, windows):
        whole = context.window_empty(windows, m, n)
        sums = context.window_empty(windows, m // world, n) if scatter else whole

        def call(i):
            torch.mm(a[i], b[i], out=whole[i])
            if scatter:
                windows.reduce_scatter(sums[i], whole[i])
            else:
                windows.all_reduce(whole[i], whole[i])

        return Arm(name, writing(sums, call))

    def fused(i):
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(a[i % SETS], b[i % SETS], "sum", 0, context.group)

    arms = [
        ("gemm", lambda: Arm("gemm", lambda i: torch.mm(a[i % SETS], b[i % SETS], out=full[i % SETS]), checked=False)),
        ("nccl+cublas", lambda: Arm("nccl+cublas", writing(out, unfused))),
    ]
    if case.kind != "ring":
        arms.append(("nccl+cublas stream", lambda: Arm("nccl+cublas stream", writing(out, unfused), graph=False)))
    if scatter:
        arms += [
            ("pytorch fused", lambda: Arm("pytorch fused", fused)),
            beside_copies(context, lambda i: torch.mm(a[i], b[i], out=full[i]), out[0].numel()),
        ]
    else:
        arms += all_reduce_compositions(context, a, b, out)
    arms += context.each_nccl("windows+cublas", on_windows)
    if case.kind == "ring":
        algorithms = [
            (f"ring S={steps} lanes={lanes}", "ring", {"steps": steps, "lanes": lanes})
            for steps in (world, 2 * world, 4 * world)
            for lanes in (1, 2, 3)
        ] + plain("pipeline")
    else:
        algorithms = plain(
            "unfused", "nccl", *(("pipeline", "ring") if scatter else ("tiled_two_shot",)), "fused", "low_latency"
        )
    arms += tandem_arms(
        context,
        case.name,
        "matmul_reduce_scatter" if scatter else "matmul_all_reduce",
        {"a": a, "b": b, "c": own},
        own,
        algorithms,
        stream=case.kind != "ring",
    )
    if shared:
        arms += ordinary_arm(context, case.name, "matmul_all_reduce", {"a": a, "b": b}, "c", (m, n))
    if case.kind != "ring":
        op = "matmul_reduce_scatter" if scatter else "matmul_all_reduce"
        arms += client_products(context, case, op, {"a": a, "b": b}, out[0].shape)
    return arms, reference, TOLERANCE


def collective(context, case):
    count, world = case.size // BF16.itemsize, context.world
    shard = max(1, count // world)
    sizes = {
        "all_reduce": (count, count),
        "all_gather": (shard, shard * world),
        "reduce_scatter": (shard * world, shard),
    }[case.kind]
    inputs, out, own = context.random(sizes[0]), context.empty(sizes[1]), None
    plain_call = {"all_gather": dist.all_gather_into_tensor, "reduce_scatter": dist.reduce_scatter_tensor}
    if case.kind == "all_reduce":
        reference = inputs[0].clone()
        dist.all_reduce(reference)
    else:
        plain_call[case.kind](out[0], inputs[0])
        reference = out[0].clone()

    # NCCL called directly, on memory of torch's own: out of place, which torch's all_reduce is not.
    def on_memory(name, windows):
        call = getattr(windows, case.kind)
        return Arm(name, writing(out, lambda i: call(out[i], inputs[i])))

    def on_windows(name, windows):
        call = getattr(windows, case.kind)
        sources, sinks = context.window_copies(windows, inputs), context.window_empty(windows, sizes[1])
        return Arm(name, writing(sinks, lambda i: call(sinks[i], sources[i])))

    arms = context.each_nccl("nccl", on_memory) + context.each_nccl("windows", on_windows)
    if "nccl" not in dict(arms) and case.kind != "all_reduce":
        arms.append(("nccl", lambda: Arm("nccl", writing(out, lambda i: plain_call[case.kind](out[i], inputs[i])))))
    if case.kind == "all_reduce":
        arms += flashinfer_arms(context, inputs, out) + vllm_arms(context, inputs, out)
    symmetric = []

    def shared(name, function, in_place):
        def make():
            while len(symmetric) < SETS:
                symmetric.append(symm_mem.empty(sizes[0], device=context.bench.device, dtype=BF16))
                symm_mem.rendezvous(symmetric[-1], context.group)
                symmetric[-1].copy_(inputs[len(symmetric) - 1])
            run = lambda i: function(symmetric[i % SETS])
            if in_place:
                run.spoil = lambda: symmetric[0].copy_(inputs[0])
            return Arm(name, run)

        return name, make

    ops = torch.ops.symm_mem
    if case.kind == "all_reduce":
        if case.size <= 2 << 20:
            arms.append(shared("pytorch one-shot", lambda x: ops.one_shot_all_reduce(x, "sum", context.group), False))
        arms.append(shared("pytorch two-shot", lambda x: ops.two_shot_all_reduce_(x, "sum", context.group), True))
        algorithms = (
            plain("one_shot", "two_shot", "low_latency", "nccl") if case.size <= 4 << 20 else plain("two_shot", "nccl")
        )
    else:
        algorithms = plain("sm", "copy_engine", "low_latency", "nccl")
    if case.kind == "all_gather":

        def bare():
            push = pushes(context, shard)
            return Arm("bare pushes", lambda i: push(), checked=False)

        arms.append(("bare pushes", bare))
    shared = case.kind != "reduce_scatter"  # whose outputs peers write to, here as in PyTorch's and NCCL's windows
    if context.tandem:
        own = context.symmetric(sizes[1]) if shared else context.empty(sizes[1])
    arms += tandem_arms(context, case.name, case.kind, {"input": inputs, "output": own}, own, algorithms)
    if shared:
        arms += ordinary_arm(context, case.name, case.kind, {"input": inputs}, "output", (sizes[1],))
    shots = ("one_shot", "two_shot") if case.kind == "all_reduce" else ("sm",)
    choices = [(name, name) for name in (*shots, "low_latency", "auto")]
    sums = context.empty(sizes[1]) if context.tandem else None
    arms += client_arms(context, case.name, case.kind, {"input": inputs, "output": sums}, sums, choices)
    if shared and context.tandem:
        choices = [(f"{name}, symmetric", name) for name in (shots[-1], "auto")]
        own = context.symmetric(sizes[1], in_client=True)
        arms += client_arms(context, case.name, case.kind, {"input": inputs, "output": own}, own, choices, stream=False)
    return arms, reference, TOLERANCE


def empty(context, case):
    return tandem_arms(context, case.name, "empty", {}, None, []), None, 0


BUILDERS = {
    "ag": all_gather_matmul,
    "rs": matmul_reduce,
    "ar": matmul_reduce,
    "ring": matmul_reduce,
    "ag8": all_gather_scaled_matmul,
    "rs8": scaled_matmul_reduce_scatter,
    "all_reduce": collective,
    "all_gather": collective,
    "reduce_scatter": collective,
    "norm": all_reduce_norm,
    "empty": empty,
}
