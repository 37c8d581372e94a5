"""Ops beside other work: collectives by copy engines, which leave the SMs to it, and a product of rows that are still arriving."""

from __future__ import annotations

import time
from typing import Any

import torch

from .. import errors
from . import _fallback as fallback
from ._groups import attachment
from ._ops import refuse_gradients, register_op, run_collective, solid
from ._prepared import Call, Slot
from ._private import group_size
from ._serving import run
from ._shapes import REDUCTIONS, check_product, check_reduce_op, gathered, scattered

Tensor = torch.Tensor
_MOST_CHUNKS = 128


def low_contention_all_gather_shape(input: Tensor, group_name: str) -> list[int]:
    return gathered(input.shape, 0, group_size(group_name))


def low_contention_all_gather(out: Tensor, input: Tensor, group_name: str) -> Tensor:
    """All ranks' tensors along dimension 0, by copy engines."""
    return run_collective(
        "all_gather",
        input,
        out,
        group_name,
        ("low contention",),
        {"dim": 0, "low_contention": True},
        lambda: fallback.all_gather(input, 0, group_name),
    )


def low_contention_reduce_scatter_shape(input: Tensor, reduce_op: str, group_name: str) -> list[int]:
    check_reduce_op(reduce_op, input)
    return scattered(input.shape, 0, group_size(group_name))


def low_contention_reduce_scatter(out: Tensor, input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    """This rank's chunk along dimension 0 of the sum, or of another reduction, moved by copy engines."""
    return run_collective(
        "reduce_scatter",
        input,
        out,
        group_name,
        ("low contention", reduce_op),
        {"dim": 0, "low_contention": True, "reduce_op": REDUCTIONS[reduce_op]},
        lambda: fallback.reduce_scatter(input, reduce_op, 0, group_name),
    )


def async_input_matmul_shape(a: Tensor, b: Tensor, a_chunk_signals: Tensor, a_chunk_pivot: int, group_name: str) -> list[int]:
    check_product(a, b, a.shape[-1], None)
    if a_chunk_signals.dtype != torch.int32 or a_chunk_signals.dim() != 1:
        raise ValueError(f"a_chunk_signals is {a_chunk_signals.dtype} {list(a_chunk_signals.shape)}; it needs one int32 a chunk")
    chunks, rows = a_chunk_signals.shape[0], a.shape[:-1].numel()
    if not isinstance(chunks, int) or not isinstance(rows, int):  # traced with symbols
        return [*a.shape[:-1], b.shape[1]]
    if not 1 <= chunks <= _MOST_CHUNKS or rows % chunks:
        raise ValueError(f"{rows} rows do not make {chunks} equal chunks, or these are not 1 to {_MOST_CHUNKS}")
    if not 0 <= a_chunk_pivot < chunks:
        raise ValueError(f"a_chunk_pivot is {a_chunk_pivot}, of {chunks} chunks")
    return [*a.shape[:-1], b.shape[1]]


def async_input_matmul(out: Tensor, a: Tensor, b: Tensor, a_chunk_signals: Tensor, a_chunk_pivot: int, group_name: str) -> Tensor:
    """a @ b, chunk by chunk from `a_chunk_pivot` on: a chunk's rows are read once its word is 1."""

    def make() -> Call:
        slots = (Slot("a", solid(a)), Slot("b", solid(b)), Slot("chunk_signals", a_chunk_signals), Slot("c", out, True))
        return Call("async_input_matmul", slots, {"chunk_pivot": a_chunk_pivot})

    key = (a.shape, a.dtype, b.shape, a_chunk_signals.shape, a_chunk_pivot)
    if run("async_input_matmul", group_name, a.device, key, make) is None:
        _wait_for(a_chunk_signals, attachment(group_name).config.rendezvous_timeout)
        torch.matmul(a, b, out=out) if out.is_contiguous() else out.copy_(a @ b)
    return out


def _wait_for(signals: Tensor, timeout: float) -> None:
    """Returns when every word is 1; DeadlineExceeded after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not bool((signals == 1).all()):
        if time.monotonic() > deadline:
            late = torch.nonzero(signals != 1).flatten().tolist()
            raise errors.DeadlineExceeded(f"async_input_matmul: chunks {late} have not come within {timeout:g} s")
        time.sleep(1e-4)


_OPS: dict[str, Any] = {
    "low_contention_all_gather": (low_contention_all_gather_shape, low_contention_all_gather),
    "low_contention_reduce_scatter": (low_contention_reduce_scatter_shape, low_contention_reduce_scatter),
    "async_input_matmul": (async_input_matmul_shape, async_input_matmul),
}
for _name, (_shape, _kernel) in _OPS.items():
    register_op(_name, _shape, _kernel)
refuse_gradients("async_input_matmul", "default")
