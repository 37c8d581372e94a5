"""The arms of every case: what PyTorch, NCCL's windows and Tandem do with the same operands. A builder returns
(factories, reference, tolerance): factories are (name, function that makes the Arm), the reference is what operand set 0
must give."""

import exact
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from measure import Arm

SETS = 4  # operand sets in turn, so that no weight stays in the L2 cache
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
BESIDE = "gemm beside copies"
TOLERANCE = 2e-2  # of results rounded to bf16 in different orders


class Context:
    """What builders need: the ranks, NCCL's windows, Tandem's group; the last two may be None."""

    def __init__(self, bench, windows, tandem):
        self.bench, self.rank, self.world, self.windows, self.tandem = bench, bench.rank, bench.world, windows, tandem
        self.group = dist.group.WORLD.group_name
        self.exact = None  # some rows of the result of operand set 0 in float64: (rows, values)
        if windows is not None:
            windows.reset()

    def random(self, *shape, dtype=BF16):
        return [torch.randn(*shape, device=self.bench.device).to(dtype) for _ in range(SETS)]

    def empty(self, *shape, dtype=BF16):
        return [torch.empty(*shape, device=self.bench.device, dtype=dtype) for _ in range(SETS)]

    def symmetric(self, *shape, dtype=BF16):
        """Outputs for Tandem's arms where rivals have theirs in symmetric memory too; None without Tandem."""
        return self.tandem.symmetric(SETS, shape, dtype) if self.tandem else None

    def window_copies(self, tensors):
        copies = []
        for tensor in tensors:
            copy = self.windows.empty(*tensor.shape, dtype=tensor.dtype)
            copy.copy_(tensor)
            copies.append(copy)
        return copies

    def window_empty(self, *shape, dtype=BF16):
        return [self.windows.empty(*shape, dtype=dtype) for _ in range(SETS)]


def writing(outputs, function):
    """An arm's run that fills outputs[i]: `function(i)` does it; the output is spoilt before a check."""

    def run(i):
        function(i % SETS)
        return outputs[i % SETS]

    run.spoil = lambda: outputs[0].fill_(float("nan"))
    return run


def tandem_arms(context, key, op, operands, outputs, algorithms, stream=True, **attributes):
    """Tandem's arms: each algorithm in a graph, and the daemon's own choice in a graph and on a stream. `operands`: role -> tensors
    by set. `algorithms`: (label, algorithm, more attributes)."""

    def factory(label, algorithm, graph, more):
        return tandem_factory(
            context, key, label, op, lambda: (operands, outputs), algorithm, graph, {**attributes, **more}
        )

    if context.tandem is None:
        return []
    made = [factory(label, algorithm, True, more) for label, algorithm, more in algorithms]
    return made + ([factory("auto", "auto", True, {}), factory("stream", "auto", False, {})] if stream else [])


def ordinary_arm(context, key, op, operands, role, shape):
    """The daemon's own choice in a graph, with an output in the client's ordinary memory where the other arms' is symmetric."""

    def tensors():
        out = context.empty(*shape)
        return {**operands, role: out}, out

    return [tandem_factory(context, key, "auto, ordinary", op, tensors, "auto", True, {})] if context.tandem else []


def tandem_factory(context, key, label, op, tensors, algorithm, graph, attributes):
    """One arm of Tandem's by name and how to make it. `tensors`: gives operands by role and the outputs once the arm is made, so
    that what belongs to it alone is allocated no sooner."""

    def make():
        operands, outputs = tensors()
        return context.tandem.arm(
            f"tandem {label}", f"{key}/{label}", op, operands, outputs, algorithm, graph, attributes
        )

    return f"tandem {label}", make


def pushes(context, count):
    """A function that pushes `count` elements to every peer by plain copies, without any signal."""
    room = symm_mem.empty(context.world * count, device=context.bench.device, dtype=BF16)
    handle = symm_mem.rendezvous(room, context.group)
    source = torch.randn(count, device=context.bench.device).to(BF16)
    sinks = [
        handle.get_buffer(peer, (context.world, count), BF16)[context.rank]
        for peer in ((context.rank + step) % context.world for step in range(1, context.world))
    ]

    def push():
        for sink in sinks:
            sink.copy_(source)

    push.keeps = room, handle  # the sinks do not own their memory
    return push


