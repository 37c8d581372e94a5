"""Whether Tandem serves a call of torch.ops.tandem, and what does where it declines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import errors
from . import _config, _distributed, _preparing
from ._groups import Attachment, attachment, naming_ranks
from ._plans import Declined
from ._prepared import Call

__all__ = ["CallDeclined", "of_the_pass", "offer", "run", "theirs_keep_it", "with_theirs"]


class CallDeclined(Exception):
    """Tandem cannot serve the call, for whose op there is a kernel of another's."""


class _Thread(threading.local):
    """theirs: what of another's serves the op that runs where Tandem declines it; "" if nothing does. keep_it: that keeps the
    group's promise about bits as well. of_the_pass: the compile pass has put the op into its graph."""

    theirs = ""
    keep_it = False
    of_the_pass = False


_thread = _Thread()


@contextlib.contextmanager
def of_the_pass() -> Iterator[None]:
    """Ops of this thread stand for a graph's own collectives and products: these run instead where ranks' shapes disagree."""
    outer, _thread.of_the_pass = _thread.of_the_pass, True
    try:
        yield
    finally:
        _thread.of_the_pass = outer


@contextlib.contextmanager
def theirs_keep_it() -> Iterator[None]:
    """What serves this thread's calls of offer() where Tandem declines keeps the promise of the group's determinism as well: such a
    call is declined, and raises only where the configuration asks for errors."""
    outer, _thread.keep_it = _thread.keep_it, True
    try:
        yield
    finally:
        _thread.keep_it = outer


def offer(theirs: str, ours: Callable[..., Any], *given: Any, **named: Any) -> tuple[Any, str]:
    """Calls `ours`, which runs ops. Returns its result and "", or None and why Tandem declines an op: on all ranks alike, and a
    warning says that `theirs` serves it. The caller does so then."""
    outer, _thread.theirs = _thread.theirs, theirs
    try:
        return ours(*given, **named), ""
    except CallDeclined as declined:
        return None, str(declined)
    finally:
        _thread.theirs = outer


def with_theirs(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that runs `ours`, and symm_mem's own, `theirs`, where Tandem declines the call."""

    def kernel(*given: Any, **named: Any) -> Any:
        result, reason = offer("symm_mem's own kernel", ours, *given, **named)
        return theirs(*given, **named) if reason else result

    return kernel


def run(op: str, group_name: str, device: torch.device, key: tuple[Any, ...], make: Callable[[], Call]) -> Call | None:
    """Runs the call by Tandem. None: it must be done by torch's collectives, on all ranks alike, and a warning says why.

    Raises CallDeclined instead within offer(), and where the call is one of torch.distributed.
    """
    group: Attachment = attachment(group_name)
    reason = group.unserved(device.type)
    scope = _distributed.Decline.GROUP if group.group is None else _distributed.Decline.KIND
    if not reason and _thread.of_the_pass and group.disagreement:
        return None  # a warning has reported it
    if not reason:
        try:
            with naming_ranks(group):
                return group.plans.run((op, *key), make)
        except Declined as declined:
            reason = str(declined)
        except errors.FieldMismatch as mismatch:
            if not _thread.of_the_pass:
                raise
            # All ranks get this failure, in the same call, and do the same. A plan that only this rank knows for its
            # shapes would serve later calls on this rank, but not on the others: no plan stays.
            group.disagreement = reason = f"ranks compiled graphs of other shapes: {mismatch}"
            group.plans.drop()
            op = "what the compile pass fused"
    kept = _thread.keep_it and bool(_thread.theirs)
    if group.config.on_unavailable == "error" or (group.config.raises and not kept):
        raise errors.Unavailable(f"Tandem cannot serve {op} of group {group_name!r}: {reason}", reason="UNAVAILABLE")
    if _preparing.asked_rows() > 0:
        raise _preparing.Ended(False)
    if _distributed.decline(scope, reason):
        _config.warn_once(group.rank, group_name, "collectives" if scope is _distributed.Decline.GROUP else op, reason)
        raise CallDeclined(reason)
    if _thread.theirs:
        _config.warn_once(group.rank, group_name, op, reason, _thread.theirs)
        raise CallDeclined(reason)
    _config.warn_once(group.rank, group_name, op, reason)
    return None
