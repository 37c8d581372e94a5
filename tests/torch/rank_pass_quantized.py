"""A rank that compiles sums with a residual and an RMSNorm behind them whose norm is quantised to fp8: to the bit, the norm's own op
and the quantisation that eager mode makes of its result."""

import tandem.torch
import torch
from checks import DEVICE, check, main
from norm_checks import EPSILON, launched_since, operands
from rank_pass import Compiler
from rank_pass_norms import PLAIN, PRODUCT, by_hugging_face, by_meta, by_torch, summed, weighed_in_fp32
from reference_ops import OPS
from tandem.torch import _native
from torch._inductor.utils import run_and_get_code

FP8 = torch.float8_e4m3fn
LEAST = 1 / (448 * 512)


def given(normed, scale):
    return ((normed.float() / scale).clamp(-448, 448).to(FP8),)


def given_without_a_conversion(normed, scale):
    return (torch.clamp(normed / scale, min=-448.0, max=448.0).to(FP8),)


def given_rows(normed, scale):
    """As a linear layer has it, of rows alone."""
    return ((normed.flatten(0, -2).float() / scale.view(1, 1)).clamp(-448, 448).to(FP8).view(normed.shape),)


def by_rows(normed, scale):
    amax = normed.abs().amax(-1, keepdim=True).float()
    scales = (amax / 448).clamp(min=LEAST)
    return (normed.float() / scales).clamp(-448, 448).to(FP8), scales


def by_rows_of_fp32(normed, scale):
    wide = normed.float().flatten(0, -2)
    scales = wide.abs().amax(-1).clamp(min=1 / 512) / 448
    return (wide / scales[:, None]).to(FP8), scales


def by_rows_with_indices(normed, scale):
    most = normed.abs().max(dim=-1)[0].unsqueeze(-1).to(torch.float32)
    scales = torch.clamp(most / torch.full_like(most, 448), min=LEAST)
    return (normed / scales).clamp(-448, 448).to(FP8), scales.squeeze(-1)


def by_blocks(normed, scale):
    blocks = normed.view(*normed.shape[:-1], -1, 128)
    scales = blocks.abs().float().amax(-1).clamp(1 / 512) / 448.0
    return (blocks / scales.unsqueeze(-1)).clamp(-448, 448).to(FP8).view(normed.shape), scales


GIVEN = (given, given_without_a_conversion, given_rows)
MADE = (by_rows, by_rows_of_fp32, by_rows_with_indices, by_blocks)


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    bits, wanted_bits = (one.cpu().reshape(-1).view(torch.uint8) for one in (got, want))
    assert torch.equal(bits, wanted_bits), (got.float().cpu() - want.float().cpu()).abs().max()


def alike(got, want):
    """The same; on GPUs up to a step of fp8, where torch's or Inductor's kernels quantise."""
    if DEVICE == "cpu" or got.dtype == torch.bfloat16:
        same(got, want)
    else:
        torch.testing.assert_close(got.cpu().float(), want.cpu().float(), rtol=0.13, atol=0.01)


def apart(op, first, residual, weight, scale, quantize, name, *behind):
    """What the norm's own op gives, quantised on the CPU: of a number a GPU divides otherwise."""
    total = residual.clone()
    normed = getattr(OPS, op)(*first, total, weight, EPSILON, name, *behind)
    return total, normed, quantize(normed.cpu(), scale.cpu())


def with_scale(*shape, dtype=torch.bfloat16):
    x, a, b, residual, weight, _ = operands(*shape, dtype=dtype)
    return x, a, b, residual, weight, torch.full((1,), 0.02, device=DEVICE)


def compiled(function, *tensors, dynamic=None):
    """The results of the function behind the pass alone, and its compiler."""
    torch._dynamo.reset()
    compiler = Compiler()
    with torch.no_grad():
        return torch.compile(function, backend=compiler, fullgraph=True, dynamic=dynamic)(*tensors), compiler


def wanted(op, quantize):
    return f"{op}_{'static' if quantize in GIVEN else 'dynamic'}_fp8"


