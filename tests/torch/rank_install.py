"""A rank that runs torch.ops.symm_mem through Tandem, and compares with symm_mem's own fallbacks: values, strides, types."""

import warnings

import tandem.torch
import torch
import torch.distributed._symmetric_memory as symm_mem
from checks import CUDA, DEVICE, check, main
from reference_ops import near, rand, rank, reference, world

OPS = torch.ops.symm_mem


def alike(got, want):
    assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype), (
        got.stride(),
        want.stride(),
    )
    near(
        got.float() if got.dtype == torch.float8_e4m3fn else got,
        want.float() if want.dtype == torch.float8_e4m3fn else want,
    )


@check
def test_nothing_serves_cpu_tensors_before(name):
    tandem.torch.uninstall()
    assert not tandem.torch.installed()
    try:
        if CUDA:
            raise NotImplementedError  # symm_mem has kernels of its own there
        OPS.fused_matmul_reduce_scatter(rand(4, 4), rand(4, 4), "sum", 0, name)
        raise AssertionError("there is a kernel")
    except NotImplementedError:
        pass
    tandem.torch.install()
    tandem.torch.install()
    assert tandem.torch.installed()


@check
def test_fused_all_gather_matmul(name):
    for shape in ((4, 6), (2, 4, 6), (1, 4, 6)):
        a = rand(*shape)
        for dim in range(len(shape)):
            depth = 6 * (world() if dim == len(shape) - 1 else 1)
            bs = [rand(depth, 5, seed=1), rand(3, depth, seed=2).t(), rand(depth, 2, seed=3)]
            whole, products = OPS.fused_all_gather_matmul(a, bs, dim, name)
            want, wants = symm_mem._fused_all_gather_matmul_fallback(a.cpu(), [b.cpu() for b in bs], dim, name)
            alike(whole, want)
            for got, one in zip(products, wants, strict=True):
                alike(got, one)
            none, _ = OPS.fused_all_gather_matmul(a, bs, dim, name, return_A=False)
            assert none is None


@check
def test_fused_all_gather_scaled_matmul(name):
    fp8 = torch.float8_e4m3fn
    for shape in ((4, 16), (2, 4, 16)):
        a, bs = rand(*shape).to(fp8), [rand(16, 16, seed=1).t().to(fp8), rand(32, 16, seed=2).to(fp8).t()]
        one = torch.tensor(0.5, device=DEVICE)
        for dim in range(len(shape) - 1):
            whole, products = OPS.fused_all_gather_scaled_matmul(
                a,
                bs,
                one,
                [one, one],
                dim,
                name,
                [None, None],
                [None, None],
                [torch.bfloat16, torch.bfloat16],
                [False, False],
            )
            full = reference.all_gather(a.float(), dim, name)
            near(whole.float(), full)
            for got, b in zip(products, bs, strict=True):
                near(got, (full @ b.float() * 0.25).bfloat16())
            meta = symm_mem._fused_all_gather_matmul_fallback(a.cpu().float(), [b.cpu().float() for b in bs], dim, name)
            assert whole.stride() == meta[0].stride() and products[1].stride() == meta[1][1].stride()


@check
def test_fused_matmul_reduce_scatter(name):
    for shape in ((2 * world(), 6), (world(), 2 * world(), 6)):
        a, b = rand(*shape), rand(6, 3 * world(), seed=1)
        for op in ("sum", "avg"):
            for dim in range(len(shape)):
                got = OPS.fused_matmul_reduce_scatter(a, b, op, dim, name)
                near(got, reference.reduce_scatter(a @ b, op, dim, name))
                assert got.is_contiguous()


@check
def test_fused_scaled_matmul_reduce_scatter(name):
    fp8, one = torch.float8_e4m3fn, torch.tensor(0.5, device=DEVICE)
    a, b = rand(2 * world(), 16).to(fp8), rand(16, 16, seed=1).to(fp8).t()
    product = (a.float() @ b.float()) * 0.25
    got = OPS.fused_scaled_matmul_reduce_scatter(
        a, b, one, one, "avg", 0, 0, name, [2 * world(), 16], out_dtype=torch.bfloat16
    )
    near(got, reference.reduce_scatter(product, "avg", 0, name).bfloat16())
    shape = [2, world(), 16]
    got = OPS.fused_scaled_matmul_reduce_scatter(a, b, one, one, "sum", 1, 0, name, shape, out_dtype=torch.bfloat16)
    near(got, reference.reduce_scatter(product.view(shape), "sum", 1, name).bfloat16())