def beside_copies(context, gemm, count):
    """The product and the copies that it could hide, side by side with no dependency: the practical speed of light."""

    def make():
        push, side = pushes(context, count), torch.cuda.Stream(priority=-1)

        def run(i):
            stream = torch.cuda.current_stream()
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                push()
            gemm(i % SETS)
            stream.wait_stream(side)

        return Arm(BESIDE, run, checked=False)

    return BESIDE, make


def plain(*names):
    return [(name, name, {}) for name in names]


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

    def windows():
        shards, whole = context.window_copies(a), context.window_empty(m, k)

        def call(i):
            context.windows.all_gather(whole[i], shards[i])
            torch.mm(whole[i], b[i], out=out[i])

        return Arm("windows+cublas", writing(out, call))

    def fused(i):
        return torch.ops.symm_mem.fused_all_gather_matmul(a[i % SETS], [b[i % SETS]], 0, context.group)[1][0]

    arms = [
        ("gemm", lambda: Arm("gemm", writing(out, lambda i: torch.mm(full[i], b[i], out=out[i])))),
        ("nccl+cublas", lambda: Arm("nccl+cublas", writing(out, unfused))),
        ("nccl+cublas stream", lambda: Arm("nccl+cublas stream", writing(out, unfused), graph=False)),
        ("pytorch fused", lambda: Arm("pytorch fused", fused)),
        beside_copies(context, lambda i: torch.mm(full[i], b[i], out=out[i]), a[0].numel()),
    ]
    if context.windows:
        arms.append(("windows+cublas", windows))
    arms += tandem_arms(
        context,
        case.name,
        "all_gather_matmul",
        {"a": a, "b": b, "c": own},
        own,
        plain("unfused", "nccl", "pipeline", "ring", "fused", "low_latency"),
    )
    return arms, reference, TOLERANCE


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

    def windows():
        whole = context.window_empty(m, n)
        sums = context.window_empty(m // world, n) if scatter else whole

        def call(i):
            torch.mm(a[i], b[i], out=whole[i])
            if scatter:
                context.windows.reduce_scatter(sums[i], whole[i])
            else:
                context.windows.all_reduce(whole[i], whole[i])

        return Arm("windows+cublas", writing(sums, call))

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
    if context.windows:
        arms.append(("windows+cublas", windows))
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
    return arms, reference, TOLERANCE


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

    def windows():
        shards, whole = context.window_copies(a), context.window_empty(m, k, dtype=FP8)
        row_shards, row_whole = (
            (context.window_copies(scale_a), context.window_empty(m, 1, dtype=torch.float32))
            if row
            else (None, scale_a)
        )

        def call(i):
            context.windows.all_gather(as_bytes(whole[i]), as_bytes(shards[i]))
            if row:
                context.windows.all_gather(row_whole[i], row_shards[i])
            scaled_mm(whole[i], b[i], row_whole[i], scale_b[i], out[i])

        return Arm("windows+cublas", writing(out, call))

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
    if context.windows:
        arms.append(("windows+cublas", windows))
    arms += tandem_arms(
        context,
        case.name,
        "all_gather_matmul",
        {"a": a, "b": b, "c": own, **scales},
        own,
        plain("unfused", "pipeline", "fused"),
        fast_accumulation=0,
    )
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

    def windows():
        whole, sums = context.window_empty(m, n), context.window_empty(m // world, n)

        def call(i):
            scaled_mm(a[i], b[i], scale_a[i], scale_b[i], whole[i])
            context.windows.reduce_scatter(sums[i], whole[i])

        return Arm("windows+cublas", writing(sums, call))

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
    if context.windows:
        arms.append(("windows+cublas", windows))
    arms += tandem_arms(
        context,
        case.name,
        "matmul_reduce_scatter",
        {"a": a, "b": b, "c": own, **scales},
        own,
        plain("unfused", "pipeline", "fused"),
        fast_accumulation=0,
    )
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
    arms = []
    if context.windows:
        call = getattr(context.windows, case.kind)

        def windows():
            sources, sinks = context.window_copies(inputs), context.window_empty(sizes[1])
            return Arm("windows", writing(sinks, lambda i: call(sinks[i], sources[i])))

        # NCCL called directly, on memory of torch's own: out of place, which torch's all_reduce is not.
        arms += [("nccl", lambda: Arm("nccl", writing(out, lambda i: call(out[i], inputs[i])))), ("windows", windows)]
    elif case.kind != "all_reduce":
        arms.append(("nccl", lambda: Arm("nccl", writing(out, lambda i: plain_call[case.kind](out[i], inputs[i])))))
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
    "empty": empty,
}
