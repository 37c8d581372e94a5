"""Every operation by every algorithm, with operands whose results are known: the cases of test_operations."""

from harness import TandemTest, everybody, offered


def ramp(base, step, count):
    """The values that the driver's `fill` writes."""
    return [base + step * (i % 64) for i in range(count)]


def size(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def matmul(a, b, m, k, n):
    return [sum(a[i * k + x] * b[x * n + j] for x in range(k)) for i in range(m) for j in range(n)]


def add(*parts):
    return [sum(column) for column in zip(*parts)]


def concatenate_columns(parts, rows, columns):
    return [part[row * columns + column] for row in range(rows) for part in parts for column in range(columns)]


BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1, "i32": 4}


class Slot:
    """An operand: `fill(rank)` is (base, step) of an input, `expect(rank)` the values of an output."""

    def __init__(self, role, shape, fill=None, expect=None, dtype="f32", symmetric=False):
        self.role, self.shape, self.fill, self.expect = role, list(shape), fill, expect
        self.dtype, self.symmetric = dtype, symmetric

    def spec(self):
        return {"role": self.role, "dtype": self.dtype, "shape": self.shape, "symmetric": self.symmetric}


class OperationsTest(TandemTest):
    def each_rank(self, rank):
        return (rank + 1, 1)

    def run_op(self, clients, op, slots, key, launches=2, group="tp", each=None, **request):
        """Prepares, launches and checks; `each(rank)` gives a rank's own fields of the request."""
        for index, slot in enumerate(slots):
            name = f"{key}.{index}"
            if slot.symmetric:
                everybody(clients, "allocate", group=group, memory=name, shape=slot.shape, dtype=slot.dtype)
            else:
                everybody(
                    clients, "register", group=group, memory=name, bytes=max(1, size(slot.shape)) * BYTES[slot.dtype]
                )
        replies = everybody(
            clients,
            "prepare",
            group=group,
            key=key,
            plan=key,
            each=lambda rank: {
                "request": {
                    "op": op,
                    "operands": [slot.spec() for slot in slots],
                    **request,
                    **(each(rank) if each else {}),
                }
            },
        )
        self.assertEqual(len({reply["plan"]["algorithm"] for reply in replies}), 1)
        if request.get("algorithm", "auto") != "auto":
            self.assertEqual(replies[0]["plan"]["algorithm"], request["algorithm"])
        for _ in range(launches):
            for rank, client in enumerate(clients):
                for index, slot in enumerate(slots):
                    base, step = slot.fill(rank) if slot.fill else (-7, 0)
                    client.call("fill", memory=f"{key}.{index}", dtype=slot.dtype, base=base, step=step)
            everybody(clients, "launch", plan=key, bindings=[[f"{key}.{i}", 0] for i in range(len(slots))])
            everybody(clients, "sync")
            everybody(clients, "wait", plan=key)
            for rank, client in enumerate(clients):
                for index, slot in enumerate(slots):
                    wanted = slot.expect(rank) if slot.expect else None
                    if wanted is not None:
                        values = client.call("read", memory=f"{key}.{index}", dtype=slot.dtype, count=len(wanted))[
                            "values"
                        ]
                        self.assertEqual(values, wanted, f"{op} {request}, rank {rank}, slot {index}")
        everybody(clients, "release", plan=key)
        for index in range(len(slots)):
            everybody(clients, "drop", memory=f"{key}.{index}")

    def collectives(self, world, clients):
        rows, columns = 4, 3
        shard, whole = rows * columns, rows * columns * world
        inputs = [ramp(rank + 1, 1, whole) for rank in range(world)]
        shards = [values[:shard] for values in inputs]
        total = add(*inputs)
        average = [value / world for value in total]
        for algorithm in offered("one_shot", "two_shot", "nccl"):
            self.run_op(
                clients,
                "all_reduce",
                [
                    Slot("input", (rows * world, columns), self.each_rank),
                    Slot("output", (rows * world, columns), expect=lambda rank: total),
                ],
                f"ar.{algorithm}",
                algorithm=algorithm,
            )
            # Residuals that make 8 of each sum: its root mean square is a power of two.
            of_sum = world * (world + 1) / 2
            self.run_op(
                clients,
                "all_reduce",
                [
                    Slot("input", (rows, columns), lambda rank: (rank + 1, 0)),
                    Slot("output", (rows, columns), expect=lambda rank: [2.0 * (rank + 1)] * shard),
                    Slot("norm_weight", (columns,), lambda rank: (2 * (rank + 1), 0)),
                    Slot("residual", (rows, columns), lambda rank: (8 - of_sum, 0)),
                    Slot("residual_output", (rows, columns), expect=lambda rank: [8.0] * shard),
                ],
                f"norm.{algorithm}",
                algorithm=algorithm,
            )
        if world in (2, 4):  # exact in binary
            self.run_op(
                clients,
                "all_reduce",
                [
                    Slot("input", (rows * world, columns), self.each_rank),
                    Slot("output", (rows * world, columns), expect=lambda rank: average),
                ],
                "ar.avg",
                reduce_op="avg",
            )
        for algorithm in offered("copy_engine", "sm", "nccl"):
            self.run_op(
                clients,
                "all_gather",
                [
                    Slot("input", (rows, columns), self.each_rank),
                    Slot("output", (rows * world, columns), expect=lambda rank: sum(shards, [])),
                ],
                f"ag.{algorithm}",
                algorithm=algorithm,
            )
            self.run_op(
                clients,
                "reduce_scatter",
                [
                    Slot("input", (rows * world, columns), self.each_rank),
                    Slot("output", (rows, columns), expect=lambda rank: total[rank * shard : (rank + 1) * shard]),
                ],
                f"rs.{algorithm}",
                algorithm=algorithm,
            )
        self.run_op(
            clients,
            "all_gather",
            [
                Slot("input", (rows, columns), self.each_rank),
                Slot("output", (rows, columns * world), expect=lambda rank: concatenate_columns(shards, rows, columns)),
            ],
            "ag.dim1",
            dim=1,
        )
        root = world - 1
        self.run_op(
            clients,
            "broadcast",
            [Slot("input", (5,), self.each_rank), Slot("output", (5,), expect=lambda rank: inputs[root][:5])],
            "bc",
            root=root,
        )
        self.run_op(
            clients,
            "reduce",
            [
                Slot("input", (7,), self.each_rank),
                Slot("output", (7,), expect=lambda rank: total[:7] if rank == root else None),
            ],
            "rd",
            root=root,
        )
        self.run_op(
            clients,
            "all_to_all",
            [
                Slot("input", (rows * world, columns), self.each_rank),
                Slot(
                    "output",
                    (rows * world, columns),
                    expect=lambda rank: sum((values[rank * shard : (rank + 1) * shard] for values in inputs), []),
                ),
            ],
            "a2a",
        )
        self.run_op(
            clients,
            "send_receive",
            [
                Slot("input", (9,), self.each_rank),
                Slot("output", (9,), expect=lambda rank: inputs[(rank - 1) % world][:9]),
            ],
            "sr",
            each=lambda rank: {
                "transfers": [
                    {"send": True, "peer": (rank + 1) % world, "slot": 0},
                    {"send": False, "peer": (rank - 1) % world, "slot": 1},
                ]
            },
        )
        self.run_op(clients, "barrier", [], "barrier")
        self.run_op(clients, "empty", [], "empty")

    def in_place(self, world, clients):
        """all_gather and reduce_scatter as NCCL has them in place: rank r's part begins r * count elements into the buffer."""
        count = 12
        whole = {"dtype": "f32", "shape": [count * world]}
        part = {"dtype": "f32", "shape": [count]}
        inputs = [ramp(rank + 1, 1, count * world) for rank in range(world)]

        def own(rank, values):
            return values[rank * count : (rank + 1) * count]

        gathered = sum((own(rank, inputs[rank]) for rank in range(world)), [])
        total = add(*inputs)

        def scattered(rank):
            values = list(inputs[rank])
            values[rank * count : (rank + 1) * count] = own(rank, total)
            return values

        for symmetric in (False, True):

            def operands(first, second):
                return [
                    {"role": "input", "symmetric": symmetric, **first},
                    {"role": "output", "symmetric": symmetric, "alias_of": 0, **second},
                ]

            if symmetric:
                everybody(clients, "allocate", group="tp", memory="buffer", shape=whole["shape"])
            else:
                everybody(clients, "register", group="tp", memory="buffer", bytes=4 * count * world)
            for algorithm in offered("copy_engine", "sm", "nccl"):
                for op, slots, expect in (
                    ("all_gather", operands(part, whole), lambda rank: gathered),
                    ("reduce_scatter", operands(whole, part), scattered),
                ):
                    key = f"{op}.{algorithm}.{symmetric}"
                    everybody(
                        clients,
                        "prepare",
                        group="tp",
                        key=key,
                        plan=key,
                        request={"op": op, "algorithm": algorithm, "operands": slots},
                    )
                    for rank, client in enumerate(clients):
                        client.call("fill", memory="buffer", dtype="f32", base=rank + 1, step=1)
                    everybody(clients, "launch", plan=key, bindings=[["buffer", 0], ["buffer", 0]])
                    everybody(clients, "sync")
                    everybody(clients, "wait", plan=key)
                    for rank, client in enumerate(clients):
                        values = client.call("read", memory="buffer", dtype="f32", count=count * world)["values"]
                        self.assertEqual(values, expect(rank), f"{key}, rank {rank}")
                    everybody(clients, "release", plan=key)
            everybody(clients, "drop", memory="buffer")

    def matmuls(self, world, clients, algorithms=True):
        m, k, n = 4, 8, 6  # m: rows of one rank

        def names(*list_of_algorithms):
            return list_of_algorithms if algorithms else ("auto",)

        a = [ramp(rank + 1, 1, m * k) for rank in range(world)]
        gathered = sum(a, [])

        def b(rank):
            return ramp(rank - 1, 1, k * n)

        whole_a = [ramp(rank + 1, 1, m * world * k) for rank in range(world)]
        product = add(*[matmul(whole_a[rank], b(rank), m * world, k, n) for rank in range(world)])

        def fill_b(rank):
            return (rank - 1, 1)

        for algorithm in names("unfused", "pipeline", "ring"):
            self.run_op(
                clients,
                "all_gather_matmul",
                [
                    Slot("a", (m, k), self.each_rank),
                    Slot("b", (k, n), fill_b),
                    Slot("c", (m * world, n), expect=lambda rank: matmul(gathered, b(rank), m * world, k, n)),
                ],
                f"agmm.{algorithm}",
                algorithm=algorithm,
            )
            self.run_op(
                clients,
                "all_gather_matmul",
                [
                    Slot("a", (m, k), self.each_rank),
                    Slot("b", (k, n), fill_b),
                    Slot("c", (m * world, n), expect=lambda rank: matmul(gathered, b(rank), m * world, k, n)),
                    Slot("gathered_a", (m * world, k), expect=lambda rank: gathered, symmetric=True),
                ],
                f"agmm.sym.{algorithm}",
                algorithm=algorithm,
            )
        for algorithm in names("unfused", "pipeline", "ring"):
            self.run_op(
                clients,
                "matmul_reduce_scatter",
                [
                    Slot("a", (m * world, k), self.each_rank),
                    Slot("b", (k, n), fill_b),
                    Slot("c", (m, n), expect=lambda rank: product[rank * m * n : (rank + 1) * m * n]),
                ],
                f"mmrs.{algorithm}",
                algorithm=algorithm,
            )
        for algorithm in names("unfused", "tiled_two_shot"):
            self.run_op(
                clients,
                "matmul_all_reduce",
                [
                    Slot("a", (m * world, k), self.each_rank),
                    Slot("b", (k, n), fill_b),
                    Slot("c", (m * world, n), expect=lambda rank: product),
                ],
                f"mmar.{algorithm}",
                algorithm=algorithm,
            )
        # Tensor-wise fp8: small integers are exact in e4m3; the scales are 2 and 0.5 and a half.
        self.run_op(
            clients,
            "all_gather_matmul",
            [
                Slot("a", (m, k), lambda rank: (rank + 1, 0), dtype="f8e4m3"),
                Slot("b", (k, n), lambda rank: (2, 0), dtype="f8e4m3"),
                Slot("scale_a", (1,), lambda rank: (2, 0)),
                Slot("scale_b", (1,), lambda rank: (0.25, 0)),
                Slot(
                    "c",
                    (m * world, n),
                    dtype="bf16",
                    expect=lambda rank: [
                        (row // m + 1) * 2 * k * 2 * 0.25 for row in range(m * world) for _ in range(n)
                    ],
                ),
            ],
            "fp8",
        )
        self.block_scales(world, clients, names)
        self.run_op(
            clients,
            "async_input_matmul",
            [
                Slot("a", (m * world, k), self.each_rank),
                Slot("b", (k, n), fill_b),
                Slot("c", (m * world, n), expect=lambda rank: matmul(whole_a[rank], b(rank), m * world, k, n)),
                Slot("chunk_signals", (world,), lambda rank: (1, 0), dtype="i32"),
            ],
            "async",
            each=lambda rank: {"chunk_pivot": rank},
        )

    def block_scales(self, world, clients, names):
        """fp8 with factors of 128: A is all rank + 1, B all 2, factors are small integers, K's last block is short."""

        def product(rank, rows, n, k, scale_a, scale_b, columns):
            blocks = -(-k // 128)
            depth = [min(128, k - 128 * block) * (rank + 1) * 2 for block in range(blocks)]
            factors = len(scale_b) // blocks
            return [
                sum(
                    depth[x] * scale_a[row * blocks + x] * scale_b[x * factors + (j // 128 if factors < n else j)]
                    for x in range(blocks)
                )
                for row in range(rows)
                for j in columns
            ]

        def e4m3(role, shape, value):
            return Slot(role, shape, lambda rank: (value(rank), 0), dtype="f8e4m3")

        m, k, n = 2, 160, 130
        for algorithm in names("unfused", "pipeline", "ring"):
            for factors in (2, n):
                scale_b = ramp(1, 1, 2 * factors)
                self.run_op(
                    clients,
                    "all_gather_matmul",
                    [
                        e4m3("a", (m, k), lambda rank: rank + 1),
                        e4m3("b", (k, n), lambda rank: 2),
                        Slot("scale_a", (m, 2), lambda rank: (rank + 2, 1)),
                        Slot("scale_b", (2, factors), lambda rank: (1, 1)),
                        Slot(
                            "c",
                            (m * world, n),
                            expect=lambda rank: sum(
                                (product(r, m, n, k, ramp(r + 2, 1, m * 2), scale_b, range(n)) for r in range(world)),
                                [],
                            ),
                        ),
                    ],
                    f"blocks.ag.{algorithm}.{factors}",
                    algorithm=algorithm,
                )
            # B's columns are scattered: pieces begin within a block.
            wide, rows = 70 * world, 3
            factors = -(-wide // 128)
            parts = [
                product(r, rows, wide, k, ramp(1, r + 1, rows * 2), ramp(1, 1, 2 * factors), range(wide))
                for r in range(world)
            ]
            total = add(*parts)
            self.run_op(
                clients,
                "matmul_reduce_scatter",
                [
                    e4m3("a", (rows, k), lambda rank: rank + 1),
                    e4m3("b", (k, wide), lambda rank: 2),
                    Slot("scale_a", (rows, 2), lambda rank: (1, rank + 1)),
                    Slot("scale_b", (2, factors), lambda rank: (1, 1)),
                    Slot(
                        "c",
                        (rows, 70),
                        expect=lambda rank: [
                            total[row * wide + rank * 70 + j] for row in range(rows) for j in range(70)
                        ],
                    ),
                ],
                f"blocks.rs.{algorithm}",
                dim=1,
                algorithm=algorithm,
            )
        for algorithm in names("unfused", "tiled_two_shot"):
            self.run_op(
                clients,
                "matmul_all_reduce",
                [
                    e4m3("a", (5, k), lambda rank: rank + 1),
                    e4m3("b", (k, n), lambda rank: 2),
                    Slot("scale_a", (5, 2), lambda rank: (1, rank + 1)),
                    Slot("scale_b", (2, 2), lambda rank: (1, 1)),
                    Slot(
                        "c",
                        (5, n),
                        expect=lambda rank: add(
                            *[product(r, 5, n, k, ramp(1, r + 1, 10), ramp(1, 1, 4), range(n)) for r in range(world)]
                        ),
                    ),
                ],
                f"blocks.ar.{algorithm}",
                algorithm=algorithm,
            )
