"""Sums with a residual and an RMSNorm behind them, as between the halves of a transformer layer. They have no gradients.

The residual becomes residual + sum. The result is residual / sqrt(mean(residual²) + epsilon) * weight, over the last dimension.
Config.rounding says whether that is computed from the residual before or after it is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from . import _fallback as fallback
from ._groups import attachment
from ._ops import check_out, refuse_gradients, register_op, solid
from ._prepared import Call, Slot
from ._serving import run
from ._shapes import check_product

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem


class Norm(NamedTuple):
    """The norm after a sum."""

    residual: Tensor
    weight: Tensor
    epsilon: float

    def check(self, shape: Sequence[int], like: Tensor) -> None:
        """Whether it fits a sum of this shape, and of the type of `like`."""
        if not like.dtype.is_floating_point:
            raise ValueError(f"an RMSNorm needs floating-point elements, not {like.dtype}")
        if len(shape) == 0:
            raise ValueError("an RMSNorm needs a tensor with a dimension")
        check_out(self.residual, shape, like, "residual")
        check_out(self.weight, shape[-1:], like, "weight")
        # Traced it may be a symbol.
        if isinstance(self.epsilon, (int, float)) and not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is {self.epsilon}; it must be a finite number from 0 on")


def run_normed(
    name: str,
    op: str,
    slots: Sequence[Slot],
    out: Slot,
    norm: Norm,
    group_name: str,
    key: tuple[Any, ...],
    otherwise: Callable[[bool], tuple[Tensor, Tensor]],
    quantized: Sequence[Slot] = (),
) -> Tensor:
    """Fills the tensor of `out` and the residual by the operation `op` of the slots. otherwise: both by torch's collectives; takes
    whether the norm is of the rounded residual. quantized: what becomes of the norm beside it, which `otherwise` fills as well."""
    if solid(norm.residual) is not norm.residual:
        raise ValueError("elements of residual share memory: it cannot be updated in place")
    # A plan with a norm takes no other strides.
    packed, residual = out.tensor.contiguous(), norm.residual.contiguous()

    def make() -> Call:
        behind = (
            Slot("norm_weight", norm.weight.contiguous()),
            Slot("residual", residual),
            Slot("residual_output", residual, True, len(slots) + 1),
            *quantized,
            out._replace(tensor=packed),
        )
        return Call(op, (*slots, *behind), {"norm_epsilon": norm.epsilon})

    if run(name, group_name, packed.device, (*key, norm.epsilon), make) is None:
        packed, residual = otherwise(attachment(group_name).config.rounding == "model")
    if residual is not norm.residual:
        norm.residual.copy_(residual)
    return out.tensor if packed is out.tensor else out.tensor.copy_(packed)


def all_reduce_rms_norm_shape(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float, group_name: str) -> list[int]:
    Norm(residual, weight, epsilon).check(input.shape, input)
    return list(input.shape)


def all_reduce_rms_norm(out: Tensor, input: Tensor, residual: Tensor, weight: Tensor, epsilon: float, group_name: str) -> Tensor:
    return run_normed(
        "all_reduce_rms_norm",
        "all_reduce",
        (Slot("input", solid(input)),),
        Slot("output", out, True),
        Norm(residual, weight, epsilon),
        group_name,
        (input.shape, input.dtype),
        lambda rounded: fallback.all_reduce_rms_norm(input, residual, weight, epsilon, group_name, rounded),
    )


def matmul_all_reduce_rms_norm_shape(
    A: Tensor, B: Tensor, residual: Tensor, weight: Tensor, epsilon: float, group_name: str, bias: Tensor | None = None
) -> list[int]:
    check_product(A, B, A.shape[-1], bias)
    shape = [*A.shape[:-1], B.shape[1]]
    Norm(residual, weight, epsilon).check(shape, A)
    return shape


def matmul_all_reduce_rms_norm(
    out: Tensor,
    A: Tensor,
    B: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
    group_name: str,
    bias: Tensor | None = None,
) -> Tensor:
    slots = [Slot("a", solid(A)), Slot("b", solid(B))]
    if bias is not None:
        slots.append(Slot("bias", solid(bias)))
    return run_normed(
        "matmul_all_reduce_rms_norm",
        "matmul_all_reduce",
        slots,
        Slot("c", out, True),
        Norm(residual, weight, epsilon),
        group_name,
        (A.shape, A.dtype, B.shape, None if bias is None else bias.dtype),
        lambda rounded: fallback.matmul_all_reduce_rms_norm(A, B, residual, weight, epsilon, group_name, bias, rounded),
    )


_OPS: dict[str, Any] = {
    "all_reduce_rms_norm": (all_reduce_rms_norm_shape, all_reduce_rms_norm),
    "matmul_all_reduce_rms_norm": (matmul_all_reduce_rms_norm_shape, matmul_all_reduce_rms_norm),
}
for _name, (_shape, _kernel) in _OPS.items():
    register_op(_name, _shape, _kernel)
    refuse_gradients(_name, "default")
