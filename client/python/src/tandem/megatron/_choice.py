"""Why Tandem does not serve a call of a linear layer.

The answers depend on configuration, types and shapes alone, so that all ranks have the same.
"""

from __future__ import annotations

from typing import Any

import torch

from ..torch import _config
from ..torch._groups import attachment

__all__ = ["why_not_column", "why_not_row"]

Tensor = torch.Tensor
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def why_not_column(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    grad_output_buffer: Any,
    tp_group: Any,
) -> str:
    """The reason for a product behind a gather, or before an all-reduce in the backward; "" if Tandem serves it."""
    if not (sequence_parallel or allreduce_dgrad):
        return "the layer has no collective"
    if grad_output_buffer is not None:  # by the configuration's defer_embedding_wgrad_compute
        return "the weight's gradient is deferred"
    return _why_not(input, weight, bias, gradient_accumulation_fusion, tp_group)


def why_not_row(layer: Any, forward_impl: Any, input: Tensor) -> str:
    """The reason for a RowParallelLinear; "" if Tandem serves it. forward_impl: its class's own `_forward_impl`."""
    if layer.explicit_expert_comm:
        return "the experts' dispatcher has the collective"
    if not layer.input_is_parallel:
        return "the layer splits its input"
    if getattr(layer._forward_impl, "__func__", None) is not forward_impl:
        return "the layer has another product"
    context = layer.config._cpu_offloading_context
    if context is not None and context.inside_context is True:
        return "activations are offloaded to the CPU"
    bias = None if layer.skip_bias_add else layer.bias
    group = layer.tp_group
    if layer.sequence_parallel and group is not None and input.shape[0] % group.size():
        return "the sequence does not divide by the ranks"
    return _why_not(input, layer.weight, bias, layer.gradient_accumulation_fusion, group)


def _why_not(input: Tensor, weight: Tensor, bias: Tensor | None, gradient_accumulation_fusion: bool, tp_group: Any) -> str:
    if tp_group is None or tp_group.size() == 1:
        return "the group has one rank"
    if torch.compiler.is_compiling():
        return "the layer is compiled"
    dtypes = {one.dtype for one in (input, weight, bias) if one is not None}
    if len(dtypes) > 1:
        return "input, weight and bias have several types"
    if input.dtype not in _DTYPES:
        return f"Tandem has no products of {str(input.dtype).removeprefix('torch.')}"
    if input.dim() not in (2, 3):
        return "the input has neither two nor three dimensions"
    if torch.is_autocast_enabled(input.device.type):
        return "autocast is in force"
    if gradient_accumulation_fusion and hasattr(weight, "__fsdp_param__"):
        return "Megatron-FSDP has the main gradients"
    found = attachment(str(tp_group.group_name))  # last, since all ranks meet at the first call
    reason = found.unserved(input.device.type)
    if not reason or found.config.raises:  # then the op raises
        return ""
    _config.warn_once(found.rank, found.name, "Megatron's linear layer", reason, "Megatron's own code")
    return reason
