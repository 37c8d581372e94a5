"""The session with the node's daemon."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _c, _places, errors
from ._session import Session, cuda_device_uuid
from .bootstrap import Job
from .enums import DType
from .group import Group
from .memory import Memory, Reservation, allocate_registered, reserve

__all__ = ["Client", "connect", "cuda_device_uuid", "init"]


class Client(Session):
    """A session. Usable from any thread, not in a child that was forked after the connection (connect there anew by spawn)."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self._unclaimed: dict[Any, Group] = {}

    def __repr__(self) -> str:
        return f"<tandem.Client {self.session_id}: {self.backend}, {len(self.gpus)} GPUs>"

    def join(
        self,
        name: str,
        *,
        world_size: int,
        rank: int,
        job_key: str | bytes,
        gpu_uuid: str | None = None,
        deadline: float | None = 30,
        launch_deadline: float | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Group:
        """Joins the group `name` of the job; returns once all ranks have come.

        job_key: at least 16 bytes, equal on all ranks of the job. gpu_uuid: this rank's GPU; None: the GPU with index `rank`.
        deadline: seconds within which all ranks must come. launch_deadline: seconds of a launch from its first arrival; None:
        the daemon's default. options: docs/operations.md, group options.

        Raises RankLate (names the ranks), RankLost, InvalidArgument (names the field).
        """
        key = _c.utf8("job_key", job_key) if isinstance(job_key, str) else job_key
        items = list((options or {}).items())
        texts = ctypes.c_char_p * max(1, len(items))
        library, group, given = _c.library(), _c.Pointer(), _c.JoinOptions()
        library.join_options_init(ctypes.byref(given), ctypes.sizeof(given))
        given.job_key, given.job_key_bytes, given.name = key, len(key), _c.text("name", name)
        given.world_size, given.rank, given.gpu_uuid = world_size, rank, _c.optional_text("gpu_uuid", gpu_uuid)
        given.deadline_ms, given.launch_deadline_ms = _c.milliseconds(deadline), _c.milliseconds(launch_deadline, 0)
        given.option_names, given.option_count = texts(*[_c.text("options", option) for option, _ in items]), len(items)
        given.option_values = texts(*[_c.text(f"options[{option}]", value) for option, value in items])
        # A call before may have been broken off as it succeeded.
        place = (name, key, rank)
        joined = self._unclaimed.pop(place, None)
        if joined is not None:
            return joined

        def _made() -> None:
            self._unclaimed[place] = Group(self, group.value or 0, name)

        library.wait(library.join_group, self._open(), ctypes.byref(given), ctypes.byref(group), made=_made)
        return Group(self, group.value or 0, name)

    def registered(self, shape: Sequence[int] | int, dtype: DType | str = DType.f32, *, gpu_uuid: str) -> Memory:
        """New registered memory on a GPU, of this shape. Its contents are not set."""
        return allocate_registered(self, shape, dtype, gpu_uuid)

    def empty(
        self, shape: Sequence[int] | int, dtype: DType | str = DType.f32, *, gpu_uuid: str, name: str | None = None
    ) -> Reservation:
        """A tensor on a GPU that no group has yet; it gets memory with its first Reservation.rendezvous().

        name: persistent: later reservations with the name get the same memory in a group. NotFound: no such GPU.
        """
        return reserve(self, shape, dtype, gpu_uuid, name)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._handle.close()


def connect(runtime_dir: str | os.PathLike[str] | None = None, *, name: str | None = None, timeout: float | None = 5) -> Client:
    """Connects to the node's daemon.

    runtime_dir: where its sockets lie; None: $TANDEM_RUNTIME_DIR, else /run/tandem, or where that has none the user's own, of a
    tandemd started from the wheel without root. name: shown by tandemctl; None: the program's name. timeout: seconds in which the
    daemon must answer. Raises Unavailable (names the socket), PermissionDenied.
    """
    library, client = _c.library(), _c.Pointer()
    library.raise_status(
        library.connect(
            os.fsencode(_places.runtime_dir() if runtime_dir is None else runtime_dir),
            _c.optional_text("name", name),
            _c.milliseconds(timeout),
            ctypes.byref(client),
        )
    )
    return Client(client.value or 0)


def init(
    name: str = "world", *, runtime_dir: str | os.PathLike[str] | None = None, job: Job | None = None, deadline: float | None = 60
) -> Group:
    """Connects and joins the group of this job's ranks on this node, as torchrun, Slurm or MPI started them.

    The group's rank is the job's local rank and its size the local world size. job: None: Job.from_environment(). The client is
    the group's `client` and ends when the group is left. Raises what connect() and Client.join() raise, and LookupError where no
    launcher is recognised.
    """
    found = Job.from_environment() if job is None else job
    client = connect(runtime_dir)
    gpu = None
    if client.backend == "cuda":
        devices = _visible_devices()
        gpu = cuda_device_uuid(found.local_rank % devices)
        shares = [name for name in client.gpus if name.startswith(gpu + "#")]  # of a GPU with several engines
        gpu = shares[min(found.local_rank // devices, len(shares) - 1)] if shares else gpu
    group = client.join(
        name, world_size=found.local_world_size, rank=found.local_rank, job_key=found.job_key, gpu_uuid=gpu, deadline=deadline
    )
    group._owns_client = True
    return group


def _visible_devices() -> int:
    count = 0
    while count < 64:
        try:
            cuda_device_uuid(count)
        except errors.TandemError:
            break
        count += 1
    return max(1, count)
