"""Where the processes of a mesh are, and which daemon serves them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .. import _embedded, _places, client as core, errors
from ..client import Client
from ._meeting import Meeting

__all__ = ["choose_daemon", "place"]

# For a new daemon to answer; engines of GPUs take seconds.
_PATIENCE = 90.0


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _node() -> str:
    """Equal for processes that see the same files of the same machine; containers of one machine differ."""
    seen = os.stat("/")
    return f"{_boot()}:{seen.st_dev}:{seen.st_ino}:{os.getuid()}"


def _identity(where: str) -> str:
    """Equal for processes of one daemon, also where containers see it under several paths."""
    socket = os.stat(os.path.join(where, "lease.sock"))
    return f"{_boot()}:{socket.st_dev}:{socket.st_ino}"


def place(device: Any) -> dict[str, Any]:
    """What the others need to know of this process."""
    return {
        "node": _node(),
        "gpu": core.cuda_device_uuid(device.local_hardware_id) if device.platform == "gpu" else "",
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def _decide(here: Mapping[int, dict[str, Any]], backend: str, job: str) -> tuple[str, Client]:
    """The node's daemon, or one that the job starts. Raises TandemError or OSError."""
    where = _places.runtime_dir()
    try:
        return where, core.connect(where)
    except errors.TandemError as error:
        if error.reason != "NO_DAEMON" or not _embedded.is_enabled() or len(here) > _embedded.MOST_GPUS:
            raise
    cpus = sorted({cpu for one in here.values() for cpu in one["cpus"]})
    visible = ",".join(one["gpu"] for one in here.values()) if backend == "cuda" else None
    return _embedded.obtain(_embedded.Start(job, backend, len(here), visible, cpus), _PATIENCE)


def choose_daemon(
    meeting: Meeting, places: Mapping[int, dict[str, Any]], backend: str, job: str, timeout: float
) -> tuple[Client | None, dict[int, dict[str, Any]]]:
    """This process's session, and every process's daemon: its identity, or the reason why there is none. TANDEM_RUNTIME_DIR names a
    daemon; else the first process of each node chooses."""
    given = os.environ.get("TANDEM_RUNTIME_DIR", "")
    node = places[meeting.process]["node"]
    here = {process: one for process, one in places.items() if one["node"] == node}
    client, where, refused = None, given, ""
    try:
        if given:
            client = core.connect(given)
        elif meeting.process == min(here):
            where, client = _decide(here, backend, job)
    except (errors.TandemError, OSError) as error:
        refused = str(error)
    told = meeting.exchange("the choice of a daemon", {"where": where, "refused": refused}, timeout)
    try:
        if client is None and not refused:
            first = told[min(here)]
            refused = first["refused"]
            if not refused:
                where = first["where"]
                client = core.connect(where)
        if client is not None and client.backend != backend:
            refused = f"the daemon in {where} has the backend {client.backend}"
    except (errors.TandemError, OSError) as error:
        refused = str(error)
    if refused and client is not None:
        client.close()
        client = None
    identity = "" if refused else _identity(where)
    return client, meeting.exchange("the daemon", {"identity": identity, "refused": refused}, timeout)
