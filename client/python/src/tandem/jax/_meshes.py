"""The meshes that are attached, and the groups of their axes."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import threading
from typing import Any

import jax
import numpy as np

from .. import _endings, errors
from ..client import Client
from . import _config
from ._axis_group import AxisGroup
from ._library import calls
from ._meeting import Meeting, store
from ._places import choose_daemon, place

__all__ = ["Axes", "attach", "detach", "group_of", "lock", "synchronize"]

Axes = tuple[str, ...]
_MOST_RANKS = 8
_BACKENDS = {"cpu": "host", "gpu": "cuda"}
# Guards all below; held while processes meet.
lock = threading.RLock()
_attached: dict[Any, AttachedMesh] = {}
_attachments = 0


class AttachedMesh:
    """One mesh. reason: why Tandem serves none of its axes; alike in all processes."""

    def __init__(self, mesh: Any, name: str) -> None:
        self.mesh = mesh
        self.reason = ""
        self._groups: dict[Axes, AxisGroup | str] = {}
        self._client: Client | None = None
        self._processes = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.devices)
        flat = [int(one) for one in self._processes.flat]
        self.reason = self._why_not(flat)
        if self.reason:
            return
        self._meeting = Meeting(name, flat)
        self._attach(flat)

    def _why_not(self, processes: list[int]) -> str:
        """Of what every process knows."""
        if len(processes) == 1:
            return "the mesh has one device"
        if len(set(processes)) < len(processes):
            return "a process has several devices of the mesh"
        platform = self.mesh.devices.flat[0].platform
        if platform not in _BACKENDS:
            return f"Tandem does not run on {platform}"
        if store() is None:
            return "jax.distributed is not initialized"
        if jax.process_index() not in processes:
            return "this process has no device of the mesh"
        return ""

    def _attach(self, processes: list[int]) -> None:
        timeout = _config.current().rendezvous_timeout
        (device,) = [one for one in self.mesh.devices.flat if one.process_index == jax.process_index()]
        mine: dict[str, Any] = {"job": secrets.token_hex(16), "failed": ""}
        try:
            calls()
            mine |= place(device)
        except (ImportError, OSError, errors.TandemError) as error:
            mine["failed"] = str(error)
        self._places = self._meeting.exchange("tandem.jax.attach()", mine, timeout)
        failed = [one["failed"] for one in self._places.values() if one["failed"]]
        if failed:
            self.reason = failed[0]
            return
        self._job = self._places[processes[0]]["job"]
        backend = _BACKENDS[device.platform]
        self._client, self._daemons = choose_daemon(self._meeting, self._places, backend, self._job, timeout)

    def group(self, axes: Axes) -> AxisGroup | str:
        """The group of this process along the axes, which all processes join when it is asked for first. The reason where Tandem
        does not serve them; alike in all processes."""
        if self.reason:
            return self.reason
        if axes not in self._groups:
            self._groups[axes] = self._join(axes)
        return self._groups[axes]

    def _rows(self, axes: Axes) -> Any:
        """The processes of each group along the axes, in rank order."""
        names = self.mesh.axis_names
        others = [i for i, name in enumerate(names) if name not in axes]
        chosen = [names.index(name) for name in axes]
        return np.transpose(self._processes, others + chosen).reshape(-1, int(np.prod([self.mesh.shape[a] for a in axes])))

    def _join(self, axes: Axes) -> AxisGroup | str:
        rows = self._rows(axes)
        ranks = rows.shape[1]
        if ranks == 1:
            return "the axis has one device"
        if ranks > _MOST_RANKS:
            return f"the axis has more than {_MOST_RANKS} devices"
        for row in rows:
            found = [self._daemons[int(process)] for process in row]
            refused = [str(one["refused"]) for one in found if one["refused"]]
            if refused:
                return refused[0]
            if len({one["identity"] for one in found}) > 1:
                return "the axis spans several hosts or daemons"
        assert self._client is not None
        me = jax.process_index()
        (number,) = [i for i, row in enumerate(rows) if me in row]
        rank = int(np.where(rows[number] == me)[0][0])
        label = f"{self.mesh.axis_names}|{self.mesh.devices.shape}|{axes}"
        config, failed, made = _config.current(), "", None
        try:
            group = self._client.join(
                f"jax {','.join(axes)} {number}",
                world_size=ranks,
                rank=rank,
                job_key=self._job,
                gpu_uuid=self._gpu(),
                deadline=config.rendezvous_timeout,
                launch_deadline=config.launch_deadline,
            )
            made = AxisGroup(group, label, lambda refusal: self._agree(refusal, several=len(rows) > 1))
        except errors.TandemError as error:
            failed = str(error)
        failed = self._agree(failed)
        if made is None:
            return failed
        if failed:
            made.close()
            return failed
        return made

    def _gpu(self) -> str:
        assert self._client is not None
        mine = self._places[jax.process_index()]
        if mine["gpu"]:
            return str(mine["gpu"])
        here = sorted(process for process, one in self._places.items() if one["node"] == mine["node"])
        return self._client.gpus[here.index(jax.process_index()) % len(self._client.gpus)]

    def _agree(self, refusal: str, several: bool = True) -> str:
        """The first refusal of all processes. several: groups side by side, whose daemons may answer differently."""
        if not several:
            return refusal
        told = self._meeting.exchange("an agreement", {"refusal": refusal}, _config.current().rendezvous_timeout)
        return next((one["refusal"] for one in told.values() if one["refusal"]), "")

    def wait(self, timeout: float) -> None:
        """Waits for this process's launches, and raises the first failure that nobody has raised."""
        for group in self._groups.values():
            if isinstance(group, AxisGroup):
                group.wait(timeout)

    def break_off(self) -> None:
        """Ends the session of a program that has failed; it does not wait for its launches."""
        if self._client is not None:
            self._client._break_off()

    def close(self) -> None:
        """Leaves all groups."""
        for group in self._groups.values():
            if isinstance(group, AxisGroup):
                with contextlib.suppress(errors.TandemError):
                    group.close()
        self._groups.clear()
        if self._client is not None:
            with contextlib.suppress(errors.TandemError):
                self._client.close()


