"""Families that are prepared before the first call."""

from __future__ import annotations

from typing import Any

from . import _config, _ops, _preparing

__all__ = ["prepare"]


def prepare(op: Any, /, *args: Any, max_rows: int | None = None, **named: Any) -> bool:
    """Prepares the plan that serves calls of an op with 1 to max_rows rows, and launches nothing.

    op: an op of torch.ops.tandem, or its name. The other arguments are those of one such call, of any number of rows; their types,
    other extents and strides are the family's, and no tensor is read or written. max_rows: default configure(max_rows=); rows are
    those of the op's first tensor on one rank, the dimensions before its last one together, or the elements of a flat one.
    Collective: all ranks call it alike. Calls with so many rows then need no meeting, also in a capture that is the first to make
    them. Returns False where no family serves them, as on engines, and of more rows than a family may have: each number of rows
    has a plan of its own then, and this one's is prepared; or torch's collectives serve them.

    ValueError: no such op, or max_rows below 1. Others as the op raises them.
    """
    name = (op if isinstance(op, str) else str(getattr(op, "__name__", op))).partition(".")[0]
    kernel = _ops.PYTHON_KERNELS.get(name)
    if kernel is None:
        raise ValueError(f"{name!r} is no op of torch.ops.tandem")
    if max_rows is None:
        max_rows = _config.current().max_rows
    if max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}, and a family has one row or more")
    with _preparing.preparing(max_rows):
        try:
            kernel(*args, **named)
        except _preparing.Ended as ended:
            return ended.served
    return False
