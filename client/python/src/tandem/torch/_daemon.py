"""Which daemon serves a process group: one answer for its ranks of a node, by the first of them.

A daemon that $TANDEM_RUNTIME_DIR or configure(runtime_dir=) names is taken as it is, by each rank for itself. For the others the
node's first rank decides: the daemon that the job has started already, else the node's or the user's, else a new one of the job's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .. import _embedded, _places, client as core, errors
from .._version import version
from ..client import Client
from . import _config
from ._meeting import Meeting
from ._private import backends_of, job_store

__all__ = ["Choice", "Daemons", "agree"]

_log = logging.getLogger("tandem.torch")
# For a new daemon to answer; engines of GPUs take seconds. The other ranks wait longer, for who starts it.
_PATIENCE = 90.0


@dataclass(frozen=True)
class Choice:
    """Where the daemon of this rank has its sockets, or why there is none. embedded: the job has started it."""

    where: str
    refused: str = ""
    embedded: bool = False


class Daemons:
    """The daemons that this process has sessions with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._lost: list[Client] = []
        self._told: set[str] = set()
        self.started: dict[str, str] = {}  # the job's own daemons, by backend
        self.failed: dict[str, str] = {}  # why none could be started: not tried again

    def client(self, where: str) -> Client:
        """The session with the daemon there; a new one if the daemon has ended meanwhile. Raises what connect() raises."""
        with self._lock:
            found = self._clients.get(where)
            if found is not None and not _is_lost(found):
                return found
            made = core.connect(where, timeout=10)
            if found is not None:
                self._lost.append(found)
            self._clients[where] = made
            return made

    def obtain(self, start: _embedded.Start, patience: float) -> str:
        """The runtime directory of the job's own daemon, with which there is a session then: it does not end before."""
        where, made = _embedded.obtain(start, patience)
        with self._lock:
            kept = self._clients.setdefault(where, made)
        if kept is not made:  # another thread's
            made.close()
        return where

    def clients(self) -> list[Client]:
        """The sessions, in an order that ranks with the same daemons share."""
        with self._lock:
            return [self._clients[where] for where in sorted(self._clients)]

    def tell(self, choice: Choice, name: str) -> None:
        """Logs once which daemon serves."""
        with self._lock:
            if choice.where in self._told:
                return
            self._told.add(choice.where)
        whose = "the job's own tandemd" if choice.embedded else "the tandemd"
        _log.info("group %r is served by %s in %s", name, whose, choice.where)

    def break_off(self) -> None:
        """Ends all sessions of a program that has failed; they do not wait for their launches."""
        for one in (*self._clients.values(), *self._lost):
            one._break_off()

    def close(self) -> None:
        """Ends all sessions."""
        for one in (*self._clients.values(), *self._lost):
            with contextlib.suppress(errors.TandemError):
                one.close()
        self._clients.clear()
        self._lost.clear()


def _is_lost(found: Client) -> bool:
    try:
        found.check()
    except (errors.TandemError, ValueError):
        return True
    return False


def _given(config: _config.Config) -> str:
    """The daemon that the program or the user names, "" if neither does."""
    return config.runtime_dir or os.environ.get("TANDEM_RUNTIME_DIR", "")


def _release() -> str:
    """The version of Tandem that this rank has."""
    return version().library


def _node() -> str:
    """Equal for ranks that see the same files of the same machine; containers of one machine differ."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    seen = os.stat("/")
    return f"{boot}:{seen.st_dev}:{seen.st_ino}:{os.getuid()}:{_places.user_folders()[-1]}"


def _job(process_group: Any) -> str:
    """The job's name, equal on all ranks, of this group and of others."""
    name: bytes = job_store(process_group).compare_set("tandem/job", "", secrets.token_hex(6))
    return name.decode()


def _wants_cuda(process_group: Any) -> bool:
    """Whether the group's tensors are CUDA tensors, as far as is known: gloo moves those of both kinds."""
    cuda: Any = torch.cuda  # without types
    return bool(cuda.is_available() and ("nccl" in backends_of(process_group) or cuda.is_initialized()))


def _place(process_group: Any, daemons: Daemons) -> dict[str, Any]:
    """What the node's first rank must know of this one."""
    cuda = _wants_cuda(process_group)
    gpu = ""
    if cuda:
        with contextlib.suppress(errors.TandemError, ImportError, RuntimeError):
            gpu = core.cuda_device_uuid(torch.cuda.current_device())
    return {
        "node": _node(),
        "cuda": cuda,
        "gpu": gpu,
        "cpus": sorted(os.sched_getaffinity(0)),
        "own": dict(daemons.started),
    }


