"""A rank that checks the scaled products of torch.ops.tandem, fp8 with factors, against torch's own collectives and products."""

import tandem.torch
import torch
from checks import CUDA, DEVICE, check, main
from reference_ops import OPS, near, rand, rank, reference, world
from tandem.torch import _fallback


@check
def test_scaled_products(name):
    fp8 = torch.float8_e4m3fn
    for shape in ((2 * world(), 16), (2, world(), 16)):
        a, bs = rand(*shape).to(fp8), [rand(16, 4 * world(), seed=1).to(fp8), rand(8, 16, seed=2).to(fp8).t()]
        one, by_row = torch.tensor(0.5, device=DEVICE), rand(*shape[:-1], 1).abs() + 0.1
        columns = [rand(1, b.shape[1], seed=4).abs() + 0.1 for b in bs]
        bias = rand(bs[0].shape[1], seed=5, same=True)
        for a_scale, b_scales in ((one, [one, one]), (by_row, columns)):
            for dim in range(len(shape) - 1):
                whole, products = OPS.all_gather_scaled_matmul(
                    a,
                    bs,
                    a_scale,
                    b_scales,
                    dim,
                    name,
                    [bias, None],
                    [None, None],
                    [torch.bfloat16, None],
                    [True, False],
                )
                left = reference.all_gather(a.float() * a_scale, dim, name)
                assert torch.equal(whole.view(torch.uint8), reference.all_gather(a.view(torch.uint8), dim, name))
                assert products[0].dtype == torch.bfloat16 and products[1].dtype == fp8
                near(products[0], (left @ (bs[0].float() * b_scales[0]) + bias).bfloat16())
                near(products[1].float(), left @ (bs[1].float() * b_scales[1]), torch.float8_e4m3fn)
            product = (a.float() * a_scale) @ (bs[0].float() * b_scales[0])
            for op in ("sum", "avg"):
                for dim in range(len(shape)):
                    if shape[dim] % world() and dim < len(shape) - 1:
                        continue
                    got = OPS.scaled_matmul_reduce_scatter(
                        a, bs[0], a_scale, b_scales[0], op, dim, dim, name, None, out_dtype=torch.float32
                    )
                    near(got, reference.reduce_scatter(product, op, dim, name))
                got = OPS.scaled_matmul_all_reduce(
                    a, bs[0], a_scale, b_scales[0], op, name, bias, torch.tensor(2.0, device=DEVICE), torch.bfloat16
                )
                near(got, ((reference.all_reduce(product, op, name) + bias) * 2).bfloat16())
    # The product has more dimensions than A, which upstream's pass makes of reshapes.
    flat, want = rand(2 * world(), 16).to(fp8), [2, world(), 4 * world()]
    got = OPS.scaled_matmul_reduce_scatter(flat, bs[0], one, one, "sum", 1, 0, name, want, out_dtype=torch.bfloat16)
    product = (flat.float() * 0.5) @ (bs[0].float() * 0.5)
    near(got, reference.reduce_scatter(product.view(want), "sum", 1, name).bfloat16())
    try:
        OPS.scaled_matmul_all_reduce(a, bs[0], one.requires_grad_(), one, "sum", name)
        raise AssertionError("gradients got lost in silence")
    except RuntimeError as error:
        assert "no gradients" in str(error)


@check
def test_a_scale_of_each_rank(name):
    """One factor for all of a rank's A, as of dynamic quantisation: it goes with the rank's rows, or its part of K."""
    fp8 = torch.float8_e4m3fn
    mine, one = torch.tensor(0.5 + rank(), device=DEVICE), torch.tensor([[0.25]], device=DEVICE)
    for shape in ((4, 16), (2, 3, 16), (1, 16)):
        for dim in range(len(shape)):
            along_k = dim == len(shape) - 1
            a, depth = rand(*shape).to(fp8), shape[-1] * (world() if along_k else 1)
            bs = [rand(depth, 16, seed=1, same=True).to(fp8), rand(depth, 32, seed=2, same=True).to(fp8)]
            columns = rand(1, 32, seed=3, same=True).abs() + 0.1
            left = reference.all_gather(a.float() * mine, dim, name)
            for scale in (mine, mine.view(1), mine.view(1, 1)):
                _, products = OPS.all_gather_scaled_matmul(
                    *(a, bs, scale, [one, columns], dim, name),
                    *([None, None], [None, None], [torch.float32, torch.bfloat16], [False, False]),
                )
                near(products[0], left @ (bs[0].float() * one))
                near(products[1], (left @ (bs[1].float() * columns)).bfloat16())


