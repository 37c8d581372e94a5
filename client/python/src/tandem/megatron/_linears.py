"""Megatron's tensor-parallel linear layers as functions with gradients, by fused ops of torch.ops.tandem.

Layouts are Megatron's: input [S, B, H] or [rows, H], of which sequence parallelism splits the first dimension; weight [out, in].
Gradients are Megatron's, too: that of an all-reduced output is each rank's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from ..torch._private import apply_of

__all__ = ["Layer", "column_parallel", "row_parallel"]

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem
# As Megatron's own: a backward has its forward's state of autocast, which is none.
_amp: Any = torch.amp
_forward, _backward = _amp.custom_fwd(device_type="cuda"), _amp.custom_bwd(device_type="cuda")


class Layer(NamedTuple):
    """A layer beside its tensors. layers: Megatron's module. accumulates: the weight's gradient goes to weight.main_grad.
    sequence_parallel: ranks have parts of the sequence. group_name: of the process group."""

    layers: Any
    accumulates: bool
    sequence_parallel: bool
    group_name: str


def _rows(tensor: Tensor) -> Tensor:
    """[S, B, H] as [S * B, H]."""
    return tensor.reshape(-1, tensor.shape[-1])


def _keep(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, how: Layer) -> None:
    """Keeps what both kinds' backward needs."""
    ctx.how, ctx.has_bias = how, bias is not None
    # Not by save_for_backward, whose checks would refuse that other uses of the weight add to it meanwhile.
    ctx.main_grad = getattr(weight, "main_grad", None) if how.accumulates else None
    ctx.save_for_backward(input if weight.requires_grad else None, weight)


def _weight_gradient(ctx: Any, weight: Tensor, grad: Tensor, input: Tensor) -> Tensor | None:
    """The gradient of rows `grad` and rows `input`, for autograd. Where Megatron accumulates, it goes to weight.main_grad, and
    autograd gets what Megatron gives it: None, or a tensor without meaning."""
    if not ctx.how.accumulates:
        return grad.t().matmul(input)
    held: Any = weight
    held.main_grad = ctx.main_grad
    _accumulate(ctx.how.layers, held.main_grad, grad.contiguous(), input.contiguous())
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    held.grad_added_to_main_grad = True
    zero, shape = bool(getattr(weight, "zero_out_wgrad", False)), held.main_grad.shape
    if ctx.how.layers.HAVE_TE:
        return ctx.how.layers.get_dummy_wgrad(list(shape), input.dtype, zero=zero)  # type: ignore[no-any-return]
    return (torch.zeros if zero else torch.empty)(shape, dtype=input.dtype, device=input.device)


def _accumulate(layers: Any, main_grad: Tensor, grad: Tensor, input: Tensor) -> None:
    """Adds the weight's gradient to main_grad, by Apex's kernel where Megatron has found it."""
    kernels = getattr(layers, "fused_weight_gradient_mlp_cuda", None)
    if kernels is not None and main_grad.dtype == torch.float32:
        kernels.wgrad_gemm_accum_fp32(input, grad, main_grad)
    elif kernels is not None and main_grad.dtype in (torch.float16, torch.bfloat16):
        kernels.wgrad_gemm_accum_fp16(input, grad, main_grad)
    elif main_grad.dtype == grad.dtype:
        main_grad.addmm_(grad.t(), input)
    elif grad.is_cuda:
        main_grad.add_(torch.mm(grad.t(), input, out_dtype=main_grad.dtype))
    else:
        main_grad.add_(grad.t().to(main_grad.dtype) @ input.to(main_grad.dtype))


class _ColumnParallel(torch.autograd.Function):
    """A product with this rank's output features: behind a gather along dimension 0, or of an input that all ranks have."""

    @staticmethod
    @_forward  # type: ignore[untyped-decorator]
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, how: Layer) -> Tensor:
        """Gathers the input of sequence parallelism; else the backward sums the input's gradient."""
        _keep(ctx, input, weight, bias, how)
        ctx.has_bias = ctx.has_bias and weight.requires_grad  # Megatron gives a bias beside a frozen weight no gradient
        if how.sequence_parallel:
            biases = None if bias is None else [bias]
            _, (product,) = _tandem.all_gather_matmul(input, [weight.t()], 0, how.group_name, biases, return_A=False)
            return product  # type: ignore[no-any-return]
        product = torch.matmul(input, weight.t())
        return product if bias is None else product + bias

    @staticmethod
    @_backward  # type: ignore[untyped-decorator]
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The input's gradient, then the weight's, of the input that is gathered again."""
        input, weight = ctx.saved_tensors
        rows, name, sequence_parallel = _rows(grad), ctx.how.group_name, ctx.how.sequence_parallel
        if sequence_parallel:
            grad_input = _tandem.matmul_reduce_scatter(grad, weight, "sum", 0, name)
        else:
            grad_input = _tandem.matmul_all_reduce(grad, weight, "sum", name)
        grad_weight = None
        if input is not None and sequence_parallel and not ctx.how.accumulates:
            # Gathered along the product's inner dimension: chunks are multiplied as they come.
            grad_weight = torch.empty_like(weight)
            shard = _rows(input).t()
            _tandem.all_gather_matmul.out(shard, [rows], 1, name, None, gathered=[], outs=[grad_weight.t()])
        elif input is not None:
            total = _tandem.all_gather(input, 0, name) if sequence_parallel else input
            grad_weight = _weight_gradient(ctx, weight, rows, _rows(total))
        grad_bias = rows.sum(dim=0) if ctx.has_bias else None
        return grad_input, grad_weight, grad_bias, None


class _RowParallel(torch.autograd.Function):
    """A product with this rank's input features, summed over the ranks: scattered along dimension 0, or whole on each rank."""

    @staticmethod
    @_forward  # type: ignore[untyped-decorator]
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, how: Layer) -> Tensor:
        """Scatters the sum where the sequence is parallel. The bias is added to the sum, once."""
        _keep(ctx, input, weight, bias, how)
        if how.sequence_parallel:
            return _tandem.matmul_reduce_scatter(input, weight.t(), "sum", 0, how.group_name, bias)  # type: ignore[no-any-return]
        return _tandem.matmul_all_reduce(input, weight.t(), "sum", how.group_name, bias)  # type: ignore[no-any-return]

    @staticmethod
    @_backward  # type: ignore[untyped-decorator]
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The input's gradient, behind a gather where the output was scattered, and the weight's."""
        input, weight = ctx.saved_tensors
        whole, needed = grad, input is not None
        if ctx.how.sequence_parallel:
            whole, (grad_input,) = _tandem.all_gather_matmul(grad, [weight], 0, ctx.how.group_name, return_A=needed)
        else:
            grad_input = grad.matmul(weight)
        grad_weight = _weight_gradient(ctx, weight, _rows(whole), _rows(input)) if needed else None
        grad_bias = _rows(grad).sum(dim=0) if ctx.has_bias else None
        return grad_input, grad_weight, grad_bias, None


column_parallel = apply_of(_ColumnParallel)
row_parallel = apply_of(_RowParallel)