def check_values(norm, quantizations, shape, dtype, name):
    """Each quantisation behind a sum, and every other one behind a product's; scales and residual go on."""
    x, a, b, residual, weight, scale = with_scale(*shape, dtype=dtype)
    calls = [(PLAIN, one) for one in quantizations] + [(PRODUCT, one) for one in quantizations[::2]]

    # The compiler would merge equal calls, so each has another tensor.
    def distinct(x, a, b, residual, weight, scale):
        results = []
        for i, (op, quantize) in enumerate(calls):
            total = residual + (summed(x * 2**i) if op == PLAIN else summed((a * 2**i) @ b))
            results += [total, *quantize(norm(total, weight), scale)]
        return results

    results, compiler = compiled(distinct, x, a, b, residual, weight, scale)
    names = sorted(wanted(*call) for call in calls)
    assert compiler.fused() == names, (norm, list(map(str, compiler.records)))
    assert all("norm in fp8 follows" in record.reason for record in compiler.records), list(map(str, compiler.records))
    want = []
    for i, (op, quantize) in enumerate(calls):
        inputs = (x * 2**i,) if op == PLAIN else (a * 2**i, b)
        total, _, quantized = apart(op, inputs, residual, weight, scale, quantize, name)
        want += [total, *quantized]
    for mine, theirs in zip(results, want, strict=True):
        same(mine, theirs)


@check
def test_forms_of_quantisations(name):
    for dtype, norm, shape in ((torch.bfloat16, by_torch, (2, 3, 256)), (torch.float16, by_hugging_face, (5, 128))):
        check_values(norm, (*GIVEN, *MADE), shape, dtype, name)


@check
def test_forms_of_norms(name):
    # In fp32 GPUs add a row's squares in another order where the norm is a separate kernel.
    last = torch.float32 if DEVICE == "cpu" else torch.float16
    for dtype, norm in ((torch.bfloat16, by_hugging_face), (torch.bfloat16, by_meta), (last, weighed_in_fp32)):
        check_values(norm, (given, by_rows, by_blocks), (1, 384), dtype, name)


def by_reciprocal(normed, scale):
    return ((normed.float() * scale.reciprocal()).clamp(-448, 448).to(FP8),)


def unclamped(normed, scale):
    return ((normed.float() / scale).to(FP8),)


def clamped_to_less(normed, scale):
    return ((normed.float() / scale).clamp(-240, 240).to(FP8),)


def by_a_number(normed, scale):
    return ((normed.float() / 0.02).clamp(-448, 448).to(FP8),)


def in_its_own_type(normed, scale):
    return ((normed / scale.to(normed.dtype)).clamp(-448, 448).to(FP8),)


def of_each_row(normed, scale):
    return given(normed, scale * torch.ones(normed.shape[0], 1, device=normed.device))


def of_the_tensor(normed, scale):
    scales = normed.float().abs().amax().clamp(min=1 / 512) / 448
    return given(normed, scales)[0], scales


def by_rows_and_reciprocals(normed, scale):
    """As vLLM has it."""
    scales = (normed.abs().amax(dim=-1).unsqueeze(-1).to(torch.float32) / 448).clamp(min=LEAST)
    return (normed.to(torch.float32) * scales.reciprocal()).clamp(-448, 448).to(FP8), scales


def by_rows_multiplied(normed, scale):
    scales = normed.float().abs().amax(-1, keepdim=True).clamp(min=1 / 512) * (1 / 448)
    return given(normed, scales)[0], scales


def with_another_floor(normed, scale):
    scales = normed.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return given(normed, scales)[0], scales


def without_a_floor(normed, scale):
    """As torchao has it."""
    scales = normed.float().abs().amax(-1, keepdim=True) / 448
    return given(normed, scales)[0], scales


def to_another_greatest(normed, scale):
    scales = normed.float().abs().amax(-1, keepdim=True).clamp(min=1 / 512) / 440
    return given(normed, scales)[0], scales


def by_blocks_of_64(normed, scale):
    blocks = normed.view(normed.shape[0], -1, 64)
    scales = blocks.abs().float().amax(-1, keepdim=True).clamp(1 / 512) / 448.0
    return (blocks / scales).clamp(-448, 448).to(FP8).view(normed.shape), scales


def of_signed_values(normed, scale):
    scales = normed.float().amax(-1, keepdim=True).clamp(min=1 / 512) / 448
    return given(normed, scales)[0], scales


def with_the_greatest(normed, scale):
    greatest = normed.float().abs().amax(-1, keepdim=True)
    scales = greatest.clamp(min=1 / 512) / 448
    return given(normed, scales)[0], scales, greatest


def with_columns(normed, scale):
    scales = normed.float().abs().amax(0, keepdim=True).clamp(min=1 / 512) / 448
    return given(normed, scales)[0], scales