@check
def test_scaled_products_along_k(name):
    """Each rank's part of a gathered row has a separate scale; also where torch's collectives stand in."""
    fp8 = torch.float8_e4m3fn
    for shape, blocks in (((6, 16), 1), ((2, 3, 16), 1), ((4, 256), 2)):
        a, b = rand(*shape).to(fp8), rand(shape[-1] * world(), 8, seed=1, same=True).to(fp8)
        by_row = rand(*shape[:-1], blocks, seed=2).abs() + 0.1
        factors = by_row.repeat_interleave(shape[-1] // blocks, -1)
        columns = rand(1, 8, seed=3, same=True).abs() + 0.1
        if blocks > 1:
            columns = rand(blocks * world(), 1, seed=3, same=True).abs() + 0.1
        right = b.float() * (columns.repeat_interleave(128, 0) if blocks > 1 else columns)
        want = reference.all_gather(a.float() * factors, len(shape) - 1, name) @ right
        for dim in (len(shape) - 1, -1):
            whole, (got,) = OPS.all_gather_scaled_matmul(
                a, [b], by_row, [columns], dim, name, [None], [None], [torch.bfloat16], [True]
            )
            near(got, want.bfloat16())
            assert torch.equal(whole.view(torch.uint8), reference.all_gather(a.view(torch.uint8), dim, name))
            _, (alike,) = reference.all_gather_scaled_matmul(a, [b], by_row, [columns], dim, name, [], [])
            near(alike, want)


@check
def test_products_where_tandem_declines(name):
    """torch's product of fp8 stands in on GPUs that have one; on others, and for other scales, a product in f32."""
    fp8, five = torch.float8_e4m3fn, torch.float8_e5m2
    a, b = rand(6, 128).to(fp8), rand(128, 32, seed=1).to(fp8)
    one, rows, columns = torch.tensor(0.5, device=DEVICE), rand(6, 1).abs() + 0.1, rand(1, 32, seed=2).abs() + 0.1
    for left, right in ((a, b), (a.view(2, 3, 128), b.t().contiguous().t()), (a.t().contiguous().t(), b)):
        for a_scale in (one, one.view(1, 1), rows, rows.view(*left.shape[:-1], 1)):
            for b_scale in (one, columns, columns.view(32)):
                flat = left.reshape(6, 128)
                want = (flat.float() * a_scale.reshape(-1, 1)) @ (right.float() * b_scale.reshape(1, -1))
                assert _fallback.fits_scaled_mm(flat, right, a_scale, b_scale)
                # GPUs sum products of fp8 with fewer bits than fp32 has.
                bound = torch.bfloat16 if CUDA else None
                near(_fallback.fp8_product(flat, right, a_scale, b_scale), want, bound)
                got = _fallback._scaled_product(left, right, a_scale, b_scale)
                near(got, want.view(*left.shape[:-1], 32), bound)
    for given in (
        (a, b, rand(6, 1), rand(2, 1)),  # as of two blocks of rows
        (a, b, rand(6, 2), one),
        (a, b[:, :24], one, one),
        (a[:, :120], b[:120], one, one),
        (a[:0], b, one, one),
        (a.to(five), b.to(five), one, one),
        (a.bfloat16(), b.bfloat16(), one, one),
    ):
        assert not _fallback.fits_scaled_mm(*given), [tuple(one.shape) for one in given]
    assert _fallback.fits_scaled_mm(a.to(five), b, one, one)


@check
def test_scales_by_blocks(name):
    fp8, depth, wide = torch.float8_e4m3fn, 256, 4 * world()
    a, b = rand(2 * world(), depth).to(fp8), rand(depth, wide, seed=1).to(fp8)
    a_scale, b_scale = rand(2 * world(), 2).abs() + 0.1, rand(2, 1, seed=2).abs() + 0.1
    left, right = a.float() * a_scale.repeat_interleave(128, 1), b.float() * b_scale.repeat_interleave(128, 0)
    got = OPS.scaled_matmul_reduce_scatter(a, b, a_scale, b_scale, "sum", 0, 0, name, None, out_dtype=torch.bfloat16)
    near(got, reference.reduce_scatter(left @ right, "sum", 0, name).bfloat16())
    near(fallback_of(a, b, a_scale, b_scale, name).bfloat16(), got)
    _, (got,) = OPS.all_gather_scaled_matmul(
        a, [b], a_scale, [b_scale], 0, name, [None], [None], [torch.bfloat16], [True]
    )
    near(got, (reference.all_gather(left, 0, name) @ right).bfloat16())


def fallback_of(a, b, a_scale, b_scale, name):
    return reference.scaled_reduced(a, b, a_scale, b_scale, "sum", 0, name, None, None)


@check
def test_scaled_products_of_ever_other_rows_share_plans(name):
    tandem.torch.detach(name)
    before = tandem.torch.configure()
    # Clients on CUDA decline products with scales that are not fused.
    tandem.torch.configure(placement="auto" if CUDA else "client", families="all")
    fp8, wide = torch.float8_e4m3fn, torch.bfloat16
    try:
        b, one = rand(16, 8, seed=1).to(fp8), torch.tensor(0.5, device=DEVICE)
        columns, bias = rand(1, 8, seed=2).abs() + 0.1, rand(8, seed=3, same=True)
        right = b.float() * columns
        for rows in range(1, 10):
            for deep in ((), (1,), (2,)):
                a = rand(*deep, rows, 16).to(fp8)
                mine, all_rows = (
                    rand(*deep, rows, 1, seed=4).abs() + 0.1,
                    rand(*deep, rows * world(), 1, same=True).abs(),
                )
                gathered = reference.all_gather(a.view(torch.uint8), len(deep), name)
                for scale, left in (
                    (mine, reference.all_gather(a.float() * mine, len(deep), name)),
                    (all_rows, gathered.view(fp8).float() * all_rows),
                    (one, gathered.view(fp8).float() * one),
                ):
                    whole, (product,) = OPS.all_gather_scaled_matmul(
                        a, [b], scale, [columns], len(deep), name, [bias], [None], [wide], [True]
                    )
                    assert torch.equal(whole.view(torch.uint8), gathered)
                    near(product, (left @ right + bias).to(wide))
                many = rand(*deep, rows * world(), 16, seed=5).to(fp8)
                factors = rand(*deep, rows * world(), 1, seed=6).abs() + 0.1
                for scale in (factors, one):
                    want = (many.float() * scale) @ right
                    got = OPS.scaled_matmul_reduce_scatter(
                        many, b, scale, columns, "sum", len(deep), len(deep), name, None, None, None, wide
                    )
                    near(got, reference.reduce_scatter(want, "sum", len(deep), name).to(wide))
                for scale in (mine, one):
                    got = OPS.scaled_matmul_all_reduce(a, b, scale, columns, "sum", name, bias, None, wide)
                    near(got, (reference.all_reduce((a.float() * scale) @ right, "sum", name) + bias).to(wide))
        flat = rand(6 * world(), 16).to(fp8)  # whose product is of more dimensions
        want = [2, 3 * world(), 8]
        got = OPS.scaled_matmul_reduce_scatter(flat, b, one, columns, "sum", 1, 0, name, want, None, None, wide)
        near(got, reference.reduce_scatter(((flat.float() * one) @ right).view(want), "sum", 1, name).to(wide))
        # 21 kinds of calls with nine numbers of rows each are 189 plans at most. Where the rows are no first dimension, each number
        # has its own. So it is on engines: they refuse each kind's family once.
        made = tandem.torch.attach(name).plans._made
        assert made < (189 + 21 if CUDA else 90), made
    finally:
        tandem.torch.configure(placement=before.placement, families=before.families)
        tandem.torch.detach(name)


if __name__ == "__main__":
    main()
