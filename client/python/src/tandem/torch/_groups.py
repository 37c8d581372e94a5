"""Tandem groups that are attached to torch's process groups: one each, found by name and identity."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _endings, client as core, errors
from ..client import Client
from ..group import Group
from ..memory import Reservation
from . import _config, _graph_holds, _native
from ._daemon import Choice, Daemons, agree
from ._meeting import Meeting, rank_late
from ._outlines import outlines
from ._plans import PlanCache
from ._private import backend_of, global_ranks, on_end, process_groups, resolve
from ._symmetric import Ranges

__all__ = ["Attachment", "attach", "attachment", "detach", "synchronize"]


class Attachment:
    """A process group's Tandem group. `group` is None where there is none, and `reason` says why; both are alike on all ranks."""

    def __init__(
        self, process_group: Any, name: str, group: Group | None, reason: str, config: _config.Config, pids: Sequence[int]
    ) -> None:
        """pids: the ranks' processes; empty where they have not been exchanged."""
        self._process_group = weakref.ref(process_group)
        self._process = os.getpid()
        self.name, self.group, self.reason, self.config = name, group, reason, config
        self._leaving: Group | None = None
        self.rank: int = process_group.rank()
        self.world_size: int = process_group.size()
        self.global_ranks = global_ranks(process_group)
        self._pids = list(pids)
        self.broken_off: dict[tuple[int, str | None], Reservation] = {}  # of calls of empty(), by bytes and name
        self.disagreement = ""  # why nothing that the compile pass fused is served any more; on all ranks or none
        self.device_type = "" if group is None else {"host": "cpu", "cuda": "cuda"}[group.client.backend]
        if self.device_type == "cuda":
            _graph_holds.install()
        self._table: _native.Table | None = None
        if group is not None and _native.kernels is not None:
            self._table = _native.Table(name)
        self.symmetric = Ranges(self._table, config.write_in_place)
        self.plans = PlanCache(group, config, self.symmetric, self._table)
        # Without notice of the group's end a plan might serve a later group of this name.
        if not on_end(process_group, functools.partial(_group_ended, weakref.ref(self))) and self._table is not None:
            self._table.hide()

    def __repr__(self) -> str:
        return f"<tandem.torch.Attachment {self.name!r}: {self.group or self.reason}>"

    def of(self, process_group: Any) -> bool:
        """Whether it is this process group's; a later one may have the same name."""
        return self._process_group() is process_group

    def unserved(self, device: str) -> str:
        """Why Tandem serves no tensors of this device here; "" if it does."""
        if self.group is None:
            return self.reason
        if device != self.device_type:
            return f"the node's daemon runs the {self.group.client.backend} backend, which does not serve {device} tensors"
        return ""

    def name_ranks(self, error: errors.TandemError) -> None:
        """Adds to an error's text which processes its ranks are: it numbers them within the group."""
        known = [rank for rank in error.ranks if rank < self.world_size]
        if not known or error.global_ranks:
            return
        if isinstance(error, errors.RankLate) and (why := outlines.why_late(self.name, known)):
            error.add(why)
        error.global_ranks = tuple(self.global_ranks[rank] for rank in known)
        told = []
        for rank in known:
            pid = f", pid {self._pids[rank]}" if rank < len(self._pids) else ""
            told.append(f"rank {rank} is global rank {self.global_ranks[rank]}{pid}")
        error.add(f"in group {self.name!r} " + ", ".join(told))

    def hide(self) -> None:
        """Ops find its plans no more: its name may be another process group's now."""
        if self._table is not None:
            self._table.hide()

    def close(self) -> None:
        """Releases the plans and leaves the group. Does nothing in a forked child, where they are the parent's."""
        if self._process != os.getpid():
            return
        if self.group is not None:
            self._leaving, self.group, self.reason = self.group, None, "the group has been detached"
        self.plans.close()
        self.broken_off.clear()
        if self._leaving is not None:
            self._leaving.leave()  # a signal's handler may break it off
            self._leaving = None