@check
def test_low_contention(name):
    x = rand(2 * world(), 3)
    wait = torch.ops._c10d_functional.wait_tensor
    assert torch.equal(wait(OPS._low_contention_all_gather(x, name)), reference.all_gather(x, 0, name))
    for op in ("sum", "avg"):
        near(wait(OPS._low_contention_reduce_scatter(x, op, name)), reference.reduce_scatter(x, op, 0, name))
    infos = [
        info for info in tandem.torch.attachment(name).plans.infos() if info["op"] in ("all_gather", "reduce_scatter")
    ]
    assert {info["algorithm"] for info in infos} == {"copy_engine"}, infos


@check
def test_all_reduces(name):
    x = rand(5, 3)
    want = reference.all_reduce(x, "sum", name)
    near(OPS.one_shot_all_reduce(x, "sum", name), want)
    near(OPS.one_shot_all_reduce_copy(torch.empty_like(x), x, "sum", name), want)
    near(OPS.multimem_one_shot_all_reduce(x, "sum", name), want)
    into = [
        lambda out: OPS.one_shot_all_reduce_out(x, "sum", name, out),
        lambda out: OPS.multimem_one_shot_all_reduce_out(x, "sum", name, out),
        lambda out: OPS.one_shot_all_reduce_copy_out(torch.empty_like(x), x, "sum", name, out),
        lambda out: OPS.two_shot_all_reduce_out(x.clone(), "sum", name, out),
    ]
    for call in into:
        out = torch.full_like(x, float("nan"))
        assert call(out).data_ptr() == out.data_ptr()
        near(out, want)
    for op in (OPS.two_shot_all_reduce_, OPS.multimem_all_reduce_):
        y = x.clone()
        assert op(y, "sum", name).data_ptr() == y.data_ptr()
        near(y, want)
        wide = torch.zeros(3, 5, device=DEVICE).t().copy_(x)
        op(wide, "sum", name)
        near(wide.contiguous(), want)


@check
def test_all_reduces_are_bit_equal_and_stay_in_their_tensor(name):
    for dtype in (torch.float32, torch.bfloat16):
        for count in (1, 63, 4096):
            guarded = torch.full((count + 32,), 7.0, dtype=dtype, device=DEVICE)
            inner = guarded[16:-16]
            inner.copy_(rand(count, dtype=dtype))
            OPS.two_shot_all_reduce_(inner, "sum", name)
            every = reference.all_gather(inner.view(1, count), 0, name)
            assert torch.equal(every, inner.expand(world(), count)), "ranks have different sums"
            assert (guarded[:16] == 7).all() and (guarded[-16:] == 7).all(), "it has written beside its tensor"


@check
def test_what_tandem_declines_runs_on_their_own_kernel(name):
    """Per call: Tandem has no f64. A kernel is planted where symm_mem has none."""
    calls = []

    def theirs(a, b, reduce_op, scatter_dim, group_name):
        calls.append((a.dtype, reduce_op, scatter_dim, group_name))
        return (a @ b).chunk(world(), scatter_dim)[rank()].contiguous() + 100

    if CUDA:
        return  # symm_mem has its own, which the test of a rank without Tandem cannot see either
    tandem.torch.uninstall()
    planted = torch.library.Library("symm_mem", "IMPL")
    try:
        planted.impl("fused_matmul_reduce_scatter", theirs, "CPU")
        tandem.torch.install()
        a, b = rand(2 * world(), 4), rand(4, 3, seed=1)
        near(OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name), reference.reduce_scatter(a @ b, "sum", 0, name))
        assert not calls
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            wide = OPS.fused_matmul_reduce_scatter(a.double(), b.double(), "sum", 0, name)
        assert ["symm_mem's own kernel" in str(one.message) for one in seen] == [True], seen
        assert calls == [(torch.float64, "sum", 0, name)], calls
        assert torch.equal(wide, (a.double() @ b.double()).chunk(world(), 0)[rank()] + 100)
        near(OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name), reference.reduce_scatter(a @ b, "sum", 0, name))
        tandem.torch.uninstall()
        assert len(calls) == 1
        OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name)
        assert len(calls) == 2, "theirs is back"
    finally:
        tandem.torch.uninstall()
        planted._destroy()
        tandem.torch.install()


@check
def test_uninstall(name):
    tandem.torch.uninstall()
    tandem.torch.uninstall()
    assert not tandem.torch.installed()
    try:
        if CUDA:
            raise NotImplementedError
        OPS.fused_matmul_reduce_scatter(rand(4, 4), rand(4, 4), "sum", 0, name)
        raise AssertionError("Tandem's kernel is still there")
    except NotImplementedError:
        assert rank() >= 0


if __name__ == "__main__":
    tandem.torch.install()
    main()