def _ranks_here(ranks: int) -> int:
    """The job's ranks on this node, of which `ranks` are in the group; at least as many."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdecimal():
        return max(int(told), ranks)
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else ranks
    return max(world, ranks)


def _visible(here: list[dict[str, Any]]) -> str | None:
    """CUDA_VISIBLE_DEVICES of a daemon for these ranks, as of `Start`. A rank may see its own GPU alone."""
    if "CUDA_VISIBLE_DEVICES" not in os.environ or torch.cuda.device_count() >= _ranks_here(len(here)):
        return None
    gpus = sorted({one["gpu"] for one in here if one["gpu"]})
    return ",".join(gpus) if len(gpus) == _ranks_here(len(here)) else ""


def _decide(process_group: Any, daemons: Daemons, here: list[dict[str, Any]], together: bool, patience: float) -> Choice:
    """The daemon of these ranks. together: the group has no ranks elsewhere, so that a daemon of their own would serve it."""
    backend = "cuda" if any(one["cuda"] for one in here) else "host"
    for where in sorted({one["own"][backend] for one in here if backend in one["own"]}):
        with contextlib.suppress(errors.TandemError):
            daemons.client(where)
            return Choice(where, embedded=True)
    nobody = ""
    for where in _places.candidates():
        try:
            daemons.client(where)
            return Choice(where)
        except errors.TandemError as error:
            if error.reason != "NO_DAEMON":  # it is there, and refuses
                raise
            nobody = nobody or str(error)
    if not _embedded.is_enabled():
        return Choice("", nobody)
    if not together:
        return Choice("", f"{nobody}; the job starts none for a group that spans nodes")
    if len(here) > _embedded.MOST_GPUS:
        return Choice("", f"{nobody}; the job starts none for more than {_embedded.MOST_GPUS} ranks")
    if backend not in daemons.failed:
        try:
            return Choice(daemons.obtain(_start_for(process_group, backend, here), patience), embedded=True)
        except errors.TandemError as error:
            daemons.failed[backend] = error.message
        except OSError as error:
            daemons.failed[backend] = str(error)
    return Choice("", f"{nobody}; the job cannot start its own: {daemons.failed[backend]}")


def _start_for(process_group: Any, backend: str, here: list[dict[str, Any]]) -> _embedded.Start:
    return _embedded.Start(
        _job(process_group),
        backend,
        gpus=min(_ranks_here(len(here)), _embedded.MOST_GPUS),
        visible=_visible(here) if backend == "cuda" else None,
        cpus=sorted({cpu for one in here for cpu in one["cpus"]}),
    )


def agree(meeting: Meeting, process_group: Any, config: _config.Config, daemons: Daemons) -> Choice:
    """The daemon of this rank. Collective, in the meeting's round; RankLate names ranks that do not come."""
    given, timeout = _given(config), config.rendezvous_timeout
    if not meeting.has_sent("place"):
        meeting.send("place", {"version": _release(), **({"given": True} if given else _place(process_group, daemons))})
    places = meeting.receive("place", timeout)
    versions = [str(place.get("version", "another version")) for place in places]
    if apart := next((rank for rank, one in enumerate(versions) if one != versions[0]), 0):
        # By its offer a rank declines for all, also for those of a version that does not compare.
        choice = Choice("", f"ranks have different versions of Tandem: rank 0 {versions[0]}, rank {apart} {versions[apart]}")
        if not given and not meeting.has_sent("daemon"):
            meeting.send("daemon", asdict(choice))
        return choice
    if given:
        return Choice(given)
    node = places[meeting.rank]["node"]
    here = [rank for rank, place in enumerate(places) if place.get("node") == node]
    if meeting.rank == here[0] and not meeting.has_sent("daemon"):
        try:
            choice = _decide(
                process_group,
                daemons,
                [places[rank] for rank in here],
                together=len(here) == len(places),
                patience=min(_PATIENCE, timeout / 2),
            )
        except (errors.TandemError, ImportError, OSError, RuntimeError) as error:
            choice = Choice("", str(error))
        meeting.send("daemon", asdict(choice))
    (told,) = meeting.receive("daemon", timeout, [here[0]])
    choice = Choice(**told)
    if choice.embedded:
        daemons.started["cuda" if any(places[rank]["cuda"] for rank in here) else "host"] = choice.where
    return choice