def twice(normed, scale):
    return given(normed, scale)[0], given(normed, scale * 2)[0]


def beside_the_norm(normed, scale):
    return given(normed, scale)[0], normed


def by_rows_beside_the_norm(normed, scale):
    return *by_rows(normed, scale), normed * 2


DECLINED = (
    (by_reciprocal, "by a reciprocal"),
    (unclamped, "not clamped"),
    (clamped_to_less, "not clamped"),
    (by_a_number, "no scale in fp32"),
    (in_its_own_type, "no scale in fp32"),
    (of_each_row, "more than one element"),
    (of_the_tensor, "not of the last dimension"),
    (by_rows_and_reciprocals, "by a reciprocal"),
    (by_rows_multiplied, "by a multiplication"),
    (with_another_floor, "another least value"),
    (without_a_floor, "no least value"),
    (to_another_greatest, "not made by a division by 448"),
    (by_blocks_of_64, "neither of rows nor of 128 columns"),
    (of_signed_values, "than of the norm's greatest magnitudes"),
    (with_the_greatest, "used outside it"),
    (with_columns, "not of the last dimension"),
    (twice, "more than once"),
    (beside_the_norm, "other uses"),
    (by_rows_beside_the_norm, "other uses"),
)


@check
def test_what_stays_behind_the_norm_has_its_reason(name):
    """The norm is the op's, with all its uses. In half of the graphs it is in fp32 before its quantisation, as Inductor leaves it."""
    x, _, _, residual, weight, scale = with_scale(5, 256)
    for norms in ((by_meta, by_torch), (by_torch, by_meta)):

        def function(x, residual, weight, scale):
            results = []
            for i, (quantize, _) in enumerate(DECLINED):
                total = residual + summed(x * (i + 1))
                results += [total, *quantize(norms[i % 2](total, weight), scale)]
            return results

        results, compiler = compiled(function, x, residual, weight, scale)
        assert compiler.fused() == [PLAIN] * len(DECLINED), list(map(str, compiler.records))
        at = 0
        for i, ((quantize, reason), record) in enumerate(zip(DECLINED, compiler.records, strict=True)):
            text = str(record)
            assert "norm follows, and a quantisation behind it: " in text and reason in text, (quantize, text)
            total, _, want = apart(PLAIN, (x * (i + 1),), residual, weight, scale, quantize, name)
            for mine, theirs in zip(results[at : at + 1 + len(want)], (total, *want), strict=True):
                alike(mine, theirs)
            at += 1 + len(want)


def by_inductor(function, *tensors):
    """The compiled function's results, its code, and the records of its collectives."""
    torch._dynamo.reset()
    known = len(tandem.torch.explain_graph())
    run = torch.compile(function, fullgraph=True)
    with tandem.torch.compile_config(), torch.no_grad():
        results, codes = run_and_get_code(run, *tensors)
        before = _native.counts().launched
        again = run(*tensors)
        for one, other in zip(results, again, strict=True):
            same(one, other)
        records = tandem.torch.explain_graph()[known:]
        assert launched_since(before, len(records)), (before, _native.counts().launched)
    return results, "\n".join(codes), records


@check
def test_by_inductor(name):
    """Which leaves out the rounding between the norm and its quantisation: the op's values are those of eager mode."""
    x, a, b, residual, weight, scale = with_scale(6, 256)
    calls = [
        (PLAIN, by_torch, given, "static_fp8"),
        (PRODUCT, by_torch, by_rows_of_fp32, "dynamic_fp8"),
        (PLAIN, by_hugging_face, by_rows, "dynamic_fp8"),
        (PLAIN, by_torch, by_blocks, "dynamic_fp8"),
        (PRODUCT, by_torch, by_reciprocal, ""),
        (PLAIN, by_torch, beside_the_norm, ""),
        (PLAIN, by_torch, by_rows_and_reciprocals, ""),
    ]

    def function(x, a, b, residual, weight, scale):
        results = []
        for i, (op, norm, quantize, _) in enumerate(calls):
            total = residual + (summed(x * (i + 1)) if op == PLAIN else summed((a * (i + 1)) @ b))
            quantized, *others = quantize(norm(total, weight), scale)
            results += [total, quantized, *others]
        return results

    results, code, records = by_inductor(function, x, a, b, residual, weight, scale)
    assert sorted(one.fused_into for one in records) == sorted(f"{op}_{end}".rstrip("_") for op, _, _, end in calls), (
        records
    )
    at = 0
    for i, (op, _, quantize, suffix) in enumerate(calls):
        assert f"tandem.{op}_{suffix}".rstrip("_") in code, code
        inputs = (x * (i + 1),) if op == PLAIN else (a * (i + 1), b)
        total, _, want = apart(op, inputs, residual, weight, scale, quantize, name)
        for mine, theirs in zip(results[at : at + 1 + len(want)], (total, *want), strict=True):
            (same if suffix else alike)(mine, theirs)
        at += 1 + len(want)


