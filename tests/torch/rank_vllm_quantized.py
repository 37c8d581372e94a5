"""A rank of vLLM whose compiled functions quantise a norm behind a sum to fp8, by vLLM's own layer, written out or by its kernels.

As rank_vllm_compiled.py. Stand-ins in torch take the place of vLLM's kernels.
"""

import functools
import types

import rank_vllm_compiled
import rank_vllm_norms
import tandem.vllm
import torch
from checks import check, main
from rank_vllm import launches, vllm_groups, world
from rank_vllm_compiled import COLUMNS, EPSILON, inputs
from rank_vllm_norms import near
from torch._inductor import config as inductor
from vllm import ir
from vllm.compilation.passes import inductor_pass
from vllm.config.utils import Range
from vllm.distributed import communication_op
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

FP8 = torch.float8_e4m3fn
LONG = 256


def _static(result, input, scale, group_shape=None):
    result.copy_((input.float() * scale.reciprocal()).clamp(-448, 448).to(FP8))


def _by_tokens(result, input, scale, scale_ub):
    scale.copy_((input.abs().amax(-1, keepdim=True).float() / 448).clamp(min=1 / (448 * 512)))
    result.copy_((input.float() / scale).clamp(-448, 448).to(FP8))


rank_vllm_norms._kernels.impl("static_scaled_fp8_quant", _static, "CPU")
rank_vllm_norms._kernels.impl("dynamic_per_token_scaled_fp8_quant", _by_tokens, "CPU")


def layer(group_shape, static=False, columnwise=False):
    """What vLLM's layer has of its configuration: the layer itself needs a whole configuration of vLLM."""
    made = types.SimpleNamespace(
        static=static,
        group_shape=group_shape,
        is_group_quant=group_shape.is_per_group(),
        group_size=group_shape.col,
        use_per_token_if_dynamic=group_shape == GroupShape.PER_TOKEN,
        num_token_padding=None,
        column_major_scales=columnwise,
        tma_aligned_scales=False,
        use_ue8m0=False,
        use_deep_gemm_supported=False,
    )
    made._quantize_group_native = functools.partial(QuantFP8._quantize_group_native, made)
    return made


def native(made, normed, scale):
    return QuantFP8.forward_native(made, normed, scale if made.static else None)


def by_kernel(made, normed, scale):
    return QuantFP8.forward_cuda(made, normed, scale if made.static else None)


TENSOR, TOKEN, GROUP = GroupShape.PER_TENSOR, GroupShape.PER_TOKEN, GroupShape(1, 128)
# How a norm is quantised, by which layer, and how many scales a row has; 0: one is given.
KINDS = (
    (native, layer(TENSOR, static=True), 0),
    (native, layer(TOKEN), 1),
    (native, layer(GROUP), 2),
    (native, layer(GROUP, columnwise=True), 2),
    (by_kernel, layer(TENSOR, static=True), 0),
    (by_kernel, layer(TOKEN), 1),
)


def halves(kinds, is_gemma=False):
    """Of layers, each with a sum of its own."""

    def function(x, residual, weight, scale):
        factors, results = weight.float() + 1.0 if is_gemma else weight, []
        for i, (quantize, made, _) in enumerate(kinds):
            total = communication_op.tensor_model_parallel_all_reduce(x * (i + 1))
            normed, summed = ir.ops.fused_add_rms_norm(total, residual, factors, EPSILON)
            quantized, scales = quantize(made, normed, scale)
            results.append((quantized, scales.clone(), summed))
        return results

    return function


def run(function, *given, dynamic=False):
    """As rank_vllm_compiled.run(), with vLLM's setting of Inductor's, and also of any number of rows."""
    manager = rank_vllm_compiled.vllm_passes()
    torch._dynamo.reset()
    with (
        torch.no_grad(),
        inductor_pass.pass_context(Range(1, 4096)),
        inductor.patch(post_grad_custom_post_pass=manager, fx_graph_cache=False, enable_auto_functionalized_v2=False),
    ):
        if dynamic:
            for one in given[:2]:
                torch._dynamo.mark_dynamic(one, 0)
        return torch.compile(function, fullgraph=True, dynamic=None if dynamic else False)(*given)


