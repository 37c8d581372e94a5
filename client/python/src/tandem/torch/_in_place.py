"""Collectives that change their input and return nothing: torch.ops.tandem.all_reduce_ and broadcast_."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _fallback as fallback
from ._ops import all_reduce, broadcast, broadcast_shape, new_like, no_result, refuse_gradients, register_kernel
from ._prepared import Call, Slot
from ._schemas import LIB
from ._serving import run
from ._shapes import check_reduce_op

Tensor = torch.Tensor


def all_reduce_in_place(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    """The same into `input`, without further memory."""
    check_reduce_op(reduce_op, input)
    if not input.is_contiguous():
        return input.copy_(all_reduce(new_like(input, input.shape), input, reduce_op, group_name))

    def make() -> Call:
        return Call("all_reduce", (Slot("input", input), Slot("output", input, True, 0)), {"reduce_op": reduce_op})

    if run("all_reduce", group_name, input.device, (input.shape, input.dtype, reduce_op, "in place"), make) is None:
        input.copy_(fallback.all_reduce(input, reduce_op, group_name))
    return input


def broadcast_in_place(input: Tensor, root: int, group_name: str) -> Tensor:
    """The tensor of rank `root` of the group into `input`."""
    broadcast_shape(input, root, group_name)
    if not input.is_contiguous():
        return input.copy_(broadcast(new_like(input, input.shape), input, root, group_name))

    def make() -> Call:
        return Call("broadcast", (Slot("input", input), Slot("output", input, True, 0)), {"root": root})

    if run("broadcast", group_name, input.device, (input.shape, input.dtype, root, "in place"), make) is None:
        input.copy_(fallback.broadcast(input, root, group_name))
    return input


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
