"""Products that the compile pass fuses under determinism "batch": those that Tandem multiplies in one order whatever the number of
rows, at the fused kernels' speed. Nothing here may depend on that number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from . import _config
from ._prepared import DTYPES

__all__ = ["Along", "along", "in_force", "why_apart"]

# A collective gathers or scatters rows of A, another dimension than the first, or A's columns.
Along = Literal["rows", "other", "columns"]
_PREFIX = "determinism is 'batch', and "
_FUSED_KINDS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
# TMA's pitches are multiples of this.
_TMA_BYTES = 16
_HOPPER = 9


def in_force() -> bool:
    """Whether a row's bits are to depend on the row alone."""
    return _config.current().determinism == "batch"


def along(dim: int, extents: Sequence[Any]) -> Along:
    """What the dimension is of a left operand, or of a product, with these extents."""
    dim %= len(extents)
    if dim == len(extents) - 1:
        return "columns"
    return "rows" if all(isinstance(extent, int) and extent == 1 for extent in extents[:dim]) else "other"


def why_apart(a: torch.Tensor, b: torch.Tensor, cut: Along, reduce_op: str = "") -> str:
    """Why a collective along `cut` is not fused with the product of A and B; "" where it is. reduce_op: of a sum behind the
    product; "": A is gathered before it."""
    if not in_force():
        return ""
    for one in (a, b):
        if one.dtype not in DTYPES or not one.dtype.is_floating_point:
            return f"{_PREFIX}Tandem has no products of {one.dtype}"
    if cut == "columns" and not reduce_op:
        return _PREFIX + "a gather along K multiplies each rank's part of K apart"
    if a.device.type != "cuda":
        return ""
    slow = _why_not_fused(a, b, cut, reduce_op)
    return f"{_PREFIX}Tandem's fused kernels take {slow}" if slow else ""


def _why_not_fused(a: torch.Tensor, b: torch.Tensor, cut: Along, reduce_op: str) -> str:
    """Why another kernel than the fused ones would multiply, many times slower."""
    if a.dtype not in _FUSED_KINDS:
        return f"no {a.dtype}"
    if torch.cuda.get_device_capability(a.device)[0] != _HOPPER:
        return "GPUs of Hopper only"
    if cut != "rows":
        return "rows of the first dimension only"
    if reduce_op == "avg":
        return "sums only"
    for what, extent in (("K", a.shape[-1]), ("K", b.shape[0]), ("N", b.shape[1])):
        if not _is_whole(extent * a.element_size()):
            return f"no {what} that is no multiple of {_TMA_BYTES} bytes"
    return ""


def _is_whole(size: Any) -> bool:
    """Of a symbol it is not known."""
    return isinstance(size, int) and size % _TMA_BYTES == 0
