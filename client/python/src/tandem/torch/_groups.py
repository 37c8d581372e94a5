"""Tandem groups that are attached to torch's process groups: one each, found by name and identity."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import threading
import weakref
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _places, client as core, errors
from ..client import Client
from ..group import Group
from . import _config, _graph_holds, _native
from ._plans import PlanCache
from ._private import backend_of, on_end, resolve, store_of
from ._symmetric import Ranges

__all__ = ["Attachment", "attach", "attachment", "detach", "synchronize"]


class Attachment:
    """A process group's Tandem group. `group` is None where there is none, and `reason` says why; both are alike on all ranks."""

    def __init__(self, process_group: Any, name: str, group: Group | None, reason: str, config: _config.Config) -> None:
        self._process_group = weakref.ref(process_group)
        self.name, self.group, self.reason, self.config = name, group, reason, config
        self.rank: int = process_group.rank()
        self.world_size: int = process_group.size()
        self.device_type = "" if group is None else {"host": "cpu", "cuda": "cuda"}[group.client.backend]
        if self.device_type == "cuda":
            _graph_holds.install()
        table = None
        if group is not None and _native.kernels is not None:
            table = _native.Table(name)
            # Without notice of the group's end a plan might serve a later group of this name.
            if not on_end(process_group, table.hide):
                table.hide()
        self.symmetric = Ranges(table, config.write_in_place)
        self.plans = PlanCache(self, table)

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

    def close(self) -> None:
        """Releases the plans and leaves the group."""
        group, self.group, self.reason = self.group, None, "the group has been detached"
        self.plans.close()
        if group is not None:
            group.leave()


_attachments: dict[str, Attachment] = {}
_clients: dict[str, Client] = {}
_lock = threading.RLock()


def _client(config: _config.Config) -> Client:
    where = config.runtime_dir or _places.runtime_dir()
    if where not in _clients:
        _clients[where] = core.connect(where, timeout=10)
    return _clients[where]


def _daemon_identity(config: _config.Config) -> str:
    """Equal for processes that talk to one daemon: the boot of the machine, and the socket's inode."""
    where = config.runtime_dir or _places.runtime_dir()
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    socket = os.stat(os.path.join(where, "lease.sock"))
    return f"{boot}:{socket.st_dev}:{socket.st_ino}"


class _Exchange:
    """Small messages of all ranks to all, over the process group's store."""

    def __init__(self, process_group: Any, timeout: float) -> None:
        self._store = store_of(process_group)
        self._rank, self._size, self._timeout = process_group.rank(), process_group.size(), timeout
        # The n-th attachment of a group under one store, though names of groups are used again.
        arrivals = self._store.add("tandem/arrivals", 1)
        self._prefix = f"tandem/{(arrivals - 1) // self._size}"

    def all(self, topic: str, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's message, in rank order. RankLate names the ranks that have not sent one in time."""
        keys = [f"{self._prefix}/{topic}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps(message))
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout))
        except RuntimeError as error:
            late = tuple(rank for rank, key in enumerate(keys) if not self._store.check([key]))
            if not late:
                raise
            names = ", ".join(map(str, late))
            raise errors.RankLate(
                f"attaching: rank {names} has not come within {self._timeout:g} s",
                reason="RANK_LATE",
                who=f"rank {names}",
                ranks=late,
            ) from error
        return [json.loads(self._store.get(key)) for key in keys]


def _offer(config: _config.Config, process_group: Any) -> dict[str, Any]:
    """This rank's side of the decision: its daemon and GPU, or why there is none."""
    try:
        client = _client(config)
        if client.backend == "cuda":
            gpu = core.cuda_device_uuid(torch.cuda.current_device())
        else:
            ordinal = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
            gpu = client.gpus[ordinal % len(client.gpus)]
        return {"daemon": _daemon_identity(config), "backend": client.backend, "gpu": gpu, "gpus": list(client.gpus)}
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


