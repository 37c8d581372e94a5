"""Checks determinism = batch on GPUs: a row's bits over batches, permutations, ways and algorithms; then what it costs.

    export TANDEM_RUNTIME_DIR=/path/of/a/running/tandemd
    torchrun --nproc-per-node 2 determinism.py [--quick] [--no-times]

Each line is one kind of call with the number of launches and of rows that differ; "differ 0" everywhere and exit status 0 is a pass. The
lines of determinism = off are for comparison: they may differ. Then medians of the times, in us of one launch in a graph.
"""

import argparse
import os
import statistics
import sys

import tandem
import tandem.torch
import torch
import torch.distributed as dist

POOL = 96
ROWS = [1, 2, 3, 4, 7, 8, 16, 33, 64, 65, 100, 256, 264, 265, 300, 512, 1000, 1024, 2048, 4096]
QUICK = [1, 3, 8, 64, 265, 1024]
EPSILON = 1e-5
INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
OPS = torch.ops.tandem
failed = []


def say(*words):
    if dist.get_rank() == 0:
        print(*words, flush=True)


def seeded(*shape, dtype, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


class Case:
    """The pool of rows of one length and type, and the bits of each row's results."""

    def __init__(self, columns, dtype):
        self.columns, self.dtype = columns, dtype
        rank, world = dist.get_rank(), dist.get_world_size()
        self.pool = seeded(POOL, columns, dtype=dtype, seed=100 + rank)
        self.residual = seeded(POOL, columns, dtype=dtype, seed=7)
        self.weight = seeded(columns, dtype=dtype, seed=9)
        parts = [torch.empty_like(self.pool) for _ in range(world)]
        dist.all_gather(parts, self.pool)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()
        self.sums = total.to(dtype)  # in the order of ranks, rounded once
        self.after = (self.sums.float() + self.residual.float()).to(dtype)
        self.normed = None  # the first launch's

    def draw(self, rows, turn):
        generator = torch.Generator().manual_seed(1000 * turn + rows)
        return torch.randint(POOL, (rows,), generator=generator).cuda()

    def name(self):
        return f"{NAMES[self.dtype]} x {self.columns}"

    def wrong(self, out, want):
        as_bits = INTEGERS[self.dtype]
        return int((out.view(as_bits) != want.view(as_bits)).any(dim=-1).sum())

    def wrong_norm(self, out, chosen):
        if self.normed is None:
            self.normed = torch.zeros_like(self.pool)
            self.seen = torch.zeros(POOL, dtype=torch.bool, device="cuda")
        new = ~self.seen[chosen]
        self.normed[chosen[new]] = out[new]
        self.seen[chosen] = True
        return self.wrong(out, self.normed[chosen])


def graphed(call, times=1):
    """A graph of so many calls; everything is prepared before the capture."""
    call()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            call()
    return graph


def report(what, launches, differ, counts=True):
    told = torch.tensor([differ], device="cuda")
    dist.all_reduce(told)
    say(f"{what:72} launches {launches:4} differ {int(told)}")
    if counts and int(told):
        failed.append(what)


def torch_ops(case, name, way, rows_of, what, counts=True):
    """all_reduce, reduce_scatter and the sum with a norm through torch.ops, eager or by a graph."""
    launches, differ = 0, {"all_reduce": 0, "reduce_scatter": 0, "all_reduce_rms_norm": 0}
    world, rank = dist.get_world_size(), dist.get_rank()
    for turn in range(2):
        for rows in rows_of:
            chosen = case.draw(rows, turn)
            x, residual = case.pool[chosen].contiguous(), case.residual[chosen].contiguous()
            out = torch.empty_like(x)
            calls = {
                "all_reduce": lambda: OPS.all_reduce.out(x, "sum", name, out=out),
                "all_reduce_rms_norm": lambda: OPS.all_reduce_rms_norm.out(
                    x, residual, case.weight, EPSILON, name, out=out
                ),
            }
            if rows % world == 0:
                part = torch.empty(rows // world, case.columns, dtype=case.dtype, device="cuda")
                calls["reduce_scatter"] = lambda: OPS.reduce_scatter.out(x, "sum", 0, name, out=part)
            for op, call in calls.items():
                if way == "graph":
                    graph = graphed(call)
                    residual.copy_(case.residual[chosen])
                    out.zero_()
                    graph.replay()
                else:
                    residual.copy_(case.residual[chosen])
                    call()
                torch.cuda.synchronize()
                launches += 1
                if op == "all_reduce":
                    differ[op] += case.wrong(out, case.sums[chosen])
                elif op == "reduce_scatter":
                    mine = chosen[rank * (rows // world) : (rank + 1) * (rows // world)]
                    differ[op] += case.wrong(part, case.sums[mine])
                else:
                    differ[op] += case.wrong(residual, case.after[chosen]) + case.wrong_norm(out, chosen)
                if way == "graph":
                    dist.barrier()
                    torch.cuda.synchronize()
                    del graph
    for op, count in differ.items():
        report(f"{what}, {way}: {op} {case.name()}", launches // 3, count, counts)


def forced(case, group, rows_of):
    """Each algorithm and placement that can be asked for."""
    dtype = NAMES[case.dtype]
    for algorithm in ("one_shot", "two_shot", "low_latency", "copy_engine", "hybrid_cube_mesh", "nccl"):
        for placement in ("engine", "client"):
            for norm in (False, True):
                launches = differ = 0
                why = ""
                for turn, rows in enumerate(rows_of):
                    chosen = case.draw(rows, turn)
                    slots = ["input", "output"] + (["norm_weight", "residual", "residual_output"] if norm else [])
                    memory = {
                        slot: group.registered(
                            (case.columns,) if slot == "norm_weight" else (rows, case.columns), dtype
                        )
                        for slot in slots
                    }
                    seen = {slot: torch.from_dlpack(one) for slot, one in memory.items()}
                    seen["input"].copy_(case.pool[chosen])
                    if norm:
                        seen["norm_weight"].copy_(case.weight)
                        seen["residual"].copy_(case.residual[chosen])
                    torch.cuda.synchronize()
                    key = f"{algorithm} {placement} {norm} {rows} {case.name()}"
                    options = {"algorithm": algorithm, "placement": placement, "determinism": "batch"}
                    if norm:
                        options["norm_epsilon"] = EPSILON
                    try:
                        plan = group.prepare(key, "all_reduce", [(slot, memory[slot]) for slot in slots], **options)
                    except tandem.TandemError as error:
                        why = why or f"{type(error).__name__}: {error}".replace("\n", " ")[:150]
                        continue
                    assert plan.info["determinism"] == "batch", plan.info
                    plan.launch(*[memory[slot] for slot in slots], stream=torch.cuda.current_stream().cuda_stream)
                    torch.cuda.synchronize()
                    plan.wait(60)
                    launches += 1
                    if norm:
                        differ += case.wrong(seen["residual_output"], case.after[chosen]) + case.wrong_norm(
                            seen["output"], chosen
                        )
                    else:
                        differ += case.wrong(seen["output"], case.sums[chosen])
                    plan.close()
                what = f"forced {algorithm}, {placement}{', norm' if norm else ''}: {case.name()}"
                if launches:
                    report(what, launches, differ)
                if why:
                    say(f"{what:72} refused: {why}")


class Weights:
    """The operands of one kind of product, and the bits of each row's results. What is gathered is alike on all ranks."""

    def __init__(self, n, k, kind):
        self.n, self.k, self.kind = n, k, kind
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "fp8": torch.float8_e4m3fn}[
            kind
        ]
        self.out = torch.bfloat16 if kind == "fp8" else self.dtype
        rank = dist.get_rank()
        self.pools = [self.drawn((POOL, k), 300), self.drawn((POOL, k), 301 + rank)]
        # B's columns are contiguous, as weights of nn.Linear are, and as fp8 must be.
        self.weights = [self.drawn((n, k), 400).t(), self.drawn((n, k), 401 + rank).t()]
        self.scale = torch.full((1,), 0.37, device="cuda")
        self.known = {}

    def drawn(self, shape, seed):
        return (seeded(*shape, dtype=torch.float32, seed=seed) * 0.5).to(self.dtype)

    def rows(self, summed, chosen):
        pool = self.pools[summed]
        return pool.view(torch.uint8)[chosen].view(pool.dtype) if self.kind == "fp8" else pool[chosen]

    def call(self, op, x, name):
        """Runs the product; its result."""
        b, scale = self.weights[op != "all_gather_matmul"], self.scale
        if op == "all_gather_matmul":
            if self.kind == "fp8":
                return OPS.all_gather_scaled_matmul(
                    x, [b], scale, [scale], 0, name, [None], [None], [self.out], [False]
                )[1][0]
            return OPS.all_gather_matmul(x, [b], 0, name)[1][0]
        if self.kind != "fp8":
            return getattr(OPS, op)(x, b, "sum", *((0,) if op == "matmul_reduce_scatter" else ()), name)
        if op == "matmul_reduce_scatter":
            shape = [x.shape[0], self.n]
            return OPS.scaled_matmul_reduce_scatter(x, b, scale, scale, "sum", 0, 0, name, shape, out_dtype=self.out)
        return OPS.scaled_matmul_all_reduce(x, b, scale, scale, "sum", name, out_dtype=self.out)

    def wrong(self, op, out, chosen):
        known = self.known.setdefault("product" if op == "all_gather_matmul" else "sum", {})
        bits = out.view(INTEGERS[self.out])
        differ = 0
        for place, row in enumerate(chosen.tolist()):
            if row not in known:
                known[row] = bits[place].clone()
        wanted = torch.stack([known[row] for row in range(POOL) if row in known])
        index = {row: i for i, row in enumerate(row for row in range(POOL) if row in known)}
        at = torch.tensor([index[row] for row in chosen.tolist()], device="cuda")
        differ += int((bits != wanted[at]).any(dim=-1).sum())
        return differ


CASES = []


def products(name, way, rows_of, what):
    """Products through torch.ops: each row's bits in batches of many sizes and orders, by all groups alike."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if not CASES:
        for n, k in ((1024, 512), (4096, 4096), (1280, 8192)):
            CASES.extend(Weights(n, k, kind) for kind in ("bf16", "f16", "fp8", "f32") if kind != "f32" or n == 1024)
    for weights in CASES:
        for op in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"):
            launches = differ = 0
            for rows in rows_of:
                if rows % world != 0 and op != "matmul_all_reduce":
                    continue
                generator = torch.Generator().manual_seed(rows)
                chosen = torch.randint(POOL, (rows,), generator=generator).cuda()
                mine = chosen.chunk(world)[rank] if rows % world == 0 else chosen
                x = weights.rows(op != "all_gather_matmul", mine if op == "all_gather_matmul" else chosen)
                kept = []
                call = lambda op=op, x=x, kept=kept: kept.append(weights.call(op, x, name))
                if way == "graph":
                    graph = graphed(call)
                    graph.replay()
                else:
                    call()
                torch.cuda.synchronize()
                launches += 1
                differ += weights.wrong(op, kept[-1], mine if op == "matmul_reduce_scatter" else chosen)
                if way == "graph":
                    dist.barrier()
                    torch.cuda.synchronize()
                    del graph
            if launches:
                report(f"{what}, {way}: {op} {weights.kind} N {weights.n} K {weights.k}", launches, differ)


def product_times(groups):
    """Medians of a launch in a graph of 20."""
    say("\nus a launch of a product, bf16" + "".join(f"{name:>22}" for name in groups))
    for n, k in ((4096, 4096), (8192, 3584)):
        weights = Weights(n, k, "bf16")
        for op in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"):
            for rows in (2, 16, 64, 256, 1024, 4096):
                world, row = dist.get_world_size(), []
                chosen = torch.arange(rows // world if op == "all_gather_matmul" else rows, device="cuda") % POOL
                x = weights.rows(op != "all_gather_matmul", chosen)
                for name in groups.values():
                    graph = graphed(lambda op=op, x=x, name=name: weights.call(op, x, name), times=20)
                    row.append(replayed(graph))
                    del graph
                say(f"{rows:6} {op:22} {n} x {k}" + "".join(f"{us:22.2f}" for us in row))


def replayed(graph):
    """The median of a graph of 20 launches, a launch."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    taken = []
    for _ in range(15):
        dist.barrier()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 50)
    dist.barrier()
    torch.cuda.synchronize()
    return statistics.median(taken[2:])


def times(groups):
    """Medians of a launch in a graph of 20."""
    say("\nus a launch: rows x 4096 bf16" + "".join(f"{name:>22}" for name in groups) + f"{'nccl':>12}")
    for rows in (1, 4, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        x = torch.randn(rows, 4096, device="cuda").to(torch.bfloat16)
        weight, residual, out = (
            torch.ones(4096, device="cuda", dtype=torch.bfloat16),
            torch.zeros_like(x),
            torch.empty_like(x),
        )
        for op in ("all_reduce", "all_reduce_rms_norm"):
            row = []
            calls = []
            for name in groups.values():
                if op == "all_reduce":
                    calls.append(lambda name=name: OPS.all_reduce.out(x, "sum", name, out=out))
                else:
                    calls.append(
                        lambda name=name: OPS.all_reduce_rms_norm.out(x, residual, weight, EPSILON, name, out=out)
                    )
            if op == "all_reduce":
                calls.append(lambda: dist.all_reduce(x))
            for call in calls:
                graph = graphed(call, times=20)
                row.append(replayed(graph))
                del graph
            say(f"{rows:6} {op:22}" + "".join(f"{us:22.2f}" for us in row))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-times", action="store_true")
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rows = QUICK if arguments.quick else ROWS
    shapes = [
        (4096, torch.bfloat16),
        (8192, torch.bfloat16),
        (100, torch.bfloat16),
        (2880, torch.float32),
        (16384, torch.float16),
    ]
    if arguments.quick:
        shapes = shapes[:3]
    groups, cases = {}, [Case(*shape) for shape in shapes]
    for level in ("batch", "off"):
        for families in ("all", "none"):
            for placement in ("auto", "engine"):
                if placement == "engine" and families == "all":
                    continue
                tandem.torch.configure(
                    determinism=level,
                    families=families,
                    placement=placement,
                    max_rows=8192,
                    on_unavailable="error",
                    max_plans=4096,
                )
                name = dist.new_group().group_name
                found = tandem.torch.attach(name)
                kind = f"determinism {level}, families {families}, placement {placement}"
                groups[kind] = name
                for case in cases if level == "batch" else cases[:1]:
                    if level == "off":
                        case.normed = None
                    for way in ("eager", "graph"):
                        torch_ops(case, name, way, rows, kind, counts=level == "batch")
                if level == "batch" and (families, placement) == ("all", "auto"):
                    for case in cases:
                        forced(case, found.group, rows[::2] if arguments.quick else rows)
    for kind, name in groups.items():
        if "batch" in kind:
            for way in ("eager", "graph"):
                products(name, way, rows, kind)
    if not arguments.no_times:
        chosen = {
            "off families": "determinism off, families all, placement auto",
            "batch families": "determinism batch, families all, placement auto",
        }
        chosen |= {
            "off shape": "determinism off, families none, placement auto",
            "batch shape": "determinism batch, families none, placement auto",
        }
        times({short: groups[kind] for short, kind in chosen.items()})
        product_times({short: groups[kind] for short, kind in chosen.items()})
    say("FAILED: " + "; ".join(failed) if failed else "PASSED")
    dist.barrier()
    tandem.torch.configure(determinism="off")
    for name in groups.values():
        tandem.torch.detach(name)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
