"""Process groups that sleep: by themselves, and when an operator asks for their memory (docs/suspend.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .. import errors
from ..client import Client
from . import _config
from ._groups import attached, attachment, clients, naming_ranks, synchronize
from ._private import resolve

__all__ = ["resume", "suspend", "suspend_if_asked"]


def _patience(timeout: float | None, config: _config.Config | None = None) -> float:
    return (config or _config.current()).rendezvous_timeout if timeout is None else timeout


@contextlib.contextmanager
def _naming_ranks_of_any() -> Iterator[None]:
    """naming_ranks() for a call of all groups, whose failure begins with the group's name."""
    try:
        yield
    except errors.TandemError as error:
        for found in attached():
            if found.group is not None and error.message.startswith(f"group '{found.group.name}' "):
                found.name_ranks(error)
        raise


def suspend(group: Any = None, *, keep: bool = False, timeout: float | None = None) -> None:
    """Gives up the GPU memory of a process group's ops and symmetric tensors until resume(): plans and graphs stay valid.

    None: of all groups of this process; then all ranks of all of them call it so, whatever groups each of them has. Collective: all
    ranks call it. Waits for the ops first, and raises their first failure. Until resume() returns, call no op of the group, replay
    no graph with one, and read no symmetric tensor of it. keep: these keep their contents; else they are zero afterwards. timeout:
    as renew()'s. RankLate names ranks that do not come, and all groups go on; one that does not is named, and resume() wakes it up.
    """
    if group is not None:
        found = attachment(str(resolve(group).group_name))
        if found.group is not None:
            with naming_ranks(found):
                found.plans.wait()
                found.group.suspend(keep, _patience(timeout, found.config))
        return
    synchronize()
    slept: list[Client] = []
    for client in clients():
        try:
            with _naming_ranks_of_any():
                client.suspend(keep, _patience(timeout))
        except errors.TandemError as error:
            for other in slept:
                try:
                    other.resume(_patience(timeout))
                except errors.TandemError as still:
                    error.add(still.message)
            raise
        slept.append(client)


def resume(group: Any = None, *, timeout: float | None = None) -> None:
    """Brings a suspended process group's memory back, at the same addresses. Collective: all ranks call it.

    None: that of all groups of this process. timeout: as renew()'s. RankLate: a rank did not come, and all may call it again.
    ResourceExhausted: others hold the memory. RankLost: a rank has ended meanwhile; detach(), and attach a new group. Of all
    groups: the error names those that sleep on, and the others are awake.
    """
    if group is not None:
        found = attachment(str(resolve(group).group_name))
        if found.group is not None:
            with naming_ranks(found):
                found.group.resume(_patience(timeout, found.config))
        return
    failure: errors.TandemError | None = None
    for client in clients():
        try:
            with _naming_ranks_of_any():
                client.resume(_patience(timeout))
        except errors.TandemError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def suspend_if_asked(step: int | None = None, *, keep: bool = True) -> bool:
    """Gives up the GPU memory of all attached process groups if an operator asks for it (`tandemctl suspend`); True if it did.

    Call it on all ranks between two steps, as of training or decoding: while no rank asks others for anything. If the job is asked,
    it waits for the GPU, suspends all groups of the process on all ranks before the same step, and returns once an operator has
    resumed the job. Plans, graphs and symmetric tensors are valid then. Else it costs less than a microsecond. keep: symmetric
    tensors keep their contents. step: the number of the step that begins, the same on all ranks, larger each time; None: calls are
    counted, for jobs whose processes make the first call at the same step. RankLost: a rank has ended meanwhile.
    """
    slept = False
    for client in clients():
        if not client.suspend_asked(step):
            continue
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        slept |= client.suspend_as_asked(keep)
    return slept
