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
            raise NotImplementedError  # symm_mem has its kernels there
        OPS.fused_matmul_reduce_scatter(rand(4, 4), rand(4, 4), "sum", 0, name)
        raise AssertionError("there is a kernel")
    except NotImplementedError:
        pass
    tandem.torch.install(collectives=False)
    tandem.torch.install(collectives=False)
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
            a_in_their_layout = symm_mem.restride_A_shard_for_fused_all_gather_matmul(a, dim)
            again, others = OPS.fused_all_gather_matmul(a_in_their_layout, bs, dim, name)
            alike(again, want)
            alike(others[1], wants[1])


@check
def test_products_of_many_rows(name):
    """No farther from the exact product than torch's own product and sums in another order: of symmetric A and others, and B in
    rows and in columns."""
    rows, depth, columns = (4096, 1024, 1024) if CUDA else (512, 128, 96)
    shard, b = rand(rows // world(), depth, dtype=torch.bfloat16), rand(depth, columns, dtype=torch.bfloat16, seed=1)
    for a in (shard, symmetric(shard)):
        for one in (b, b.t().contiguous().t()):
            for _ in range(2):
                whole, (product,) = OPS.fused_all_gather_matmul(a, [one], 0, name)
                assert torch.equal(whole, reference.all_gather(shard, 0, name))
                left, right, sums = whole.double(), b.double(), depth**0.5 * torch.finfo(torch.float32).eps
                exact, slack = left @ right, sums * (left.abs() @ right.abs())
                assert ((product - exact).abs() <= (whole @ b - exact).abs() + slack).all()


@check
def test_fused_all_gather_scaled_matmul(name):
    """Scales of the tensor, of each rank's rows, and of all rows on every rank."""
    fp8, wide = torch.float8_e4m3fn, torch.bfloat16
    for shape in ((4, 16), (2, 4, 16)):
        a, bs = rand(*shape).to(fp8), [rand(16, 16, seed=1).t().to(fp8), rand(32, 16, seed=2).to(fp8).t()]
        one, columns = torch.tensor(0.5, device=DEVICE), [rand(1, b.shape[1], seed=3).abs() + 0.1 for b in bs]
        for dim in range(len(shape) - 1):
            rows = [*shape[:-1], 1]
            mine = rand(*rows, seed=4).abs() + 0.1
            full, every = reference.all_gather(a.float(), dim, name), reference.all_gather(mine, dim, name)
            theirs = symm_mem._fused_all_gather_matmul_fallback(
                a.cpu().float(), [b.cpu().float() for b in bs], dim, name
            )
            for scale, of_all, b_scales, kinds in (
                (one, one, [one, one], [wide, torch.float32]),
                (mine, every, columns, [wide, wide]),
                (every, every, columns, [wide, wide]),
            ):
                whole, products = OPS.fused_all_gather_scaled_matmul(
                    a, bs, scale, b_scales, dim, name, [None] * 2, [None] * 2, kinds, [False] * 2
                )
                near(whole.float(), full)
                assert whole.dtype == fp8 and whole.stride() == theirs[0].stride()
                for got, b, b_scale, kind, alike_one in zip(products, bs, b_scales, kinds, theirs[1], strict=True):
                    near(got, ((full * of_all) @ (b.float() * b_scale)).to(kind))
                    assert got.stride() == alike_one.stride()


@check
def test_fused_matmul_reduce_scatter(name):
    for shape in ((2 * world(), 6), (world(), 2 * world(), 6)):
        a, b = rand(*shape), rand(6, 3 * world(), seed=1)
        for dim in range(len(shape)):
            theirs = symm_mem._fused_matmul_reduce_scatter_fallback(a.cpu(), b.cpu(), "sum", dim, name)
            for op in ("sum", "avg"):
                got = OPS.fused_matmul_reduce_scatter(a, b, op, dim, name)
                near(got, reference.reduce_scatter(a @ b, op, dim, name))
                assert got.stride() == theirs.stride() and got.is_contiguous()
            a_in_their_layout = symm_mem.restride_A_for_fused_matmul_reduce_scatter(a, dim)
            alike(OPS.fused_matmul_reduce_scatter(a_in_their_layout, b, "sum", dim, name), theirs.to(DEVICE))


@check
def test_fused_scaled_matmul_reduce_scatter(name):
    """Scales of the tensor and by rows, of A with two and three dimensions."""
    fp8, wide, one = torch.float8_e4m3fn, torch.bfloat16, torch.tensor(0.5, device=DEVICE)
    b, columns = rand(16, 16, seed=1).to(fp8).t(), rand(1, 16, seed=2).abs() + 0.1
    for shape in ((2 * world(), 16), (world(), 2 * world(), 16)):
        a, rows = rand(*shape).to(fp8), rand(*shape[:-1], 1, seed=3).abs() + 0.1
        for dim in range(len(shape) - 1):
            for a_scale, b_scale in ((one, one), (rows, columns)):
                product = (a.float() * a_scale) @ (b.float() * b_scale)
                for op in ("sum", "avg"):
                    got = OPS.fused_scaled_matmul_reduce_scatter(
                        a, b, a_scale, b_scale, op, dim, dim, name, [*shape[:-1], 16], out_dtype=wide
                    )
                    near(got, reference.reduce_scatter(product, op, dim, name).to(wide))
                    assert got.is_contiguous()
    flat, shape = rand(2 * world(), 16).to(fp8), [2, world(), 16]
    got = OPS.fused_scaled_matmul_reduce_scatter(flat, b, one, one, "sum", 1, 0, name, shape, out_dtype=wide)
    product = ((flat.float() @ b.float()) * 0.25).view(shape)
    near(got, reference.reduce_scatter(product, "sum", 1, name).to(wide))


def symmetric(tensor):
    return tandem.torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


@check
def test_low_contention(name):
    wait = torch.ops._c10d_functional.wait_tensor
    for x in (rand(2 * world(), 3), symmetric(rand(2 * world(), 3))):
        assert torch.equal(wait(OPS._low_contention_all_gather(x, name)), reference.all_gather(x, 0, name))
        for op in ("sum", "avg"):
            near(wait(OPS._low_contention_reduce_scatter(x, op, name)), reference.reduce_scatter(x, op, 0, name))
        assert torch.equal(x, rand(2 * world(), 3))
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


# Bytes of a tensor, and elements before it: not all kernels' vectors fit.
SIZES, SHIFTS = (4, 8192, 8196), (1, 2, 4)


@check
def test_all_reduces_are_bit_equal_and_stay_in_their_tensor(name):
    """Reduces a part of a tensor, symmetric and not, in place and into another."""
    for dtype in (torch.float32, torch.bfloat16):
        for size in SIZES:
            for shift in SHIFTS:
                count = size // dtype.itemsize
                values = rand(count, dtype=dtype, seed=shift)
                want = reference.all_reduce(values.float(), "sum", name).to(dtype)
                for guarded in (
                    torch.empty(count + 32, dtype=dtype, device=DEVICE),
                    tandem.torch.empty(count + 32, dtype=dtype),
                ):
                    guarded.fill_(7)
                    inner = guarded[shift : shift + count].copy_(values)
                    outs = [
                        OPS.one_shot_all_reduce(inner, "sum", name),
                        OPS.multimem_one_shot_all_reduce(inner, "sum", name),
                        OPS.one_shot_all_reduce_copy(inner, values, "sum", name),
                        OPS.two_shot_all_reduce_out(inner, "sum", name, torch.empty_like(values)),
                    ]
                    assert torch.equal(inner, values), "an input was overwritten"
                    for op in (OPS.two_shot_all_reduce_, OPS.multimem_all_reduce_):
                        op(inner.copy_(values), "sum", name)
                        outs.append(inner.clone())
                    assert (guarded[:shift] == 7).all() and (guarded[shift + count :] == 7).all(), "written beside it"
                    near(outs[0], want)
                    every = reference.all_gather(torch.stack(outs), 0, name).view(world(), len(outs), count)
                    assert torch.equal(every, every[:1].expand_as(every)), "ranks have different sums"
                    for got in outs:
                        near(got, want)


@check
def test_scatters_and_gathers_of_parts(name):
    """reduce_scatter_out cuts the last dimension or the whole; multimem_all_gather_out is written in place by peers."""
    for dtype in (torch.float32, torch.bfloat16):
        for size in (128, 8192, 36 << 10):
            whole = tandem.torch.empty((36 << 10) // dtype.itemsize + 8, dtype=dtype).zero_()
            count = size // dtype.itemsize
            for last in (True, False):
                part = whole[2 : 2 + count].copy_(rand(count, dtype=dtype))
                part = part.view(-1, 128 // dtype.itemsize) if last else part
                out = part.new_full((*part.shape[:-1], part.shape[-1] // world()), float("nan"))
                assert OPS.reduce_scatter_out(part, name, last, out).data_ptr() == out.data_ptr()
                near(out, reference.reduce_scatter(part.float(), "sum", part.dim() - 1, name).to(dtype))
                assert not whole[:2].any() and not whole[2 + count :].any(), "written beside it"
            wide = part.view(2, -1)
            out = part.new_full((2, count // 2 // world()), float("nan"))
            OPS.reduce_scatter_out(wide, name, False, out)  # the elements in their order, whatever the shape
            near(out.view(-1), reference.reduce_scatter(part.float(), "sum", 0, name).to(dtype))
    empty = whole[:0]
    assert OPS.reduce_scatter_out(empty, name, False, empty.clone()).numel() == 0
    odd = rand(2 * world() + 1)
    for given, last in ((odd, False), (odd.expand(2, -1), True)):
        try:
            OPS.reduce_scatter_out(given, name, last, odd[:2])
            raise AssertionError("what does not divide was taken")
        except ValueError as error:
            assert "divide" in str(error), error
    # PyTorch's kernel needs parts of 16 bytes.
    twelve = rand(12 * world(), dtype=torch.bfloat16)
    near(
        OPS.reduce_scatter_out(twelve, name, False, twelve.new_empty(12)),
        reference.reduce_scatter(twelve, "sum", 0, name),
    )
    for shift in SHIFTS:
        given = torch.zeros(shift + 32, device=DEVICE)[shift:].copy_(rand(32))
        out = tandem.torch.empty(shift + 32 * world()).fill_(7)
        OPS.multimem_all_gather_out(given, name, out[shift:])
        assert torch.equal(out[shift:], reference.all_gather(given, 0, name)) and (out[:shift] == 7).all()


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
        tandem.torch.install(collectives=False)
        a, b = rand(2 * world(), 4), rand(4, 3, seed=1)
        near(OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name), reference.reduce_scatter(a @ b, "sum", 0, name))
        assert not calls
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            wide = OPS.fused_matmul_reduce_scatter(a.double(), b.double(), "sum", 0, name)
        assert ["symm_mem's own kernel" in str(one.message) for one in seen] == ([True] if rank() == 0 else []), seen
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
        tandem.torch.install(collectives=False)


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
    # As in PyTorch's own tests: memory that nobody writes holds NaN.
    torch.use_deterministic_algorithms(True, warn_only=True)
    tandem.torch.install(collectives=False)
    main()
