"""A rank that checks sums with a residual and an RMSNorm whose result is fp8: to the bit, the norm's own op and torch's quantisation."""

import warnings

import tandem.torch
import torch
from checks import DEVICE, check, main, once
from norm_checks import EPSILON, fails, launched_since, operands
from reference_ops import OPS, rank, world
from tandem.torch import _native
from torch._inductor.utils import run_and_get_code

FP8 = torch.float8_e4m3fn


def quantized(normed, scale):
    return (normed.float() / scale).clamp(-448, 448).to(FP8)


def scales_of(normed, blocks):
    """A scale for each row, or each of so many blocks of 128 columns."""
    wide = torch.nn.functional.pad(normed.float().abs(), (0, (blocks * 128 - normed.shape[-1]) * (blocks > 1)))
    most = wide.unflatten(-1, (blocks, -1)).amax(-1).clamp(min=1 / 512)
    return most / torch.full_like(most, 448)  # by a number CUDA multiplies with its rounded reciprocal


def spread(scales, columns):
    return scales if scales.shape[-1] == 1 else scales.repeat_interleave(128, -1)[..., :columns]


def calls_of(x, a, b, weight, bias, name):
    """The op of the norm alone, and what it takes before the residual, and behind the scale."""
    return (
        ("all_reduce_rms_norm", (x,), weight, (EPSILON, name)),
        ("matmul_all_reduce_rms_norm", (a, b), weight, (EPSILON, name)),
        ("matmul_all_reduce_rms_norm", (a, b), weight, (EPSILON, name, bias)),
    )


def same(got, want):
    """Equal to the bit. GPUs add a row's squares of f32 in another order where the norm is a kernel of its own."""
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.shape)
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), (got.float() - want.float()).abs().max()


def types():
    return (torch.float32, torch.float16, torch.bfloat16) if DEVICE == "cpu" else (torch.float16, torch.bfloat16)