def _key(mesh: Any) -> Any:
    return tuple(mesh.shape_tuple)


def attach(mesh: jax.sharding.Mesh) -> str:
    """Lets calls inside jax.shard_map() over a mesh with these axes run by Tandem. All processes of the mesh call it; it waits for
    them.

    Returns the reason why Tandem serves none of the axes, alike in all processes; "" where it may. ValueError: a mesh with the same
    names and sizes of axes, but other devices, is attached: detach() that first. RankLate names a process that has not come.
    """
    global _attachments
    with lock:
        found = _attached.get(_key(mesh))
        if found is not None:
            if not np.array_equal(found.mesh.devices, mesh.devices):
                raise ValueError("a mesh of these axes with other devices is attached: call tandem.jax.detach() first")
            return found.reason
        _attachments += 1
        made = _attached[_key(mesh)] = AttachedMesh(mesh, f"mesh {_attachments}")
        return made.reason


def group_of(axes: Axes) -> AxisGroup | str:
    """The group along these axes of the shard_map() that is traced, or the reason why Tandem does not serve it. With the lock."""
    mesh = jax.sharding.get_abstract_mesh()
    if not axes or not set(axes) <= set(mesh.manual_axes):
        return "the axis is not one of jax.shard_map()"
    found = _attached.get(_key(mesh))
    return "its mesh is not attached: see tandem.jax.attach()" if found is None else found.group(axes)


def synchronize(timeout: float = 600) -> None:
    """Waits for all launches that this process has made, and raises the first failure that no call has raised.

    On CUDA a launch fails after XLA has enqueued it, so jax.block_until_ready() may return wrong values: call this behind it.
    """
    with lock:
        for attached in _attached.values():
            attached.wait(timeout)


def detach() -> None:
    """Leaves all groups. Programs that were compiled with calls of Tandem fail from then on: before attach() again, drop them by
    jax.clear_caches()."""
    with lock:
        for attached in _attached.values():
            attached.close()
        _attached.clear()


@atexit.register
def _shutdown() -> None:
    if _endings.failed():  # its launches may wait for processes that never come
        for attached in list(_attached.values()):
            attached.break_off()
    detach()
