"""A rank of test_determinism.py: each way in which a plan with determinism = run goes, on several streams and in a graph, while ranks are
late by chance. Prints a digest of each way's results, which must not depend on the run. Arguments: rank, ranks, seed of the delays."""

import ctypes
import hashlib
import itertools
import json
import random
import struct
import sys
import time

import tandem

RANK, WORLD, SEED = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
KEY = "0123456789abcdef-determinism"
PATIENCE = 120
ROWS, COLUMNS, DEPTH = 24, 72, 40
LATEST = 0.02  # seconds that a rank may be late
# op: (the shape of each operand, the algorithms).
SUM = ("auto", "one_shot", "two_shot", "copy_engine", "low_latency")
OPS = {
    "all_reduce": ({"input": (ROWS, COLUMNS), "output": (ROWS, COLUMNS)}, SUM),
    "norm": (
        {
            "input": (ROWS, COLUMNS),
            "output": (ROWS, COLUMNS),
            "norm_weight": (COLUMNS,),
            "residual": (ROWS, COLUMNS),
            "residual_output": (ROWS, COLUMNS),
        },
        SUM,
    ),
    "reduce_scatter": ({"input": (ROWS, COLUMNS), "output": (ROWS // WORLD, COLUMNS)}, ("auto", "sm", "copy_engine")),
    "all_gather": ({"input": (ROWS, COLUMNS), "output": (ROWS * WORLD, COLUMNS)}, ("auto", "sm", "copy_engine")),
    "matmul_all_reduce": (
        {"a": (ROWS, DEPTH), "b": (DEPTH, COLUMNS), "c": (ROWS, COLUMNS)},
        ("auto", "unfused", "fused", "tiled_two_shot"),
    ),
    "matmul_reduce_scatter": (
        {"a": (ROWS, DEPTH), "b": (DEPTH, COLUMNS), "c": (ROWS // WORLD, COLUMNS)},
        ("auto", "unfused", "fused", "pipeline"),
    ),
}
WRITTEN = ("output", "residual_output", "c")


def elements(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def fill(memory, shape, name):
    """bf16 between 2^-9 and 2^8, of either sign: their sums depend on the order."""
    own, count = random.Random(name), elements(shape)
    words = (own.randrange(2) << 15 | own.randrange(118, 136) << 7 | own.randrange(128) for _ in range(count))
    data = struct.pack(f"<{count}H", *words)
    ctypes.memmove(memory.data, data, len(data))


class Way:
    """One plan with its memory."""

    def __init__(self, group, op, algorithm, placement):
        self.slots, _ = OPS[op]
        self.memory = {slot: group.registered(shape, "bf16") for slot, shape in self.slots.items()}
        for slot, shape in self.slots.items():
            own = RANK if slot in ("input", "a", "b") else "all"
            fill(self.memory[slot], shape, f"{op} {slot} {own}")
        operands = [tandem.Operand(slot, "bf16", shape) for slot, shape in self.slots.items()]
        options = {"norm_epsilon": 1e-5} if op == "norm" else {"on_unfused": "allow"} if op.startswith("matmul") else {}
        self.plan = group.prepare(
            f"{op} {algorithm} {placement}",
            "all_reduce" if op == "norm" else op,
            operands,
            determinism="run",
            algorithm=algorithm,
            placement=placement,
            deadline=PATIENCE,
            **options,
        )
        assert self.plan.info["determinism"] == "run", self.plan.info

    def launch(self, stream, captured):
        for slot, shape in self.slots.items():
            if slot in WRITTEN:
                ctypes.memset(self.memory[slot].data, 0xFF, 2 * elements(shape))
        bound = list(self.memory.values())
        if captured:
            stream.begin_capture()
            self.plan.launch(*bound, stream=stream)
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize(PATIENCE)
            graph.close()
        else:
            self.plan.launch(*bound, stream=stream)
            stream.synchronize(PATIENCE)
        self.plan.wait(PATIENCE)
        digest = hashlib.sha256()
        for slot, shape in self.slots.items():
            if slot in WRITTEN:
                digest.update(ctypes.string_at(self.memory[slot].data, 2 * elements(shape)))
        return digest.hexdigest()


def main():
    client, digests, refused = tandem.connect(), {}, []
    group = client.join(f"run {WORLD} {SEED}", world_size=WORLD, rank=RANK, job_key=KEY, deadline=PATIENCE)
    streams = [tandem.Stream(), tandem.Stream()]
    alike, delays = random.Random(SEED), random.Random(f"{SEED} {RANK}")
    for op, placement in itertools.product(OPS, ("engine", "client")):
        for algorithm in OPS[op][1]:
            what = f"{op} by {algorithm} in the {placement}"
            try:
                way = Way(group, op, algorithm, placement)
            except (tandem.errors.FailedPrecondition, tandem.errors.Unimplemented):
                refused.append(what)
                continue
            for launch in range(4):
                if alike.randrange(WORLD) == RANK:
                    time.sleep(delays.random() * LATEST)
                got = way.launch(streams[alike.randrange(2)], launch == 3)
                assert got == digests.setdefault(what, got), f"{what}: launch {launch} has other bits"
            way.plan.close()
    print(json.dumps({"digests": digests, "refused": refused}), flush=True)
    group.leave(PATIENCE)
    client.close()


main()
