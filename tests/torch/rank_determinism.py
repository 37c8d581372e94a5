"""A rank that checks what tandem.torch promises of the bits of results: the levels, what raises, rows in batches, the compile pass."""

import warnings

import tandem
import tandem.torch
import torch
from checks import DEVICE, check, configured, main
from reference_ops import OPS, near, rand, rank, reference, world
from tandem import errors
from torch.distributed import _functional_collectives as funcol

EPSILON = 1e-5
COLUMNS = 72
BITS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


def promises(name):
    return {info["determinism"] for info in tandem.torch.attach(name).plans.infos()}


def refused(call, text):
    try:
        call()
    except errors.TandemError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error with {text!r}")


@check
def test_the_levels(name):
    x = rand(5, COLUMNS)
    for level in ("off", "run", "batch"):
        with configured(name, determinism=level):
            near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
            assert promises(name) == {level}, promises(name)
    try:
        tandem.torch.configure(determinism="always")
        raise AssertionError("a wrong level was taken")
    except ValueError as error:
        assert "determinism" in str(error)


@check
def test_the_level_of_one_group(name):
    other = torch.distributed.new_group().group_name
    tandem.torch.detach(name)
    tandem.torch.attach(name, determinism="batch")
    try:
        for group in (name, other):
            near(OPS.all_reduce(rand(5, COLUMNS), "sum", group), reference.all_reduce(rand(5, COLUMNS), "sum", name))
        assert (promises(name), promises(other)) == ({"batch"}, {"off"}), (promises(name), promises(other))
        operand = tandem.Operand("input", tandem.DType.f32, (4, 8)), tandem.Operand("output", tandem.DType.f32, (4, 8))
        plan = tandem.torch.attach(name).group.prepare("by the option", "all_reduce", operand)
        assert plan.info["determinism"] == "batch", plan.info
    finally:
        tandem.torch.detach(name)
        tandem.torch.detach(other)


@check
def test_torchs_own_switch_asks_for_run(name):
    x = rand(7, COLUMNS)
    with configured(name, determinism="off"):
        torch.use_deterministic_algorithms(True)
        try:
            OPS.all_reduce(x, "sum", name)
        finally:
            torch.use_deterministic_algorithms(False)
        assert promises(name) == {"run"}, promises(name)
    with configured(name, determinism="batch"):
        torch.use_deterministic_algorithms(True)
        try:
            OPS.all_reduce(x, "sum", name)
        finally:
            torch.use_deterministic_algorithms(False)
        assert promises(name) == {"batch"}, promises(name)


@check
def test_a_batch_falls_back_on_nothing(name):
    a, b = rand(2 * world(), 6), rand(6, 4, seed=1)
    with configured(name, determinism="batch", on_unavailable="fallback"), warnings.catch_warnings():
        warnings.simplefilter("error")
        near(OPS.matmul_all_reduce(a, b, "sum", name), reference.all_reduce(a @ b, "sum", name))
        along_k = rand(6 * world(), 4, seed=1)
        refused(lambda: OPS.all_gather_matmul(a, [along_k], 1, name), "each rank's part of K apart")
        refused(lambda: OPS.all_reduce(rand(4).double(), "sum", name), "float64")
    with configured(name, determinism="run"):
        near(OPS.matmul_all_reduce(a, b, "sum", name), reference.all_reduce(a @ b, "sum", name))
        assert promises(name) == {"run"}


@check
def test_a_row_has_the_same_bits_in_every_batch(name):
    for dtype, as_bits in BITS.items():
        pool, weight = rand(20, COLUMNS, dtype=dtype), rand(COLUMNS, dtype=dtype, seed=4, same=True)
        before = rand(20, COLUMNS, dtype=dtype, seed=3, same=True)
        known = {}
        for placement in ("engine", "client"):
            for families in ("none", "collectives"):
                with configured(name, determinism="batch", placement=placement, families=families):
                    for rows in (1, 2, 3, 12, 48, 300, 2040):
                        generator = torch.Generator().manual_seed(rows)
                        chosen = torch.randint(20, (rows,), generator=generator).to(DEVICE)
                        x, residual = pool[chosen], before[chosen]
                        got = {"sum": OPS.all_reduce(x, "sum", name)}
                        got["norm"] = OPS.all_reduce_rms_norm(x, residual, weight, EPSILON, name)
                        got["residual"] = residual
                        whose = dict.fromkeys(got, chosen)
                        if rows % world() == 0:
                            got["part"] = OPS.reduce_scatter(x, "sum", 0, name)
                            whose["part"] = chosen.chunk(world())[rank()]
                        for kind, result in got.items():
                            for row, bits in zip(whose[kind].tolist(), result.view(as_bits).cpu(), strict=True):
                                first = known.setdefault(("sum" if kind == "part" else kind, row), bits)
                                assert torch.equal(first, bits), (kind, row, rows, placement, families, dtype)


@check
def test_a_row_of_a_product_has_the_same_bits_in_every_batch(name):
    for dtype, as_bits in BITS.items():
        pool, b = rand(20, COLUMNS, dtype=dtype), rand(COLUMNS, 24, dtype=dtype, seed=1)
        shared, known = rand(20, COLUMNS, dtype=dtype, seed=2, same=True), {}
        for placement in ("engine", "client"):
            for families in ("none", "all"):
                with configured(name, determinism="batch", placement=placement, families=families):
                    for rows in (1, 2, 3, 12, 48, 300, 2040):
                        generator = torch.Generator().manual_seed(rows)
                        chosen = torch.randint(20, (rows,), generator=generator).to(DEVICE)
                        got = {"sum": OPS.matmul_all_reduce(pool[chosen], b, "sum", name)}
                        whose = {"sum": chosen}
                        if rows % world() == 0:
                            mine = chosen.chunk(world())[rank()]
                            got["part"] = OPS.matmul_reduce_scatter(pool[chosen], b, "sum", 0, name)
                            got["product"] = OPS.all_gather_matmul(shared[mine], [b], 0, name)[1][0]
                            whose |= {"part": mine, "product": chosen}
                        for kind, result in got.items():
                            for row, bits in zip(whose[kind].tolist(), result.view(as_bits).cpu(), strict=True):
                                first = known.setdefault(("sum" if kind == "part" else kind, row), bits)
                                assert torch.equal(first, bits), (kind, row, rows, placement, families, dtype)
                    assert promises(name) == {"batch"}, promises(name)


@check
def test_the_pass_keeps_products_apart(name):
    a, b = rand(2 * world(), 6), rand(6, 4, seed=1)
    group = torch.distributed.group.WORLD

    def step(a, b):
        return funcol.all_reduce(a @ b, "sum", group) * 1.0

    want = reference.all_reduce(a @ b, "sum", name)
    for _ in range(2):  # the second time from Inductor's cache
        for level in ("off", "batch"):
            torch._dynamo.reset()
            with configured(name, determinism=level), tandem.torch.compile_config():
                near(torch.compile(step)(a, b), want)
    records = {record.fused_into: str(record) for record in tandem.torch.explain_graph()}
    assert set(records) == {"matmul_all_reduce", "all_reduce"}, records
    assert "determinism is 'batch'" in records["all_reduce"], records


if __name__ == "__main__":
    main()