@check
def test_values(name):
    for dtype in types():
        for shape in ((1, 8), (5, 8), (2, 3, 40), (3, 1000), (7, 256), (0, 8)):
            x, a, b, residual, weight, bias = operands(*shape, dtype=dtype)
            for op, first, weights, behind in calls_of(x, a, b, weight, bias, name):
                total = residual.clone()
                normed = getattr(OPS, op)(*first, total, weights, *behind)
                for given in (0.02, 0.001):  # the latter saturates
                    scale, own = torch.full((1,), given, device=DEVICE), residual.clone()
                    got = getattr(OPS, f"{op}_static_fp8")(*first, own, weights, scale, *behind)
                    same(got, quantized(normed, scale))
                    assert torch.equal(own, total)
                for blocks in {1, -(-shape[-1] // 128)}:
                    scales, own = torch.full((*shape[:-1], blocks), float("nan"), device=DEVICE), residual.clone()
                    got = getattr(OPS, f"{op}_dynamic_fp8")(*first, own, weights, scales, *behind)
                    want = scales_of(normed, blocks) if normed.numel() else torch.empty_like(scales)
                    assert torch.equal(scales, want), (scales, want)
                    same(got, quantized(normed, spread(want, shape[-1])))
                    assert torch.equal(own, total)


@check
def test_launches_go_past_python(name):
    x, a, b, residual, weight, bias = operands(4, 8, dtype=torch.bfloat16)
    out, scale = torch.empty(4, 8, dtype=FP8, device=DEVICE), torch.full((1,), 0.02, device=DEVICE)
    scales = torch.empty(4, 1, device=DEVICE)
    for op, first, weights, behind in calls_of(x, a, b, weight, bias, name):
        normed = getattr(OPS, op)(*first, residual.clone(), weights, *behind)
        for suffix, by in (("static_fp8", scale), ("dynamic_fp8", scales)):
            want = quantized(normed, scale if by is scale else scales_of(normed, 1))
            operation = getattr(OPS, f"{op}_{suffix}")
            calls = (
                lambda: operation(*first, residual.clone(), weights, by, *behind),
                lambda: operation.noted(*first, residual.clone(), weights, by, *behind, graph="a graph"),
                lambda: operation.out(*first, residual.clone(), weights, by, *behind, out=out) or out,
                lambda: (
                    operation.noted_out(*first, residual.clone(), weights, by, *behind, graph="a graph", out=out) or out
                ),
            )
            for call in calls:
                call()
                out.view(torch.uint8).fill_(0)
                before = _native.counts().launched
                for _ in range(2):
                    same(call().clone(), want)
                assert launched_since(before, 2), op


@check
def test_scales_by_columns_and_other_strides(name):
    x, _, _, residual, weight, _ = operands(6, 256, dtype=torch.bfloat16)
    normed = OPS.all_reduce_rms_norm(x, residual.clone(), weight, EPSILON, name)
    want = scales_of(normed, 2)
    for _ in range(2):
        scales = torch.full((2, 8), -1.0, device=DEVICE).t()[:6]  # columns at a pitch of 8, as TMA takes them
        wide = torch.zeros(6, 256, 2, dtype=torch.uint8, device=DEVICE).view(FP8)
        OPS.all_reduce_rms_norm_dynamic_fp8.out(x, residual.clone(), weight, scales, EPSILON, name, out=wide[..., 1])
        assert torch.equal(scales, want) and (scales.t().as_strided((2, 2), (8, 1), 6) == -1).all()
        same(wide[..., 1].contiguous(), quantized(normed, spread(want, 256)))
        assert not wide.view(torch.uint8)[..., 0].any()


@check
def test_rows_of_zeros_have_the_least_scale(name):
    x, _, _, residual, weight, _ = operands(3, 16, dtype=torch.bfloat16)
    scales = torch.empty(3, 1, device=DEVICE)
    got = OPS.all_reduce_rms_norm_dynamic_fp8(x, residual, weight * 0, scales, EPSILON, name)
    assert (scales == torch.tensor(1 / 512) / 448).all() and not got.float().any()


def compiles_to_the_same(name):
    x, _, _, residual, weight, _ = operands(4, 8, dtype=torch.bfloat16)
    scale = torch.full((1,), 0.02, device=DEVICE)

    def layer(x, residual, weight, scale):
        scales = torch.empty(x.shape[0], 1, device=x.device)
        given = OPS.all_reduce_rms_norm_static_fp8(torch.relu(x), residual, weight, scale, EPSILON, name)
        made = OPS.all_reduce_rms_norm_dynamic_fp8(x, residual, weight, scales, EPSILON, name)
        return given.float() * scale, made.float() * scales, scales

    mine, theirs = residual.clone(), residual.clone()
    with torch.no_grad():
        want = layer(x, theirs, weight, scale)
        got, (code,) = run_and_get_code(torch.compile(layer, fullgraph=True), x, mine, weight, scale)
    for one, other in zip((*got, mine), (*want, theirs), strict=True):
        assert torch.equal(one, other)
    assert "all_reduce_rms_norm_static_fp8" in code and "all_reduce_rms_norm_dynamic_fp8" in code, code


@check
def test_compiled(name):
    compiles_to_the_same(name)


@check
def test_opcheck(name):
    x, a, b, residual, weight, bias = operands(4, 8, dtype=torch.bfloat16)
    scale, scales = torch.full((1,), 0.02, device=DEVICE), torch.empty(4, 1, device=DEVICE)
    out = torch.empty(4, 8, dtype=FP8, device=DEVICE)
    for op, first, weights, behind in calls_of(x, a, b, weight, bias, name):
        for suffix, by in (("static_fp8", scale), ("dynamic_fp8", scales)):
            operation, given = getattr(OPS, f"{op}_{suffix}"), (*first, residual.clone(), weights, by, *behind)
            # torch's check of schemas multiplies results, and has no product of fp8 elements.
            checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
            torch.library.opcheck(operation.default, given, test_utils=checks)
            noted = {"graph": "opcheck"}
            for overload, named in (("out", {"out": out}), ("noted", noted), ("noted_out", noted | {"out": out})):
                torch.library.opcheck(getattr(operation, overload), given, named, test_utils="test_faketensor")


@check
def test_wrong_arguments_fail_before_anything_is_sent(name):
    x, _, _, residual, weight, _ = operands(4, 8, dtype=torch.bfloat16)
    before = residual.clone()
    scale, scales = torch.full((1,), 0.02, device=DEVICE), torch.empty(4, 1, device=DEVICE)
    static, dynamic = OPS.all_reduce_rms_norm_static_fp8, OPS.all_reduce_rms_norm_dynamic_fp8
    for operation, by, what in (
        (static, scale.half(), "scale is torch.float16"),
        (static, scales, "scale is [4, 1]"),
        (dynamic, scales.half(), "scales is torch.float16"),
        (dynamic, scales[:3], "scales is [3, 1]"),
        (dynamic, scales.view(4), "scales is [4]"),
        (dynamic, torch.empty(4, 2, device=DEVICE), "scales is [4, 2]"),
        (dynamic, scales[:1].expand(4, 1), "share memory"),
    ):
        fails(ValueError, lambda: operation(x, residual, weight, by, EPSILON, name), what)
    for operation, by in ((static, scale), (dynamic, scales)):
        given = (x, residual, weight, by, EPSILON, name)
        fails(ValueError, lambda: operation.out(*given, out=torch.empty_like(x)), "out is torch.bfloat16")
        fails(ValueError, lambda: operation(x, residual[:3], *given[2:]), "residual is torch.bfloat16 [3, 8]")
        weight.requires_grad_()
        fails(RuntimeError, lambda: operation(*given), "has no gradients")
        weight.requires_grad_(False)
    assert torch.equal(residual, before)


@once
def test_declined_types_fall_back_alike(name):
    x, _, _, residual, weight, _ = (one.double() for one in operands(4, 256))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        normed = OPS.all_reduce_rms_norm(x, residual.clone(), weight, EPSILON, name)
        for scale in (
            torch.full((1,), 0.02, device=DEVICE),
            torch.empty(4, 1, device=DEVICE),
            torch.empty(4, 2, device=DEVICE),
        ):
            op = "static" if scale.numel() == 1 else "dynamic"
            own = residual.clone()
            got = getattr(OPS, f"all_reduce_rms_norm_{op}_fp8")(x, own, weight, scale, EPSILON, name)
            if op == "dynamic":
                assert torch.equal(scale, scales_of(normed, scale.shape[-1]))
            same(got, quantized(normed, spread(scale, 256)))
            assert not torch.equal(own, residual)
    texts = [str(one.message) for one in seen]
    assert len(texts) == (3 if rank() == 0 else 0) and all("float64" in text for text in texts), texts
    assert world() > 1 and tandem.torch.attach(name) is not None


if __name__ == "__main__":
    main()