@check
def test_in_front_of_a_scaled_product(name):
    x, _, _, residual, weight, scale = with_scale(16, 32)
    matrix, other = torch.eye(32, device=DEVICE).to(FP8), torch.full((1,), 0.5, device=DEVICE)

    def function(x, residual, weight, scale, matrix, other):
        total = residual + summed(x)
        (quantized,) = given(by_torch(total, weight), scale)
        return torch._scaled_mm(quantized, matrix.t(), scale, other, out_dtype=torch.bfloat16), total

    (product, total), _, records = by_inductor(function, x, residual, weight, scale, matrix, other)
    assert [one.fused_into for one in records] == [f"{PLAIN}_static_fp8"], records
    want, _, (quantized,) = apart(PLAIN, (x,), residual, weight, scale, given, name)
    same(total, want)
    same(product, torch._scaled_mm(quantized.to(DEVICE), matrix.t(), scale, other, out_dtype=torch.bfloat16))


@check
def test_weights_with_one_added(name):
    """As Gemma's norm has them: taken where they are rounded to their type; with the sum in fp32 the norm stays apart."""
    x, _, _, residual, weight, scale = with_scale(5, 128)

    def function(x, residual, weight, scale):
        first, second = residual + summed(x), residual + summed(x * 2)
        wide = second.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * (1.0 + weight.float())
        return first, *given(by_torch(first, 1.0 + weight), scale), second, normed.to(second.dtype)

    (first, one, *_), compiler = compiled(function, x, residual, weight, scale)
    assert compiler.fused() == ["all_reduce", f"{PLAIN}_static_fp8"], list(map(str, compiler.records))
    assert any("weight is of another type" in record.reason for record in compiler.records), compiler.records
    total, _, want = apart(PLAIN, (x,), residual, 1.0 + weight, scale, given, name)
    for mine, theirs in zip((first, one), (total, *want), strict=True):
        same(mine, theirs)


@check
def test_norms_that_stay_in_fp32(name):
    """What is not quantised alone keeps its digits, and the norm stays apart."""

    def function(x, residual, weight, scale):
        total = residual + summed(x)
        wide = total.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * weight.float()
        return total, *given(normed, scale), normed.sum()

    x, _, _, residual, weight, scale = with_scale(5, 128)
    _, compiler = compiled(function, x, residual, weight, scale)
    assert compiler.fused() == ["all_reduce"] and "used outside it" in str(compiler.records[0]), compiler.records


@check
def test_any_number_of_rows(name):
    x, _, _, residual, weight, scale = with_scale(6, 256)

    def function(x, residual, weight, scale):
        first, second = residual + summed(x), residual + summed(x * 2)
        return first, *given(by_torch(first, weight), scale), second, *by_rows(by_torch(second, weight), scale)

    known = len(tandem.torch.explain_graph())
    torch._dynamo.reset()
    compiler = Compiler()
    for backend in (compiler, "inductor"):
        with tandem.torch.compile_config():
            run = torch.compile(function, backend=backend, fullgraph=True)
            for rows in (6, 3):
                few = [one[:rows].clone() for one in (x, residual)]
                for one in few:
                    torch._dynamo.mark_dynamic(one, 0)
                with torch.no_grad():
                    first, one, second, other, scales = run(*few, weight, scale)
                total, _, want = apart(PLAIN, few[:1], few[1], weight, scale, given, name)
                same(first, total)
                same(one, *want)
                total, _, want = apart(PLAIN, (few[0] * 2,), few[1], weight, scale, by_rows, name)
                for mine, theirs in zip((second, other, scales), (total, *want), strict=True):
                    same(mine, theirs)
    names = sorted(record.fused_into for record in tandem.torch.explain_graph()[known:])
    assert compiler.fused() == names == [f"{PLAIN}_dynamic_fp8", f"{PLAIN}_static_fp8"], (compiler.records, names)


if __name__ == "__main__":
    main()
