"""Sums with a residual and an RMSNorm behind them, whose result is the norm in fp8 (e4m3). They have no gradients.

The norm is rounded to the residual's type first, and then quantised as e4m3(norm / scale), saturating at ±448. A scale is given, or
made for each row or each 128 columns of it: max(greatest magnitude, 1/512) / 448.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from . import _fallback as fallback
from ._norms import Norm, run_normed
from ._ops import new_like, refuse_gradients, register_op, solid
from ._prepared import Slot
from ._shapes import check_product

Tensor = torch.Tensor
FP8 = torch.float8_e4m3fn
_BLOCK = 128


class _Scale(NamedTuple):
    """What a norm is divided by: given, or made."""

    tensor: Tensor
    made: bool

    def check(self, shape: Sequence[int], like: Tensor) -> None:
        """Whether it fits a norm of this shape."""
        what, scale = "scales" if self.made else "scale", self.tensor
        if scale.dtype != torch.float32 or scale.device != like.device:
            raise ValueError(f"{what} is {scale.dtype} on {scale.device}; it must be torch.float32 on {like.device}")
        if not self.made:
            if scale.numel() != 1:
                raise ValueError(f"scale is {list(scale.shape)}; it must be one element")
            return
        rows, blocks = list(shape[:-1]), -(-shape[-1] // _BLOCK)
        if list(scale.shape) not in ([*rows, 1], [*rows, blocks]):
            raise ValueError(f"scales is {list(scale.shape)}; it must be {[*rows, 1]}, or {[*rows, blocks]} by blocks of {_BLOCK}")
        if solid(scale) is not scale:
            raise ValueError("elements of scales share memory: they cannot be written")

    def slot(self) -> Slot:
        return Slot("scale_output" if self.made else "static_scale", self.tensor, self.made)


def _run(
    name: str,
    op: str,
    slots: Sequence[Slot],
    role: str,
    out: Tensor,
    norm: Norm,
    scale: _Scale,
    group_name: str,
    key: tuple[Any, ...],
    otherwise: Callable[[bool], tuple[Tensor, Tensor]],
) -> Tensor:
    """Fills `out`, the residual and the scales that are made. The norm before its quantisation goes to memory of the call."""
    packed = out.contiguous()

    def by_torch(rounded: bool) -> tuple[Tensor, Tensor]:
        normed, residual = otherwise(rounded)
        fallback.quantize(normed, scale.tensor, packed, scale.made)
        return normed, residual

    normed = Slot(role, new_like(norm.residual, out.shape), True, scratch=True)
    quantized = (Slot("quantized_output", packed, True), scale.slot())
    run_normed(name, op, slots, normed, norm, group_name, (*key, scale.tensor.shape), by_torch, quantized)
    return out if packed is out else out.copy_(packed)


def _sum_shape(input: Tensor, norm: Norm, scale: _Scale) -> list[int]:
    norm.check(input.shape, input)
    scale.check(input.shape, input)
    return list(input.shape)


def _sum(name: str, out: Tensor, input: Tensor, norm: Norm, scale: _Scale, group_name: str) -> Tensor:
    def otherwise(rounded: bool) -> tuple[Tensor, Tensor]:
        return fallback.all_reduce_rms_norm(input, norm.residual, norm.weight, norm.epsilon, group_name, rounded)

    slots = (Slot("input", solid(input)),)
    return _run(name, "all_reduce", slots, "output", out, norm, scale, group_name, (input.shape, input.dtype), otherwise)


def _product_shape(a: Tensor, b: Tensor, norm: Norm, scale: _Scale, bias: Tensor | None) -> list[int]:
    check_product(a, b, a.shape[-1], bias)
    shape = [*a.shape[:-1], b.shape[1]]
    norm.check(shape, a)
    scale.check(shape, a)
    return shape


def _product(
    name: str, out: Tensor, a: Tensor, b: Tensor, norm: Norm, scale: _Scale, group_name: str, bias: Tensor | None
) -> Tensor:
    def otherwise(rounded: bool) -> tuple[Tensor, Tensor]:
        given = (a, b, norm.residual, norm.weight, norm.epsilon, group_name, bias, rounded)
        return fallback.matmul_all_reduce_rms_norm(*given)

    slots = [Slot("a", solid(a)), Slot("b", solid(b))]
    if bias is not None:
        slots.append(Slot("bias", solid(bias)))
    key = (a.shape, a.dtype, b.shape, None if bias is None else bias.dtype)
    return _run(name, "matmul_all_reduce", slots, "c", out, norm, scale, group_name, key, otherwise)


def _register(name: str, made: bool) -> None:
    """The op with a sum of this name, and that with a product."""
    scaled = f"{name}_{'dynamic' if made else 'static'}_fp8"

    def sum_shape(input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float, group_name: str) -> list[int]:
        return _sum_shape(input, Norm(residual, weight, epsilon), _Scale(scale, made))

    def sum_kernel(
        out: Tensor, input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float, group_name: str
    ) -> Tensor:
        return _sum(scaled, out, input, Norm(residual, weight, epsilon), _Scale(scale, made), group_name)

    def product_shape(
        A: Tensor,
        B: Tensor,
        residual: Tensor,
        weight: Tensor,
        scale: Tensor,
        epsilon: float,
        group_name: str,
        bias: Tensor | None = None,
    ) -> list[int]:
        return _product_shape(A, B, Norm(residual, weight, epsilon), _Scale(scale, made), bias)

    def product_kernel(
        out: Tensor,
        A: Tensor,
        B: Tensor,
        residual: Tensor,
        weight: Tensor,
        scale: Tensor,
        epsilon: float,
        group_name: str,
        bias: Tensor | None = None,
    ) -> Tensor:
        return _product(f"matmul_{scaled}", out, A, B, Norm(residual, weight, epsilon), _Scale(scale, made), group_name, bias)

    register_op(scaled, sum_shape, sum_kernel, FP8)
    register_op(f"matmul_{scaled}", product_shape, product_kernel, FP8)
    for op in (scaled, f"matmul_{scaled}"):
        refuse_gradients(op, "default")


for _made in (False, True):
    _register("all_reduce_rms_norm", _made)
