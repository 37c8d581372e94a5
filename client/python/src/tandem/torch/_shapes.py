"""Shape rules, which kernels, fake kernels and fallbacks share. Errors are ValueError: bad arguments, equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def dim_of(dim: int, tensor: torch.Tensor, what: str) -> int:
    """`dim` counted from 0."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise ValueError(f"{what} is {dim}, the tensor has {tensor.dim()} dimensions")
    return dim % tensor.dim()


def gathered(shape: Sequence[int], dim: int, world: int) -> list[int]:
    """The shape after a gather."""
    return [extent * world if i == dim else extent for i, extent in enumerate(shape)]


def scattered(shape: Sequence[int], dim: int, world: int) -> list[int]:
    """The shape after a scatter."""
    if shape[dim] % world != 0:
        raise ValueError(f"dimension {dim} of {list(shape)} does not divide by {world} ranks")
    return [extent // world if i == dim else extent for i, extent in enumerate(shape)]


# torch's names of reductions, and Tandem's.
REDUCTIONS = {
    "sum": "sum",
    "avg": "avg",
    "min": "min",
    "max": "max",
    "product": "product",
    "band": "bit_and",
    "bor": "bit_or",
    "bxor": "bit_xor",
}
_BITWISE = ("band", "bor", "bxor")


def why_not_reduced(reduce_op: str, dtype: torch.dtype) -> str | None:
    """Why a collective cannot reduce so; None where it can. As torch's own: averages of floating-point elements only."""
    if reduce_op not in REDUCTIONS:
        return f"reduce_op is one of {', '.join(REDUCTIONS)}, not {reduce_op!r}"
    if reduce_op == "avg" and not dtype.is_floating_point:
        return f"reduce_op 'avg' needs floating-point elements, not {dtype}"
    if reduce_op in _BITWISE and dtype.is_floating_point:
        return f"reduce_op {reduce_op!r} needs integers, not {dtype}"
    return None


def check_reduce_op(reduce_op: str, tensor: torch.Tensor) -> str:
    """The reduction of a collective, by torch's name."""
    if why := why_not_reduced(reduce_op, tensor.dtype):
        raise ValueError(why)
    return reduce_op


def check_sum_op(reduce_op: str, tensor: torch.Tensor) -> str:
    """ "sum" or "avg": what ranks' products, and sums that a norm follows, become."""
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"reduce_op is 'sum' or 'avg', not {reduce_op!r}")
    return check_reduce_op(reduce_op, tensor)


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a matrix, leading dimensions being rows; also one without elements."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def check_product(a: torch.Tensor, b: torch.Tensor, depth: int, bias: torch.Tensor | None) -> None:
    """A [..., K] times B [depth, N], with a bias of N elements."""
    if a.dim() < 2:
        raise ValueError(f"A has {a.dim()} dimensions; it needs at least 2")
    if b.dim() != 2 or b.shape[0] != depth:
        raise ValueError(f"B is {list(b.shape)}; it needs 2 dimensions and {depth} rows")
    if a.dtype != b.dtype:
        raise ValueError(f"A is {a.dtype}, B is {b.dtype}")
    if a.device != b.device:
        raise ValueError(f"A is on {a.device}, B is on {b.device}")
    if bias is not None and list(bias.shape) != [b.shape[1]]:
        raise ValueError(f"the bias is {list(bias.shape)}; it needs {b.shape[1]} elements")
