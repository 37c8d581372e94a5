"""Process groups that sleep: by themselves, and when an operator asks for their memory (docs/suspend.md)."""

from __future__ import annotations

from typing import Any

import torch

from ._groups import attachment, clients, naming_ranks
from ._private import resolve

__all__ = ["resume", "suspend", "suspend_if_asked"]


def suspend(group: Any = None, *, keep: bool = False, timeout: float | None = None) -> None:
    """Gives up the GPU memory of a process group's ops and symmetric tensors until resume(): plans and graphs stay valid.

    Collective: all ranks call it. Waits for the group's ops first, and raises their first failure. Until resume() returns, call no
    op of the group, replay no graph with one, and read no symmetric tensor of it. keep: these keep their contents; else they are
    zero afterwards. timeout: as renew()'s. RankLate names ranks that do not come, and the group goes on.
    """
    found = attachment(str(resolve(group).group_name))
    if found.group is not None:
        with naming_ranks(found):
            found.plans.wait()
            found.group.suspend(keep, found.config.rendezvous_timeout if timeout is None else timeout)


def resume(group: Any = None, *, timeout: float | None = None) -> None:
    """Brings a suspended process group's memory back, at the same addresses. Collective: all ranks call it.

    timeout: as renew()'s. RankLate: a rank did not come, and all may call it again. ResourceExhausted: others hold the memory.
    RankLost: a rank has ended meanwhile; detach(), and attach a new group.
    """
    found = attachment(str(resolve(group).group_name))
    if found.group is not None:
        with naming_ranks(found):
            found.group.resume(found.config.rendezvous_timeout if timeout is None else timeout)


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
