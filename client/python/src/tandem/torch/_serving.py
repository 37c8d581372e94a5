"""Whether Tandem serves a call of torch.ops.tandem, and what does where it declines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .. import errors
from . import _config
from ._groups import Attachment, attachment, naming_ranks
from ._plans import Call, Declined

__all__ = ["CallDeclined", "run", "with_theirs"]


class CallDeclined(Exception):
    """Tandem cannot serve the call, for whose op there is a kernel of another's."""


_thread = threading.local()


def with_theirs(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that runs `ours`, and `theirs` where Tandem declines the call: on all ranks alike, and a warning says why."""

    def kernel(*given: Any, **named: Any) -> Any:
        outer = getattr(_thread, "has_theirs", False)
        _thread.has_theirs = True
        try:
            return ours(*given, **named)
        except CallDeclined:
            pass
        finally:
            _thread.has_theirs = outer
        return theirs(*given, **named)

    return kernel


def run(op: str, group_name: str, device: torch.device, key: tuple[Any, ...], make: Callable[[], Call]) -> Call | None:
    """Runs the call by Tandem. None: it must be done by torch's collectives, on all ranks alike, and a warning says why.

    Raises CallDeclined instead within `with_theirs`.
    """
    group: Attachment = attachment(group_name)
    reason = group.unserved(device.type)
    if not reason:
        try:
            with naming_ranks(group):
                return group.plans.run((op, *key), make)
        except Declined as declined:
            reason = str(declined)
    if group.config.on_unavailable == "error":
        raise errors.Unavailable(f"Tandem cannot serve {op} of group {group_name!r}: {reason}", reason="UNAVAILABLE")
    if getattr(_thread, "has_theirs", False):
        _config.warn_once(group.rank, group_name, op, reason, "symm_mem's own kernel")
        raise CallDeclined(reason)
    _config.warn_once(group.rank, group_name, op, reason)
    return None