class _Turn:
    """Threads that attach one group do so one after another."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0


class _State:
    """This process's client and groups. No lock is held while another rank is awaited: groups are independent."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # of all that follows
        self.attachments: dict[str, Attachment] = {}
        self.leaving: dict[str, Attachment] = {}  # of detach() calls that have not ended
        self.meetings: dict[str, Meeting] = {}
        self.turns: dict[str, _Turn] = {}
        self.daemons = Daemons()
        # Process groups that a forked child has from its parent, whose sockets they use.
        self.inherited: weakref.WeakSet[Any] = weakref.WeakSet()
        self.parent: Any = None  # its state, which must not end here


_state = _State()


def _after_fork() -> None:
    global _state
    parent, _state = _state, _State()
    _state.parent = parent
    _state.inherited.update(process_groups())


os.register_at_fork(after_in_child=_after_fork)


def _check_not_forked(process_group: Any) -> None:
    if _state.inherited and process_group in _state.inherited:
        raise errors.FailedPrecondition(
            f"group {process_group.group_name!r} was made before a fork, in the parent; start the child by exec or spawn",
            reason="FORKED",
        )


@contextlib.contextmanager
def _turn_of(name: str) -> Iterator[None]:
    state = _state
    with state.lock:
        turn = state.turns.setdefault(name, _Turn())
        turn.users += 1
    try:
        with turn.lock:
            yield
    finally:
        with state.lock:
            turn.users -= 1
            if turn.users == 0:
                del state.turns[name]


def _group_ended(ended: weakref.ref[Attachment]) -> None:
    """torch has destroyed the process group, or the attachment has a successor."""
    found = ended()
    if found is None:
        return
    found.hide()
    with _state.lock:
        if _state.attachments.get(found.name) is found:
            del _state.attachments[found.name]
    _close(found)


def _daemon_identity(where: str) -> str:
    """Equal for processes that talk to one daemon: the boot of the machine, and the socket's inode."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    socket = os.stat(os.path.join(where, "lease.sock"))
    return f"{boot}:{socket.st_dev}:{socket.st_ino}"


def _local_rank() -> int:
    text = os.environ.get("LOCAL_RANK", "")
    if not text:
        return dist.get_rank()
    if not text.isdecimal():
        raise RuntimeError(f"LOCAL_RANK is {text!r}, not a number")
    return int(text)


def _offer(choice: Choice) -> dict[str, Any]:
    """This rank's side of the decision: its daemon and GPU, or why there is none."""
    if choice.refused:
        return {"refused": choice.refused}
    try:
        client = _state.daemons.client(choice.where)
        if client.backend == "cuda":
            gpu = core.cuda_device_uuid(torch.cuda.current_device())
        else:
            gpu = client.gpus[_local_rank() % len(client.gpus)]
        return {"daemon": _daemon_identity(choice.where), "backend": client.backend, "gpu": gpu, "gpus": list(client.gpus)}
    except (errors.TandemError, ImportError, OSError, RuntimeError) as error:
        return {"refused": str(error)}


def _refusal(offers: list[dict[str, Any]]) -> str:
    """Why the ranks cannot form a Tandem group, from what all of them offer; "" if they can. Equal on all ranks."""
    for rank, offer in enumerate(offers):
        if "refused" in offer:
            return f"rank {rank}: {offer['refused']}"
    for rank, offer in enumerate(offers):
        if offer["daemon"] != offers[0]["daemon"]:
            return f"rank {rank} is served by another daemon than rank 0 (another node)"
    if len(offers) > len(offers[0]["gpus"]):
        return f"the group has {len(offers)} ranks, the node's daemon {len(offers[0]['gpus'])} GPUs"
    for rank, gpu in enumerate(_gpus(offers)):
        if not gpu:
            return f"rank {rank} is on GPU {offers[rank]['gpu']}, which the daemon does not have for so many ranks"
    return ""


def _gpus(offers: list[dict[str, Any]]) -> list[str]:
    """The daemon's name of each rank's GPU, "" where there is none. Ranks that share a GPU get a share each ("GPU-...#1")."""
    names: list[str] = offers[0]["gpus"]
    wanted = [offer["gpu"] for offer in offers]
    if offers[0]["backend"] == "host":
        return wanted if len(set(wanted)) == len(wanted) else names[: len(wanted)]
    found = []
    for rank, gpu in enumerate(wanted):
        shares = [name for name in names if name == gpu or name.startswith(gpu + "#")]
        before = wanted[:rank].count(gpu)
        found.append(shares[before] if before < len(shares) else "")
    return found


