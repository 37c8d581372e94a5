"""A rank of test_rounding.py: sums with a residual and a norm, by each algorithm and placement and with each rounding. One rounding gives the
same bytes by all of them. Prints the errors against double precision."""

import ctypes
import itertools
import json
import math
import random
import struct
import sys

import tandem

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
KEY = "0123456789abcdef-rounding"
PATIENCE = 120
ROWS, COLUMNS, EPSILON = 12, 136, 1e-5
ALGORITHMS = ("auto", "one_shot", "two_shot", "copy_engine")
NORM = ("norm_weight", "residual", "residual_output")


def bytes_of(dtype, values):
    """The values, each rounded to nearest even."""
    if dtype != "bf16":
        return struct.pack(f"<{len(values)}{'e' if dtype == 'f16' else 'f'}", *values)
    words = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return struct.pack(f"<{len(values)}H", *((word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words))


def values_of(dtype, data):
    if dtype != "bf16":
        return list(
            struct.unpack(f"<{len(data) // (2 if dtype == 'f16' else 4)}{'e' if dtype == 'f16' else 'f'}", data)
        )
    words = struct.unpack(f"<{len(data) // 2}H", data)
    return list(struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *(word << 16 for word in words))))


def rounded(dtype, values):
    return values_of(dtype, bytes_of(dtype, values))


def drawn(name, dtype, count):
    own = random.Random(name)
    return rounded(dtype, [own.uniform(-2, 2) for _ in range(count)])


def normed(values, weight):
    """The norm of each row in double precision."""
    for first in range(0, len(values), COLUMNS):
        row = values[first : first + COLUMNS]
        root = math.sqrt(sum(value * value for value in row) / COLUMNS + EPSILON)
        yield from (value / root * factor for value, factor in zip(row, weight, strict=True))


class Case:
    """The operands of one type, alike on all ranks but for the inputs."""

    def __init__(self, group, dtype):
        self.group, self.dtype = group, dtype
        count = ROWS * COLUMNS
        self.inputs = [drawn(f"input {rank}", dtype, count) for rank in range(WORLD)]
        self.residual, self.weight = drawn("residual", dtype, count), drawn("weight", dtype, COLUMNS)
        self.exact = [math.fsum(terms) for terms in zip(*self.inputs, self.residual, strict=True)]
        total = self.inputs[0]
        for more in self.inputs[1:]:
            total = rounded("f32", [a + b for a, b in zip(total, more, strict=True)])
        self.sums = rounded(dtype, total)
        self.memory = {
            slot: group.registered((COLUMNS,) if slot == "norm_weight" else (ROWS, COLUMNS), dtype)
            for slot in ("input", *NORM, "output")
        }

    def launch(self, algorithm, placement, rounding):
        """The bytes of the output and of the residual output."""
        operands = [tandem.Operand.of(slot, memory) for slot, memory in self.memory.items()]
        plan = self.group.prepare(
            f"{self.dtype} {algorithm} {placement} {rounding}",
            "all_reduce",
            operands,
            algorithm=algorithm,
            placement=placement,
            rounding=rounding,
            norm_epsilon=EPSILON,
            deadline=PATIENCE,
        )
        assert plan.info["rounding"] == rounding, plan.info
        for slot, values in (("input", self.inputs[RANK]), ("residual", self.residual), ("norm_weight", self.weight)):
            data = bytes_of(self.dtype, values)
            ctypes.memmove(self.memory[slot].data, data, len(data))
        plan.launch(*self.memory.values())
        plan.wait(PATIENCE)
        plan.close()
        size = len(bytes_of(self.dtype, self.residual))
        return [ctypes.string_at(self.memory[slot].data, size) for slot in ("output", "residual_output")]

    def check(self, rounding):
        """Compares the results of all ways with each other. Returns the norm's error against double precision."""
        ways = [way for way in itertools.product(ALGORITHMS, ("engine", "client")) if way != ("copy_engine", "client")]
        outputs, residuals = zip(*(self.launch(*way, rounding) for way in ways), strict=True)
        for results in (outputs, residuals):
            unlike = [way for way, data in zip(ways, results, strict=True) if data != results[0]]
            assert not unlike, f"{self.dtype} {rounding}: {unlike} have other bytes than {ways[0]}"
        added = rounded("f32", [a + b for a, b in zip(self.sums, self.residual, strict=True)])
        assert residuals[0] == bytes_of(self.dtype, added), f"{self.dtype} {rounding}: the residual"
        got = values_of(self.dtype, outputs[0])
        near = list(normed(rounded(self.dtype, added) if rounding == "model" else added, self.weight))
        step = {"f32": 2**-23, "f16": 2**-10, "bf16": 2**-7}[self.dtype]
        far = [
            pair for pair in zip(got, near, strict=True) if abs(pair[0] - pair[1]) > 0.51 * step * abs(pair[1]) + 1e-6
        ]
        assert not far, f"{self.dtype} {rounding}: {len(far)} values are rounded more than once, as {far[0]}"
        want = list(normed(self.exact, self.weight))
        error = math.fsum((a - b) ** 2 for a, b in zip(got, want, strict=True))
        return math.sqrt(error / math.fsum(value * value for value in want))


def main():
    client = tandem.connect()
    group = client.join("rounding", world_size=WORLD, rank=RANK, job_key=KEY, deadline=PATIENCE)
    errors = {}
    for dtype in ("bf16", "f16", "f32"):
        case = Case(group, dtype)
        errors[dtype] = {rounding: case.check(rounding) for rounding in ("once", "model")}
    print(json.dumps(errors), flush=True)
    group.leave(PATIENCE)
    client.close()


main()
