"""A rank of test_determinism.py: rows of one pool in products of many sizes and orders, by each way in which a product can run. Each row's
bytes must be the same in all of them. Prints the bytes of each row's results."""

import ctypes
import itertools
import json
import random
import struct
import sys

import tandem

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
KEY = "0123456789abcdef-determinism"
PATIENCE = 120
POOL, N, K = 30, 24, 208
ROWS = (1, 2, 3, 5, 12, 60, 101, 768, 4096)
MOST = max(ROWS)
BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f8e4m3": 1}
RESULT = {"bf16": "bf16", "f16": "f16", "f32": "f32", "f8e4m3": "bf16"}
NORM = ("norm_weight", "residual", "residual_output")
BEHIND = {"norm": NORM, "biased": ("bias",)}  # operands behind those of a matmul_all_reduce
# By engines, and by clients.
ALGORITHMS = {
    "all_gather_matmul": (("auto", "fused", "unfused", "pipeline", "ring", "nccl"), ("auto", "fused", "unfused")),
    "matmul_reduce_scatter": (("auto", "fused", "unfused", "pipeline", "ring"), ("auto", "fused", "unfused")),
    "matmul_all_reduce": (("auto", "fused", "unfused", "tiled_two_shot"), ("auto", "fused", "unfused")),
    "norm": (("auto", "fused", "tiled_two_shot"), ("auto", "fused")),
    "biased": (("auto", "fused", "tiled_two_shot"), ("auto", "fused")),
}
# Where nothing is rounded before the bias it can be added behind the sum, which alone has families.
BIASED_IN_F32 = (("auto", "unfused", "tiled_two_shot"), ("auto", "unfused"))


def drawn(name, dtype, count):
    """Elements between 2^-5 and 2^4, of either sign: their sums depend on the order."""
    own = random.Random(f"{name} {dtype}")
    signs = [own.randrange(2) for _ in range(count)]
    exponents = [own.randrange(-5, 4) for _ in range(count)]
    if dtype == "f8e4m3":
        return bytes(s << 7 | (e + 7) << 3 | own.randrange(8) for s, e in zip(signs, exponents, strict=True))
    if dtype == "f16":
        words = (s << 15 | (e + 15) << 10 | own.randrange(1024) for s, e in zip(signs, exponents, strict=True))
        return struct.pack(f"<{count}H", *words)
    bits = (s << 31 | (e + 127) << 23 | own.randrange(1 << 23) for s, e in zip(signs, exponents, strict=True))
    whole = struct.pack(f"<{count}I", *bits)
    return whole if dtype == "f32" else b"".join(whole[i + 2 : i + 4] for i in range(0, len(whole), 4))


class Products:
    """The operands and the memory of the launches of one type, and the bytes of each row's results by kind of result."""

    def __init__(self, group, dtype):
        self.group, self.dtype, self.out = group, dtype, RESULT[dtype]
        self.known, self.launches = {}, 0
        # Gathered rows are alike on all ranks; summed ones are each rank's own.
        self.pools = {True: drawn("gathered", dtype, POOL * K), False: drawn(f"summed {RANK}", dtype, POOL * K)}
        self.weights = {True: drawn("B", dtype, K * N), False: drawn(f"B {RANK}", dtype, K * N)}
        self.residual = drawn("residual", self.out, POOL * N)
        shapes = {"a": ((MOST, K), dtype), "b": ((K, N), dtype), "c": ((MOST, N), self.out)}
        shapes |= {"residual": ((MOST, N), self.out), "residual_output": ((MOST, N), self.out)}
        shapes["norm_weight"] = shapes["bias"] = ((N,), self.out)
        self.memory = {slot: group.registered(shape, kind) for slot, (shape, kind) in shapes.items()}
        self.put("norm_weight", drawn("weight", self.out, N))
        self.put("bias", drawn("bias", self.out, N))

    def put(self, slot, data):
        ctypes.memmove(self.memory[slot].data, data, len(data))

    def rows_of(self, table, row_bytes, chosen):
        return b"".join(table[row * row_bytes : (row + 1) * row_bytes] for row in chosen)

    def plan(self, key, op, rows, **options):
        a_rows = rows // WORLD if op == "all_gather_matmul" else rows
        c_rows = rows // WORLD if op == "matmul_reduce_scatter" else rows
        # Of fp8 the columns of B are contiguous, as the fused kernels want them.
        strides = (1, K) if self.dtype == "f8e4m3" else None
        operands = [
            tandem.Operand("a", self.dtype, (a_rows, K)),
            tandem.Operand("b", self.dtype, (K, N), strides),
            tandem.Operand("c", self.out, (c_rows, N)),
        ]
        if op == "norm":
            operands += [
                tandem.Operand(slot, self.out, (N,) if slot == "norm_weight" else (c_rows, N)) for slot in NORM
            ]
            options["norm_epsilon"] = 1e-5
        if op == "biased":
            operands.append(tandem.Operand("bias", self.out, (N,)))
        name = "matmul_all_reduce" if op in BEHIND else op
        return self.group.prepare(
            f"{self.dtype} {key}", name, operands, determinism="batch", on_unfused="allow", deadline=PATIENCE, **options
        )

    def launch(self, plan, op, chosen, what, captured=False, **options):
        gathers = op == "all_gather_matmul"
        part = len(chosen) // WORLD
        mine = chosen[RANK * part : (RANK + 1) * part]
        row_bytes = K * BYTES[self.dtype]
        self.put("a", self.rows_of(self.pools[gathers], row_bytes, mine if gathers else chosen))
        self.put("b", self.weights[gathers])
        out_bytes = N * BYTES[self.out]
        self.put("residual", self.rows_of(self.residual, out_bytes, chosen))
        bound = [self.memory[slot] for slot in ("a", "b", "c", *BEHIND.get(op, ()))]
        if captured:
            stream = tandem.Stream()
            stream.begin_capture()
            plan.launch(*bound, stream=stream, **options)
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize(PATIENCE)
            graph.close()
            stream.close()
        else:
            plan.launch(*bound, **options)
        plan.wait(PATIENCE)
        self.launches += 1
        got = mine if op == "matmul_reduce_scatter" else chosen
        kind = {"all_gather_matmul": "product", "norm": "norm", "biased": "biased"}.get(op, "sum")
        self.check(f"{self.dtype} {kind}", "c", out_bytes, got, what)
        if op == "norm":
            self.check(f"{self.dtype} residual", "residual_output", out_bytes, got, what)

    def check(self, kind, slot, row_bytes, chosen, what):
        data = ctypes.string_at(self.memory[slot].data, len(chosen) * row_bytes)
        of_kind = self.known.setdefault(kind, {})
        for place, row in enumerate(chosen):
            got = data[place * row_bytes : (place + 1) * row_bytes]
            if got != of_kind.setdefault(row, got):
                raise AssertionError(f"{what}: row {row} at {place} of {len(chosen)} has other bits")


