"""A rank that compiles sums with a residual and an RMSNorm behind them whose norm is quantised to fp8: to the bit, the norm's own op
and the quantisation that eager mode makes of its result."""

import tandem.torch
import torch
import torch.nn.functional as F
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
    assert torch.equal(got.cpu().view(torch.uint8), want.cpu().view(torch.uint8)), (got.float().cpu() - want.float().cpu()).abs().max()


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

    # Each call has a tensor of its own: equal ones would be one.
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
    for dtype, norm in ((torch.bfloat16, by_hugging_face), (torch.bfloat16, by_meta), (torch.float32, weighed_in_fp32)):
        check_values(norm, (given, by_rows, by_blocks), (1, 384), dtype, name)


if __name__ == "__main__":
    main()
