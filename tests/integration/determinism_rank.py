"""A rank of test_determinism.py: rows of one pool in batches of many sizes and orders, by each way in which a sum can run. Each row's bytes
must be the same in all of them. Prints the bytes of each row's results."""

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
# Owners' parts cut rows of 144 bytes at other elements for each number of rows.
POOL, COLUMNS = 30, 72
ROW_BYTES = COLUMNS * 2
ROWS = (1, 2, 3, 5, 12, 60, 101, 768, 4096)
MOST = max(ROWS)
ALGORITHMS = {
    "all_reduce": ("auto", "one_shot", "two_shot", "copy_engine"),
    "reduce_scatter": ("auto", "sm", "copy_engine"),
    "reduce": ("auto", "sm"),
    "norm": ("auto", "one_shot", "two_shot", "copy_engine"),
}
NORM = ("norm_weight", "residual", "residual_output")


def drawn(name, rows):
    """Rows of bf16 between 2^-9 and 2^8, of either sign: their sums depend on the order."""
    own = random.Random(name)
    words = (own.randrange(2) << 15 | own.randrange(118, 136) << 7 | own.randrange(128) for _ in range(rows * COLUMNS))
    return struct.pack(f"<{rows * COLUMNS}H", *words)


def row_of(table, row):
    return table[row * ROW_BYTES : (row + 1) * ROW_BYTES]


MINE, RESIDUAL, WEIGHT = drawn(f"input {RANK}", POOL), drawn("residual", POOL), drawn("weight", 1)


def fill(memory, table, chosen):
    data = b"".join(row_of(table, row) for row in chosen)
    ctypes.memmove(memory.data, data, len(data))


class Bits:
    """The bytes of each row's results, by kind of result."""

    def __init__(self):
        self.known = {}
        self.launches = 0

    def check(self, kind, memory, chosen, what):
        data = ctypes.string_at(memory.data, len(chosen) * ROW_BYTES)
        of_kind = self.known.setdefault(kind, {})
        for place, row in enumerate(chosen):
            got = row_of(data, place)
            if got != of_kind.setdefault(row, got):
                raise AssertionError(f"{what}: row {row} at {place} of {len(chosen)} has other bits")


class Sums:
    """The memory of one group's launches."""

    def __init__(self, group, world):
        self.group, self.world = group, world
        self.memory = {
            name: group.registered((MOST, COLUMNS), "bf16")
            for name in ("input", "output", "residual", "residual_output")
        }
        self.memory["norm_weight"] = group.registered((COLUMNS,), "bf16")
        fill(self.memory["norm_weight"], WEIGHT, [0])

    def slots(self, op):
        return ["input", "output", *(NORM if op == "norm" else ())]

    def plan(self, key, op, rows, **options):
        def shape(slot):
            if slot == "norm_weight":
                return (COLUMNS,)
            return (rows // self.world if op == "reduce_scatter" and slot == "output" else rows, COLUMNS)

        operands = [tandem.Operand(slot, "bf16", shape(slot)) for slot in self.slots(op)]
        if op == "norm":
            options["norm_epsilon"] = 1e-5
        name = "all_reduce" if op == "norm" else op
        return self.group.prepare(key, name, operands, determinism="batch", deadline=PATIENCE, **options)

    def launch(self, bits, plan, op, chosen, what, captured=False, **options):
        fill(self.memory["input"], MINE, chosen)
        fill(self.memory["residual"], RESIDUAL, chosen)
        bound = [self.memory[slot] for slot in self.slots(op)]
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
        bits.launches += 1
        if op == "reduce" and RANK != 0 and self.world > 1:
            return
        if op == "reduce_scatter":
            part = len(chosen) // self.world
            chosen = chosen[RANK * part : (RANK + 1) * part]
        bits.check("sum" if op != "norm" else "norm", self.memory["output"], chosen, what)
        if op == "norm":
            bits.check("residual", self.memory["residual_output"], chosen, what)


def batches(op, turn):
    for rows in ROWS:
        if op == "reduce_scatter" and rows % WORLD != 0:
            continue
        alike = random.Random(f"{op} {rows} {turn}")
        yield [alike.randrange(POOL) for _ in range(rows)]


def run_shapes(sums, bits, op, algorithm, placement):
    for turn, chosen in itertools.chain.from_iterable(((t, b) for b in batches(op, t)) for t in range(2)):
        what = f"{op} by {algorithm} in the {placement}"
        plan = sums.plan(f"{what} {len(chosen)} {turn}", op, len(chosen), algorithm=algorithm, placement=placement)
        assert plan.info["determinism"] == "batch", plan.info
        sums.launch(bits, plan, op, chosen, what, captured=turn == 1)
        plan.close()


def run_family(sums, bits, op, algorithm):
    bound = MOST // WORLD * WORLD
    plan = sums.plan(f"family of {op} by {algorithm}", op, bound, algorithm=algorithm, max_rows=bound)
    assert plan.info["determinism"] == "batch" and plan.info["max_rows"] == bound, plan.info
    for turn in range(2):
        for chosen in batches(op, turn):
            if len(chosen) <= bound:
                sums.launch(bits, plan, op, chosen, f"a family of {op}", captured=turn == 1, rows=len(chosen))
    plan.close()


def as_float(table, place):
    return struct.unpack("<f", bytes(2) + table[2 * place : 2 * place + 2])[0]


def rounded(value):
    """The bf16 nearest to an f32, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def check_apart(client, bits):
    """The norm apart from the sum: of one rank, whose sum is its input."""
    group = client.join("apart", world_size=1, rank=0, job_key=KEY, deadline=PATIENCE)
    alone, apart = Sums(group, 1), Bits()
    chosen = sorted(bits.known["sum"])
    for row in chosen:
        want = b"".join(
            rounded(as_float(bits.known["sum"][row], i) + as_float(row_of(RESIDUAL, row), i)) for i in range(COLUMNS)
        )
        assert want == bits.known["residual"][row], f"the residual of row {row} is not the rounded sum's"
    plan = alone.plan("apart", "norm", len(chosen))
    fill(alone.memory["input"], b"".join(bits.known["sum"][row] for row in chosen), range(len(chosen)))
    fill(alone.memory["residual"], RESIDUAL, chosen)
    plan.launch(*[alone.memory[slot] for slot in alone.slots("norm")])
    plan.wait(PATIENCE)
    apart.known["norm"] = dict(bits.known["norm"])
    apart.check("norm", alone.memory["output"], chosen, "the norm apart")
    plan.close()
    group.leave(PATIENCE)


def main():
    client, bits = tandem.connect(), Bits()
    group = client.join(f"{WORLD} ranks", world_size=WORLD, rank=RANK, job_key=KEY, deadline=PATIENCE)
    sums = Sums(group, WORLD)
    for op, algorithms in ALGORITHMS.items():
        for algorithm, placement in itertools.product(algorithms, ("engine", "client")):
            if (algorithm, placement) != ("copy_engine", "client"):
                run_shapes(sums, bits, op, algorithm, placement)
        for algorithm in algorithms:
            if algorithm != "copy_engine":
                run_family(sums, bits, op, algorithm)
    if RANK == 0:
        check_apart(client, bits)
    told = {kind: {row: data.hex() for row, data in of_kind.items()} for kind, of_kind in bits.known.items()}
    print(json.dumps({"launches": bits.launches, "bits": told}), flush=True)
    group.leave(PATIENCE)
    client.close()


main()
