"""Groups of a server's program: their process groups are attached, and their collectives are offered to Tandem and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import _groups
from ._ops import solid
from ._plans import NoPlanYet
from ._serving import CallDeclined, offer

__all__ = ["Server", "all_reduce_rms_norm"]

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem


class Server:
    """A server's program, by the name that its users know. count: gets the group, the collective, and why the server's own
    communicator runs the call; "" where Tandem does."""

    def __init__(self, name: str, log: logging.Logger, count: Callable[[str, str, str], object]) -> None:
        self._name, self._log, self._count = name, log, count

    def attach(self, name: str, group: dist.ProcessGroup | None, is_first: bool, most_rows: int, reason: str) -> str:
        """Attaches a process group, with all its ranks; its name if Tandem serves it, else "". reason: why it is not to be;
        is_first: whether this rank warns for all."""
        if group is not None and not reason:
            # A server has ever new numbers of rows, in captures too.
            reason = _groups.attach(group, families="collectives", max_rows=most_rows).reason
        level = logging.WARNING if reason and is_first else logging.INFO
        said = f"keeps {self._name}'s own collectives: {reason}" if reason else "runs by Tandem"
        self._log.log(level, "%s's group %s %s", self._name, name, said)
        return "" if reason or group is None else str(group.group_name)

    def offer(self, name: str, op: str, ours: Callable[..., Any], *given: Any) -> tuple[Any, bool]:
        """What `ours` returns, and whether Tandem has run it. Where it has not, the caller runs its own, on all ranks alike."""
        try:
            result, reason = offer(f"{self._name}'s own communicator", ours, *given)
        except NoPlanYet as none:
            result, reason = None, str(none)
        self._count(name, op, reason)
        return result, not reason


def all_reduce_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, group_name: str, keeps_residual: bool
) -> tuple[Tensor, Tensor]:
    """The norm of the residual with the sum of all ranks' tensors, and that residual, which is the given one unless that is kept.

    Within offer(), for tensors that need no gradients. What makes it decline is equal on all ranks: shapes and types.
    """
    reason = _misfit(x, residual, weight)
    if reason or weight is None:
        raise CallDeclined(reason)
    total = residual.clone() if keeps_residual or solid(residual) is not residual else residual
    return _tandem.all_reduce_rms_norm(x, total, weight, epsilon, group_name), total


def _misfit(x: Tensor, residual: Tensor, weight: Tensor | None) -> str:
    """Why no sum with this residual and this norm is Tandem's; "" if it is."""
    if weight is None:
        return "the norm has no weight"
    if not x.dtype.is_floating_point or x.dim() == 0:
        return f"no norm is over {x.dim()} dimensions of {x.dtype}"
    if (residual.shape, residual.dtype, residual.device) != (x.shape, x.dtype, x.device):
        return f"the residual is {residual.dtype} {list(residual.shape)}, and the sum {x.dtype} {list(x.shape)}"
    if (weight.shape, weight.dtype, weight.device) != (x.shape[-1:], x.dtype, x.device):
        return f"the norm's weight is {weight.dtype} {list(weight.shape)}, and the sum {x.dtype} {list(x.shape)}"
    return ""