def batches(op, turn):
    for rows in ROWS:
        if rows % WORLD != 0 and op in ("all_gather_matmul", "matmul_reduce_scatter"):
            continue
        alike = random.Random(f"{op} {rows} {turn}")
        yield [alike.randrange(POOL) for _ in range(rows)]


def run_shapes(products, op, algorithm, placement):
    for turn, chosen in itertools.chain.from_iterable(((t, b) for b in batches(op, t)) for t in range(2)):
        what = f"{products.dtype} {op} by {algorithm} in the {placement}"
        plan = products.plan(f"{what} {len(chosen)} {turn}", op, len(chosen), algorithm=algorithm, placement=placement)
        assert plan.info["determinism"] == "batch", plan.info
        products.launch(plan, op, chosen, what, captured=turn == 1)
        plan.close()


def run_family(products, op, algorithm):
    parts = WORLD if op == "all_gather_matmul" else 1  # its rows are those of one rank's A
    bound = MOST // WORLD * WORLD
    plan = products.plan(f"family of {op} by {algorithm}", op, bound, algorithm=algorithm, max_rows=bound // parts)
    assert plan.info["determinism"] == "batch" and plan.info["max_rows"] == bound // parts, plan.info
    for turn in range(2):
        for chosen in batches(op, turn):
            if len(chosen) <= bound:
                rows = len(chosen) // parts
                products.launch(plan, op, chosen, f"a family of {op}", captured=turn == 1, rows=rows)
    plan.close()


def main():
    client = tandem.connect()
    group = client.join(f"{WORLD} ranks", world_size=WORLD, rank=RANK, job_key=KEY, deadline=PATIENCE)
    launches, told = 0, {}
    for dtype in BYTES:
        products = Products(group, dtype)
        for op, (in_engine, in_client) in ALGORITHMS.items():
            # No fused kernel takes fp32.
            possible = [name for name in in_engine if (name, dtype) != ("fused", "f32")]
            possible = possible if dtype == "bf16" else possible[:2]
            if (op, dtype) == ("biased", "f32"):
                possible, in_client = BIASED_IN_F32
            for algorithm in possible:
                run_shapes(products, op, algorithm, "engine")
                if algorithm in in_client:
                    run_shapes(products, op, algorithm, "client")
                # No rows are no fused product, and a family has them too.
                if algorithm in in_client and algorithm != "fused" and (op != "biased" or dtype == "f32"):
                    run_family(products, op, algorithm)
        launches += products.launches
        for kind, rows in products.known.items():
            told[kind] = {row: data.hex() for row, data in rows.items()}
    print(json.dumps({"launches": launches, "bits": told}), flush=True)
    group.leave(PATIENCE)
    client.close()


main()
