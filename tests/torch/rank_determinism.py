"""A rank that checks what tandem.torch promises of the bits of results: the levels, what raises, rows in batches, the compile pass."""

import warnings
from unittest import mock

import tandem
import tandem.torch
import torch
from checks import CUDA, DEVICE, SHARED_GPUS, check, configured, main
from reference_ops import OPS, near, rand, rank, reference, world
from tandem import errors
from tandem.torch import _batch
from torch._subclasses.fake_tensor import FakeTensorMode
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


def compiled_rows(function, dynamic, batches, *others):
    """By kind of result and row, the bits of all results of the compiled function, which takes this rank's part of a batch."""
    compiled, known = torch.compile(function, fullgraph=True, dynamic=None if dynamic else False), {}
    for pool, chosen in batches:
        mine = chosen.chunk(world())[rank()]
        x = pool[mine]
        if dynamic:  # the rows alone, so that epsilon stays a number
            torch._dynamo.mark_dynamic(x, 0)
        for (kind, whose), result in compiled(x, *others).items():
            rows = mine if whose == "part" else chosen
            as_bits = result.view(BITS[result.dtype]).cpu()
            for row, bits in zip(rows.tolist(), as_bits, strict=True):
                known.setdefault((kind, row), []).append(bits)
    return known


@check
def test_a_row_has_the_same_bits_in_every_batch_of_a_compiled_program(name):
    """The pass fuses the products, whose rows then are as those of calls: in graphs of one shape and of all."""
    group = torch.distributed.group.WORLD

    def layer(x, up, down, out, weight, bias):
        h = torch.relu(funcol.all_gather_tensor(x, 0, group) @ up)
        part = funcol.reduce_scatter_tensor(h @ down, "sum", 0, group)
        total = h[:, :24] + funcol.all_reduce(h @ out, "sum", group)
        scale = torch.rsqrt(total.float().pow(2).mean(-1, keepdim=True) + EPSILON)
        normed = (total.float() * scale).to(total.dtype) * weight
        biased = funcol.all_reduce(h @ down, "sum", group) + bias
        return {("part", "part"): part, ("total", "all"): total, ("norm", "all"): normed, ("biased", "all"): biased}

    ops = ["all_gather_matmul", "matmul_all_reduce", "matmul_all_reduce_rms_norm", "matmul_reduce_scatter"]
    for dtype in [one for one in BITS if not (CUDA and one is torch.float32)]:  # CUDA fuses no products of fp32
        pool = rand(20, COLUMNS, dtype=dtype, seed=2, same=True)
        up, down, out = (
            rand(*shape, dtype=dtype, seed=3 + i) for i, shape in enumerate(((COLUMNS, 48), (48, 16), (48, 24)))
        )
        weight, bias = (rand(n, dtype=dtype, seed=7, same=True) for n in (24, 16))
        known = {}
        for dynamic, counts in ((True, (2, 3, 17, 300)), (False, (2, 24))):
            batches = []
            for rows in counts:
                generator = torch.Generator().manual_seed(rows)
                batches.append((pool, torch.randint(20, (rows * world(),), generator=generator).to(DEVICE)))
            torch._dynamo.reset()
            before = len(tandem.torch.explain_graph())
            with configured(name, determinism="batch"), tandem.torch.compile_config(), torch.no_grad():
                rows = compiled_rows(layer, dynamic, batches, up, down, out, weight, bias)
                assert promises(name) == {"batch"}, promises(name)
                whole = OPS.all_gather_matmul(pool[rank() :: world()].contiguous(), [up], 0, name, return_A=False)[1][0]
                order = [row for one in range(world()) for row in range(one, 20, world())]
                h = torch.relu(whole)[torch.argsort(torch.tensor(order)).to(DEVICE)]
                called = OPS.matmul_all_reduce(h, down, "sum", name) + bias
            fused = sorted({record.fused_into for record in tandem.torch.explain_graph()[before:]})
            assert fused == ops, [str(record) for record in tandem.torch.explain_graph()[before:]]
            for row, bits in enumerate(called.view(BITS[dtype]).cpu()):
                rows.setdefault(("biased", row), []).append(bits)
            for key, each in rows.items():
                first = known.setdefault(key, each[0])
                assert all(torch.equal(first, one) for one in each), (key, dynamic, dtype)


@check
def test_what_the_pass_keeps_apart(name):
    """A gather along K, which keeps no promise, stays torch's; so does a type that Tandem has not."""
    if SHARED_GPUS:  # these are gloo's then, which crashes where it gathers the memory of GPUs
        return
    group = torch.distributed.group.WORLD
    a, b, deep = rand(2 * world(), 6), rand(6, 4, seed=1), rand(6 * world(), 4, seed=1)

    def step(a, b, deep):
        along_k = funcol.all_gather_tensor(a, 1, group) @ deep
        return (
            funcol.all_reduce(a @ b, "sum", group) * 1.0,
            along_k,
            funcol.all_gather_tensor(a.double(), 0, group) @ b.double(),
        )

    want = step(a, b, deep)
    for _ in range(2):  # the second time from Inductor's cache
        for level in ("off", "batch"):
            torch._dynamo.reset()
            with configured(name, determinism=level), tandem.torch.compile_config(), warnings.catch_warnings():
                if level == "off":  # the type falls back
                    warnings.simplefilter("ignore")
                for got, one in zip(torch.compile(step)(a, b, deep), want, strict=True):
                    near(got.float(), one.float())
    records = [str(record) for record in tandem.torch.explain_graph()]
    assert sum("a gather along K" in one for one in records) == 1, records
    assert sum("no products of torch.float64" in one for one in records) == 1, records
    assert sum(record.fused_into == "matmul_all_reduce" for record in tandem.torch.explain_graph()) >= 2, records


@check
def test_what_the_pass_keeps_apart_on_gpus(name):
    """Products that other kernels than the fused ones would multiply, whatever the number of rows."""

    def why(rows, k, n, cut="rows", reduce_op="sum", dtype=torch.bfloat16, capability=(9, 0)):
        with mock.patch("torch.cuda.get_device_capability", lambda device: capability), FakeTensorMode():
            a, b = (torch.empty(*shape, dtype=dtype, device="cuda:0") for shape in ((rows, k), (k, n)))
            return _batch.why_apart(a, b, cut, reduce_op)

    assert why(5, 7, 3) == ""  # the level is off
    with configured(name, determinism="batch"):
        for rows in (1, 7, 4096):
            assert (
                why(rows, 64, 24)
                == why(rows, 64, 24, reduce_op="")
                == why(rows, 64, 32, dtype=torch.float8_e4m3fn)
                == ""
            )
            for reason, given in (
                ("no K", {"k": 20}),
                ("no N", {"n": 4}),
                ("no torch.float32", {"dtype": torch.float32}),
                ("Hopper", {"capability": (8, 0)}),
                ("first dimension", {"cut": "other"}),
                ("first dimension", {"cut": "columns"}),
                ("along K", {"cut": "columns", "reduce_op": ""}),
                ("sums only", {"reduce_op": "avg"}),
            ):
                got = why(**{"rows": rows, "k": 64, "n": 24, **given})
                assert reason in got and "determinism is 'batch'" in got, (got, given)
        assert [_batch.along(dim, (1, 4, 8)) for dim in (0, 1, 2, -1)] == ["rows", "rows", "columns", "columns"]
        assert _batch.along(1, (2, 4, 8)) == "other"


if __name__ == "__main__":
    main()
