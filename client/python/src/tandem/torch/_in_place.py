"""Collectives that change their input and return nothing: torch.ops.tandem.all_reduce_ and broadcast_."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _fallback as fallback
from ._ops import broadcast_shape, no_result, refuse_gradients, register_kernel
from ._prepared import Call, Slot
from ._schemas import LIB
from ._serving import run
from ._shapes import REDUCTIONS, check_reduce_op

Tensor = torch.Tensor


def _run_in_place(op: str, input: Tensor, group_name: str, options: dict[str, Any], otherwise: Callable[[], Tensor]) -> Tensor:
    """Runs the operation `op` over `input`, without further memory where that is contiguous."""
    whole = input.contiguous()

    def make() -> Call:
        return Call(op, (Slot("input", whole), Slot("output", whole, True, 0)), options)

    if run(op, group_name, input.device, (input.shape, input.dtype, *options.values(), "in place"), make) is None:
        return input.copy_(otherwise())
    return input if whole is input else input.copy_(whole)


def all_reduce_in_place(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    """The sum of all ranks' tensors, or another reduction, in each of them."""
    check_reduce_op(reduce_op, input)
    options = {"reduce_op": REDUCTIONS[reduce_op]}
    return _run_in_place("all_reduce", input, group_name, options, lambda: fallback.all_reduce(input, reduce_op, group_name))


def broadcast_in_place(input: Tensor, root: int, group_name: str) -> Tensor:
    """The tensor of rank `root` of the group, in all of them."""
    broadcast_shape(input, root, group_name)
    return _run_in_place("broadcast", input, group_name, {"root": root}, lambda: fallback.broadcast(input, root, group_name))


def register_in_place(name: str, kernel: Callable[..., Tensor]) -> None:
    """An op that changes its first argument and returns nothing."""

    def into(*given: Any, **named: Any) -> None:
        kernel(*given, **named)

    def fake(*given: Any, **named: Any) -> None:
        pass

    refuse_gradients(name, "default")
    register_kernel(name, "default", into, no_result)
    torch.library.register_fake(f"tandem::{name}", fake, lib=LIB)


register_in_place("all_reduce_", all_reduce_in_place)
register_in_place("broadcast_", broadcast_in_place)
