"""The arms of fp8 products with scales."""

import exact
import torch
import torch.distributed as dist
from arm_parts import BF16, FP8, SETS, TOLERANCE, beside_copies, client_arms, plain, tandem_arms, writing
from measure import Arm


def scaled_operands(context, case, rows):
    """A shard or whole A, B by columns, and scales that are not all one."""
    a = context.random(rows, case.k, dtype=FP8)
    b = [weight.t() for weight in context.random(case.n, case.k, dtype=FP8)]
    extents = ((rows, 1), (1, case.n)) if case.scales == "row" else ((), ())
    scale_a, scale_b = (
        [torch.rand(extent, device=context.bench.device) + 0.5 for _ in range(SETS)] for extent in extents
    )
    if case.scales == "tensor":  # one scale for A means the same one on all ranks
        for scale in scale_a + scale_b:
            dist.broadcast(scale, src=0)
    one = lambda scales: [scale if scale.dim() else scale.view(1) for scale in scales]
    return a, b, scale_a, scale_b, {"scale_a": one(scale_a), "scale_b": one(scale_b)}


def scaled_mm(a, b, scale_a, scale_b, out):
    # PyTorch's default mode, without fast accumulation: Tandem's arms ask for the same.
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=BF16, use_fast_accum=False, out=out)


def all_gather_scaled_matmul(context, case):
    m, n, k, world, row = case.m, case.n, case.k, context.world, case.scales == "row"
    a, b, scale_a, scale_b, scales = scaled_operands(context, case, m // world)
    full, out = context.empty(m, k, dtype=FP8), context.empty(m, n)
    rows = context.empty(m, 1, dtype=torch.float32) if row else scale_a
    as_bytes = lambda tensor: tensor.view(torch.uint8)

    def unfused(i):
        dist.all_gather_into_tensor(as_bytes(full[i]), as_bytes(a[i]))
        if row:
            dist.all_gather_into_tensor(rows[i], scale_a[i])
        scaled_mm(full[i], b[i], rows[i], scale_b[i], out[i])

    for i in reversed(range(SETS)):
        unfused(i)
    reference = out[0].clone()
    context.exact = exact.of(context, exact.gathered, a[0], b[0], scale_a[0], scale_b[0])
    own = context.empty(m, n) if context.tandem else None

    def on_windows(name, windows):
        shards, whole = context.window_copies(windows, a), context.window_empty(windows, m, k, dtype=FP8)
        row_shards, row_whole = (
            (context.window_copies(windows, scale_a), context.window_empty(windows, m, 1, dtype=torch.float32))
            if row
            else (None, scale_a)
        )

        def call(i):
            windows.all_gather(as_bytes(whole[i]), as_bytes(shards[i]))
            if row:
                windows.all_gather(row_whole[i], row_shards[i])
            scaled_mm(whole[i], b[i], row_whole[i], scale_b[i], out[i])

        return Arm(name, writing(out, call))

    def fused(i):
        i %= SETS
        return torch.ops.symm_mem.fused_all_gather_scaled_matmul(
            a[i], [b[i]], scale_a[i], [scale_b[i]], 0, context.group, [None], [None], [BF16], [False]
        )[1][0]

    arms = [
        ("gemm", lambda: Arm("gemm", writing(out, lambda i: scaled_mm(full[i], b[i], rows[i], scale_b[i], out[i])))),
        ("nccl+cublas", lambda: Arm("nccl+cublas", writing(out, unfused))),
        ("pytorch fused", lambda: Arm("pytorch fused", fused)),
        beside_copies(context, lambda i: scaled_mm(full[i], b[i], rows[i], scale_b[i], out[i]), a[0].numel() // 2),
    ]
    arms += context.each_nccl("windows+cublas", on_windows)
    arms += tandem_arms(
        context,
        case.name,
        "all_gather_matmul",
        {"a": a, "b": b, "c": own, **scales},
        own,
        plain("unfused", "pipeline", "fused"),
        fast_accumulation=0,
    )
    arms += in_client(context, case, "all_gather_matmul", {"a": a, "b": b, "c": own, **scales}, own)
    return arms, reference, TOLERANCE


def scaled_matmul_reduce_scatter(context, case):
    m, n, world = case.m, case.n, context.world
    a, b, scale_a, scale_b, scales = scaled_operands(context, case, m)
    full, out = context.empty(m, n), context.empty(m // world, n)

    def unfused(i):
        scaled_mm(a[i], b[i], scale_a[i], scale_b[i], full[i])
        dist.reduce_scatter_tensor(out[i], full[i])

    unfused(0)
    reference = out[0].clone()
    context.exact = exact.of(context, exact.reduced, a[0], b[0], True, scale_a[0], scale_b[0])
    own = context.empty(m // world, n) if context.tandem else None

    def on_windows(name, windows):
        whole, sums = context.window_empty(windows, m, n), context.window_empty(windows, m // world, n)

        def call(i):
            scaled_mm(a[i], b[i], scale_a[i], scale_b[i], whole[i])
            windows.reduce_scatter(sums[i], whole[i])

        return Arm(name, writing(sums, call))

    def fused(i):
        i %= SETS
        return torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
            a[i], b[i], scale_a[i], scale_b[i], "sum", 0, 0, context.group, [m, n], None, None, BF16, False
        )

    gemm = lambda i: scaled_mm(a[i % SETS], b[i % SETS], scale_a[i % SETS], scale_b[i % SETS], full[i % SETS])
    arms = [
        ("gemm", lambda: Arm("gemm", gemm, checked=False)),
        ("nccl+cublas", lambda: Arm("nccl+cublas", writing(out, unfused))),
        ("pytorch fused", lambda: Arm("pytorch fused", fused)),
        beside_copies(context, gemm, out[0].numel()),
    ]
    arms += context.each_nccl("windows+cublas", on_windows)
    arms += tandem_arms(
        context,
        case.name,
        "matmul_reduce_scatter",
        {"a": a, "b": b, "c": own, **scales},
        own,
        plain("unfused", "pipeline", "fused"),
        fast_accumulation=0,
    )
    arms += in_client(context, case, "matmul_reduce_scatter", {"a": a, "b": b, "c": own, **scales}, own)
    return arms, reference, TOLERANCE


def in_client(context, case, op, operands, outputs):
    """fp8 on the caller's stream is one kernel; no product stands beside it."""
    choices = [(name, name) for name in ("fused", "auto")]
    return client_arms(context, case.name, op, operands, outputs, choices, stream=False, fast_accumulation=0)