def _join(process_group: Any, name: str, config: _config.Config) -> tuple[Group | None, str]:
    if backend_of(process_group) == "fake":
        return None, "the process group is a fake one"
    exchange = _Exchange(process_group, config.rendezvous_timeout)
    rank, size = process_group.rank(), process_group.size()
    key = {"key": secrets.token_hex(16)} if rank == 0 else {}
    offers = exchange.all("offer", _offer(config, process_group) | key)
    refusal = _refusal(offers)
    if refusal:
        return None, refusal
    group: Group | None = None
    outcome: dict[str, Any] = {}
    try:
        group = _client(config).join(
            f"torch.{name}",
            world_size=size,
            rank=rank,
            job_key=offers[0]["key"],
            gpu_uuid=_gpus(offers)[rank],
            deadline=config.rendezvous_timeout,
            launch_deadline=config.launch_deadline,
            options={"order": "same"},  # a rank that makes another call is named at once
        )
    except errors.TandemError as error:
        outcome = {"refused": str(error)}
    outcomes = exchange.all("outcome", outcome)
    for other, told in enumerate(outcomes):
        if "refused" in told:
            if group is not None:
                group.leave()
            return None, f"rank {other} could not join: {told['refused']}"
    return group, ""


def attach(group: Any = None, *, on_unavailable: _config.OnUnavailable | None = None) -> Attachment:
    """Joins a Tandem group for a process group: collective, over the group's store.

    group: a ProcessGroup, its name, or None for the default one. Ops attach by themselves on first use; call this to choose when,
    or to set `on_unavailable` for this group. Attached already, the attachment that exists is returned.

    The outcome is alike on all ranks: where one rank has no daemon, another host or no GPU, none gets a Tandem group, and
    `Attachment.reason` says why. With on_unavailable="error" that raises Unavailable on all ranks. RankLate names ranks that do
    not come.
    """
    process_group = resolve(group)
    name = str(process_group.group_name)
    with _lock:
        found = _attachments.get(name)
        if found is not None and found.of(process_group):
            return found
        if found is not None:  # the name is used again
            _close(found)
        config = _config.current()
        if on_unavailable is not None:
            config = replace(config, on_unavailable=on_unavailable)
        joined, reason = _join(process_group, name, config)
        made = Attachment(process_group, name, joined, reason, config)
        _attachments[name] = made
    if joined is None and config.on_unavailable == "error":
        raise errors.Unavailable(f"Tandem cannot serve group {name!r}: {reason}", reason="UNAVAILABLE")
    return made


def attachment(name: str) -> Attachment:
    """The attachment of the process group with this name; attaches it if it has none."""
    process_group = resolve(name)
    found = _attachments.get(name)
    if found is not None and found.of(process_group):
        return found
    return attach(process_group)


def declined(name: str) -> str:
    """Why the attached group with this name is not served; "" if it is, or none is attached."""
    found = _attachments.get(name)
    return found.reason if found is not None and found.group is None else ""


def detach(group: Any = None) -> None:
    """Leaves the Tandem group of a process group; its plans end. The next op attaches anew. After RankLost, call it before new
    process groups are made. Does nothing if the group is not attached."""
    name = group if isinstance(group, str) else str(resolve(group).group_name)
    with _lock:
        found = _attachments.pop(name, None)
    if found is not None:
        _close(found)


def _close(found: Attachment) -> None:
    # A broken group cannot be left cleanly; what it held goes with the handles.
    with contextlib.suppress(errors.TandemError):
        found.close()


def synchronize(group: Any = None) -> None:
    """Waits for all launches of a group, or of all groups for None, and raises the first failure that no op has raised yet."""
    with _lock:
        chosen = list(_attachments.values()) if group is None else [attachment(str(resolve(group).group_name))]
    for one in chosen:
        one.plans.wait()


def renew(group: Any = None, *, timeout: float | None = None) -> None:
    """Lets ops of a process group go on after RankLate or another failure that stalls it: same plans, same graphs.

    Collective: all ranks call it, and agree first on the step to go on with, since a launch may have ended well on some of them.
    Until it returns, call no op of the group and replay no graph with one. timeout: seconds; None: the configuration's
    rendezvous_timeout. RankLate names ranks that do not come. RankLost: detach(), and attach a new group.
    """
    found = attachment(str(resolve(group).group_name))
    if found.group is not None:
        found.group.renew(found.config.rendezvous_timeout if timeout is None else timeout)


@atexit.register
def _shutdown() -> None:
    # A rank that ends without leaving counts as lost.
    for found in list(_attachments.values()):
        _close(found)
    _attachments.clear()
    for client in _clients.values():
        with contextlib.suppress(errors.TandemError):
            client.close()
    _clients.clear()