def wanted(x, residual, weight, scale, count, name):
    """By the op of the norm alone, and a division by the scale."""
    total = residual.clone()
    normed = torch.ops.tandem.all_reduce_rms_norm(x, total, weight, EPSILON, name).float()
    if count:
        blocks = normed.view(len(normed), count, -1)
        scale = blocks.abs().amax(-1).clamp(min=1 / 512) / 448
        normed = (blocks / scale.unsqueeze(-1)).view(len(normed), -1)
    else:
        normed = normed / scale
    return normed.clamp(-448, 448).to(FP8), scale, total


def same(got, want):
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype, (one.shape, one.dtype, other.shape, other.dtype)
        assert torch.equal(one.float(), other.float()), (one.float() - other.float()).abs().max()


def counted(group, op="all_reduce_norm_fp8"):
    rows = [row for row in tandem.vllm.report().rows if (row.group, row.op) == (group.unique_name, op)]
    return sum(row.calls for row in rows if not row.reason)


def operands(group, rows=6, dtype=torch.bfloat16):
    rank_vllm_compiled.COLUMNS = LONG
    try:
        tensors, residual, weight = inputs(group, rows, dtype)
    finally:
        rank_vllm_compiled.COLUMNS = COLUMNS
    return tensors[group.rank_in_group], residual, weight, torch.tensor([0.02])


@check
def test_quantisations_are_fused(name):
    with vllm_groups(world()) as group:
        group.use_custom_op_call = True  # as on GPUs
        tandem_name = group.device_communicator._tandem_group
        for is_gemma in (False, True):
            x, residual, weight, scale = operands(group)
            before, launched, kept = counted(group), launches(), residual.clone()
            results = run(halves(KINDS, is_gemma), x, residual, weight, scale, dynamic=is_gemma)
            made = (counted(group) - before, launches() - launched)
            assert made == (len(KINDS), len(KINDS)), (made, str(tandem.vllm.report()))
            assert torch.equal(residual, kept), "an argument of the compiled function was written"
            for i, (got, (_, _, count)) in enumerate(zip(results, KINDS, strict=True)):
                same(got, wanted(x * (i + 1), residual, weight + 1 if is_gemma else weight, scale, count, tandem_name))


@check
def test_what_vllm_quantises_itself(name):
    """A scale of the whole tensor, and norms that are used elsewhere, too."""

    def with_the_norm(quantize):
        return lambda made, normed, scale: (quantize(made, normed, scale)[0], normed * 2)

    kinds = [(native, layer(TENSOR), 0)]
    kinds += [(with_the_norm(quantize), made, count) for quantize, made, count in (KINDS[2], KINDS[4])]
    with vllm_groups(world()) as group:
        group.use_custom_op_call = True
        before, plain = counted(group), counted(group, "all_reduce_norm")
        run(halves(kinds), *operands(group))
        made = (counted(group) - before, counted(group, "all_reduce_norm") - plain)
        assert made == (0, len(kinds)), (made, str(tandem.vllm.report()))


@check
def test_a_group_that_is_served_no_more(name):
    """What was compiled for a served group runs by vLLM's own sum and norm."""
    with vllm_groups(world()) as group:
        communicator, served = group.device_communicator, group.device_communicator._tandem_group
        ops = torch.ops.tandem_vllm
        for is_gemma in (False, True):
            results = []
            for serves in (served, ""):
                communicator._tandem_group = serves
                x, residual, weight, scale = operands(group)
                launched, behind = launches(), (EPSILON, is_gemma, group.unique_name)
                first = residual.clone()
                # On the CPU vLLM's own sum is written to its input.
                static = ops.all_reduce_rms_norm_static_fp8(x.clone(), first, weight, scale, *behind)
                quantized, scales = ops.all_reduce_rms_norm_dynamic_fp8(x, residual, weight, 2, *behind)
                assert launches() - launched == (2 if serves else 0)
                blocks = quantized.float().unflatten(-1, (2, -1)) * scales.unsqueeze(-1)
                results.append((static.float() * scale, first, blocks.flatten(1), residual))
            communicator._tandem_group = served
            for one, theirs in zip(*results, strict=True):
                near(one.float(), theirs.float(), 0.15)  # a step of fp8


if __name__ == "__main__":
    main("gloo")
