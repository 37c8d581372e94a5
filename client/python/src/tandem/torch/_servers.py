"""Groups of a server's program: their process groups are attached, and their collectives are offered to Tandem and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .. import errors
from . import _config, _groups
from ._ops import solid
from ._plans import NoPlanYet
from ._serving import CallDeclined, offer, theirs_keep_it

__all__ = ["Server", "all_reduce_rms_norm", "all_reduce_rms_norm_fp8"]

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem
# By the form of a call: why the server runs it; "" where Tandem does.
_Choices = dict[Any, str]


class Server:
    """A server's program, by the name that its users know. count: gets the group, the collective, and why the server's own
    communicator runs the call; "" where Tandem does."""

    def __init__(self, name: str, log: logging.Logger, count: Callable[[str, str, str], object]) -> None:
        self._name, self._log, self._count = name, log, count
        self._choices: dict[str, _Choices] = {}  # by group, of those whose rows' bits are to depend on the row alone

    def attach(
        self, name: str, group: dist.ProcessGroup | None, is_first: bool, most_rows: int, reason: str, by_rows_alone: bool
    ) -> str:
        """Attaches a process group, with all its ranks; its name if Tandem serves it, else "". reason: why it is not to be;
        is_first: whether this rank warns for all. by_rows_alone: the server is in a mode in which a row's bits depend on the row
        alone, and its own collectives keep that as well."""
        self._choices.pop(name, None)
        if group is not None and not reason:
            try:
                reason = _attach(group, most_rows, by_rows_alone)
            except errors.RankLate as late:
                late.add(f"{self._name} may run without Tandem there: its plug-in is switched on alike on all ranks")
                raise
        if by_rows_alone and not reason:
            self._choices[name] = {}
        level = logging.WARNING if reason and is_first else logging.INFO
        runs = "runs by Tandem, with determinism 'batch'" if by_rows_alone else "runs by Tandem"
        said = f"keeps {self._name}'s own collectives: {reason}" if reason else runs
        self._log.log(level, "%s's group %s %s", self._name, name, said)
        return "" if reason or group is None else str(group.group_name)

    def by_rows_alone(self, name: str) -> bool:
        """Whether Tandem serves the group so that a row's bits depend on the row alone."""
        return name in self._choices

    def offer(self, name: str, op: str, ours: Callable[..., Any], *given: Any) -> tuple[Any, bool]:
        """What `ours` returns, and whether Tandem has run it. Where it has not, the caller runs its own, on all ranks alike. The
        first argument is the tensor whose rows the collective takes.

        Where a row's bits are to depend on the row alone, all calls of one form are run by the same one of both: a call that would
        be run by the other one raises Unavailable, or NoPlanYet in a capture.
        """
        choices = self._choices.get(name)
        if choices is None:
            try:
                result, reason = self._try(ours, given)
            except NoPlanYet as none:
                result, reason = None, str(none)
        else:
            result, reason = self._offer_alike(choices, name, op, ours, given)
        self._count(name, op, reason)
        return result, not reason

    def _try(self, ours: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, str]:
        return offer(f"{self._name}'s own communicator", ours, *given)

    def _offer_alike(
        self, choices: _Choices, name: str, op: str, ours: Callable[..., Any], given: tuple[Any, ...]
    ) -> tuple[Any, str]:
        form = _form(op, given)
        chosen = choices.get(form)
        if chosen:
            return None, chosen
        kept = f"group {name!r} keeps a row's bits whatever else is in the batch, so {self._name}'s own cannot run it instead"
        try:
            with theirs_keep_it():
                result, reason = self._try(ours, given)
        except NoPlanYet as none:
            raise NoPlanYet(f"{none}; {kept}") from none
        if reason and chosen is not None:
            raise errors.Unavailable(
                f"Tandem cannot run {op} of {_text(given[0])}: {reason}. It has run others of that type and row length, and {kept}",
                reason="UNAVAILABLE",
            )
        choices[form] = reason
        return result, reason


def _attach(group: dist.ProcessGroup, most_rows: int, by_rows_alone: bool) -> str:
    """Why Tandem does not serve the process group, which is attached with all its ranks; "" if it does."""
    # A server has ever new numbers of rows, in captures too, whatever the user has configured.
    if not by_rows_alone:
        return _groups.attach(group, families="all", max_rows=most_rows).reason
    try:
        found = _groups.attach(group, families="all", max_rows=most_rows, determinism="batch")
    except errors.Unavailable:
        reason = _groups.declined(str(group.group_name))
        if not reason or _config.current().on_unavailable == "error":
            raise
        return reason
    level = found.config.determinism
    return found.reason if level == "batch" else found.reason or f"it has been attached before, with determinism {level!r}"


def _form(op: str, given: tuple[Any, ...]) -> Any:
    """All of a call but its number of rows: the op, types and lengths of rows, and what is no tensor. Where the first tensor has
    one dimension, each element is a row."""
    flat = given[0].dim() < 2
    first = (given[0].dtype, given[0].dim(), None if flat else given[0].shape[-1])
    others = ((one.dtype, one.dim(), one.shape[-1:]) if isinstance(one, Tensor) else one for one in given[1:])
    return (op, first, *others)


def _text(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


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


def all_reduce_rms_norm_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, makes: bool, epsilon: float, group_name: str
) -> tuple[Tensor, Tensor]:
    """The same norm in fp8, by the scale, or makes: with scales that are made and written there. The residual is written if its
    elements share no memory."""
    reason = _misfit(x, residual, weight)
    if reason:
        raise CallDeclined(reason)
    total = residual if solid(residual) is residual else residual.clone()
    op = _tandem.all_reduce_rms_norm_dynamic_fp8 if makes else _tandem.all_reduce_rms_norm_static_fp8
    return op(x, total, weight, scale, epsilon, group_name), total


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