def _meeting_of(process_group: Any, name: str) -> Meeting:
    """The group's meeting: an earlier call's that has given up, or a new one."""
    with _state.lock:
        found = _state.meetings.get(name)
    if found is None or not found.of(process_group):
        found = Meeting(process_group)
        with _state.lock:
            _state.meetings[name] = found
    return found


def _outcome(meeting: Meeting, name: str, config: _config.Config, choice: Choice, offers: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the Tandem group, for which all ranks have made offers; {} once it is joined, else why not."""
    before = [outcome for outcome in meeting.seen("outcome") if outcome]
    if before:  # others have given up
        return before[0]
    try:
        meeting.joined = _state.daemons.client(choice.where).join(
            f"torch.{name}",
            world_size=meeting.size,
            rank=meeting.rank,
            job_key=offers[0]["key"],
            gpu_uuid=_gpus(offers)[meeting.rank],
            deadline=config.rendezvous_timeout,
            launch_deadline=config.launch_deadline,
            options=_options(config),
        )
    except errors.DeadlineExceeded as error:
        meeting.late = error
        return {"late": str(error)}
    except errors.TandemError as error:
        return {"refused": f"rank {meeting.rank} could not join: {error}"}
    return {}


def _options(config: _config.Config) -> dict[str, str]:
    """Of the Tandem group. With "same" a rank that makes another call is named at once."""
    promise = {} if config.determinism == "off" else {"determinism": config.determinism}
    return {"order": "same", **promise}


def _join(process_group: Any, name: str, config: _config.Config) -> tuple[Group | None, str, list[int]]:
    """The group, or why there is none, and the ranks' pids."""
    if backend_of(process_group) == "fake":
        return None, "the process group is a fake one", []
    meeting = _meeting_of(process_group, name)
    timeout = config.rendezvous_timeout
    end = time.monotonic() + timeout
    while True:
        choice = agree(meeting, process_group, config, _state.daemons)
        if not meeting.has_sent("offer"):
            key = {"key": secrets.token_hex(16)} if meeting.rank == 0 else {}
            meeting.send("offer", {**_offer(choice), **key, "pid": os.getpid()})
        offers = meeting.receive("offer", timeout)
        pids = [int(offer["pid"]) for offer in offers]
        refusal = _refusal(offers)
        if refusal:
            meeting.end_round()
            return None, refusal, pids
        came_late = not meeting.has_sent("outcome")
        if came_late:
            meeting.send("outcome", _outcome(meeting, name, config, choice, offers))
        try:
            # A rank that could not join has waited for the others already.
            outcomes = meeting.receive("outcome", 0.0 if came_late and meeting.late else timeout)
        except errors.RankLate as error:
            raise meeting.late or error from None
        group, late = meeting.joined, meeting.late
        meeting.end_round()
        failed = [outcome for outcome in outcomes if outcome]
        if not failed:
            if meeting.rank == 0:
                _state.daemons.tell(choice, name)
            return group, "", pids
        if group is not None:
            with contextlib.suppress(errors.TandemError):
                group.leave()
        refused = [outcome["refused"] for outcome in failed if "refused" in outcome]
        if refused:
            return None, refused[0], pids
        # Somebody gave up in the middle of the round. All are here for the next one, or come to it.
        if time.monotonic() >= end:
            late_ranks = [rank for rank, outcome in enumerate(outcomes) if outcome]
            raise late or rank_late(process_group, late_ranks, "attaching: {} has given up; attach again")


def attach(
    group: Any = None,
    *,
    on_unavailable: _config.OnUnavailable | None = None,
    families: _config.FamiliesOption | None = None,
    max_rows: int | None = None,
    determinism: _config.DeterminismOption | None = None,
    rounding: _config.RoundingOption | None = None,
) -> Attachment:
    """Joins a Tandem group for a process group: collective, over the group's store.

    group: a ProcessGroup, its name, or None for the default one. Ops attach by themselves on first use; call this to choose when,
    or to set what is not None here of the configuration (see Config) for this group. Attached already, the attachment that exists
    is returned.

    The outcome is alike on all ranks: where one rank has no daemon, another host or no GPU, none gets a Tandem group, and
    `Attachment.reason` says why. With on_unavailable="error" or determinism="batch" that raises Unavailable on all ranks. RankLate
    names ranks that do not come.
    """
    process_group = resolve(group)
    _check_not_forked(process_group)
    name = str(process_group.group_name)
    with _turn_of(name):
        with _state.lock:
            found = _state.attachments.get(name)
            if found is not None and not found.of(process_group):  # the name is used again
                del _state.attachments[name]
        if found is not None and found.of(process_group):
            return found
        if found is not None:
            found.hide()
            _close(found)
        changes = {
            "on_unavailable": on_unavailable,
            "families": families,
            "max_rows": max_rows,
            "determinism": determinism,
            "rounding": rounding,
        }
        config = _config.changed({name: value for name, value in changes.items() if value is not None})
        joined, reason, pids = _join(process_group, name, config)
        made = Attachment(process_group, name, joined, reason, config, pids)
        with _state.lock:
            _state.attachments[name] = made
            _state.meetings.pop(name, None)
    if joined is None and config.raises:
        raise errors.Unavailable(f"Tandem cannot serve group {name!r}: {reason}", reason="UNAVAILABLE")
    return made


def attachment(name: str) -> Attachment:
    """The attachment of the process group with this name; attaches it if it has none."""
    process_group = resolve(name)
    found = _state.attachments.get(name)
    if found is not None and found.of(process_group):
        return found
    return attach(process_group)


def declined(name: str) -> str:
    """Why the attached group with this name is not served; "" if it is, or none is attached."""
    found = _state.attachments.get(name)
    return found.reason if found is not None and found.group is None else ""


def attached() -> list[Attachment]:
    """This process's attachments."""
    with _state.lock:
        return list(_state.attachments.values())


def detach(group: Any = None) -> None:
    """Leaves the Tandem group of a process group; its plans end. The next op attaches anew. After RankLost, call it before new
    process groups are made. Does nothing if the group is not attached. A call that a signal's handler breaks off can be
    made again."""
    name = group if isinstance(group, str) else str(resolve(group).group_name)
    with _turn_of(name):
        with _state.lock:
            found = _state.attachments.pop(name, None)
            found = _state.leaving.pop(name, None) if found is None else found
            if found is not None:
                _state.leaving[name] = found  # until it has left: a signal's handler may break that off
        if found is not None:
            found.hide()
            _close(found)
            _state.leaving.pop(name, None)


def _close(found: Attachment) -> None:
    # A broken group cannot be left cleanly; what it held goes with the handles.
    with contextlib.suppress(errors.TandemError):
        found.close()


@contextlib.contextmanager
def naming_ranks(found: Attachment) -> Iterator[None]:
    """Failures within name the processes of their ranks."""
    try:
        yield
    except errors.TandemError as error:
        found.name_ranks(error)
        raise


def synchronize(group: Any = None) -> None:
    """Waits for all launches of a group, or of all groups for None, and raises the first failure that no op has raised yet."""
    chosen = attached() if group is None else [attachment(str(resolve(group).group_name))]
    for one in chosen:
        with naming_ranks(one):
            one.plans.wait()


def renew(group: Any = None, *, timeout: float | None = None) -> None:
    """Lets ops of a process group go on after RankLate or another failure that stalls it: same plans, same graphs.

    Collective: all ranks call it, and agree first on the step to go on with, since a launch may have ended well on some of them.
    Until it returns, call no op of the group and replay no graph with one. timeout: seconds; None: the configuration's
    rendezvous_timeout. RankLate names ranks that do not come. RankLost: detach(), and attach a new group.
    """
    found = attachment(str(resolve(group).group_name))
    if found.group is not None:
        with naming_ranks(found):
            found.group.renew(found.config.rendezvous_timeout if timeout is None else timeout)


def clients() -> list[Client]:
    """This process's sessions, in an order that ranks with the same daemons share."""
    return _state.daemons.clients()


def _name_ranks(error: errors.TandemError, name: str) -> None:
    found = _state.attachments.get(name)
    if found is not None:
        found.name_ranks(error)


_native.name_ranks = _name_ranks


@atexit.register
def _shutdown() -> None:
    if _endings.failed():  # its launches may wait for ranks that never come
        _state.daemons.break_off()
    # A rank that ends without leaving counts as lost.
    for found in list(_state.attachments.values()):
        _close(found)
    _state.attachments.clear()
    _state.daemons.close()
