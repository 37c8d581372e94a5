"""This rank's membership of a group, without the plans and the memory that are made in it."""

from __future__ import annotations

from . import _c
from ._session import Session
from ._usage import MemoryUsage, read_usage

__all__ = ["Membership"]


class Membership:
    """What plans and tensors need of the group that they came from."""

    def __init__(self, client: Session, handle: int, name: str) -> None:
        library = _c.library()
        self.client, self.name = client, name
        self._handle = _c.Handle(handle, library.group_free)
        self.id: int = library.group_id(handle)
        self.rank: int = library.group_rank(handle)
        self.world_size: int = library.group_world_size(handle)
        self.incarnation: int = library.group_incarnation(handle)
        self.gpu_uuid: str = library.group_gpu_uuid(handle).decode()
        self.topology_class: str = library.group_topology_class(handle).decode()

    def _open(self) -> int:
        if not self._handle.value:
            raise ValueError("this group has been left")
        return self._handle.value

    def links(self, source: int, destination: int) -> int:
        """NVLinks between the GPUs of two ranks; 0 if there is no such rank."""
        return int(_c.library().group_links(self._open(), source, destination))

    def used_memory(self) -> MemoryUsage:
        """What this process holds for the group. Asks no daemon."""
        return read_usage(_c.library().group_memory, self._open())

    def renew(self, deadline: float | None = 30) -> None:
        """Lets plans go on after one of their launches has stalled the group, with the same plans and memory.

        All ranks call it; it waits for them. Until it returns, launch no plan of the group. All ranks agree first on the launch to
        go on with. Failures that no call has raised yet are dropped. RankLate names who is missing; then all ranks may call it
        again. RankLost: the group is broken.
        """
        library = _c.library()
        library.wait(library.group_renew, self._open(), _c.milliseconds(deadline))

    def suspend(self, keep: bool = False, deadline: float | None = 30) -> None:
        """Gives up the group's memory, here and on the engines, until resume().

        All ranks call it; it waits for them. Addresses stay, so that plans, families, graphs and symmetric tensors are valid
        afterwards. Until resume() returns, read no memory of the group and replay no graph with one of its plans; a launch raises
        FailedPrecondition with reason SUSPENDED. keep: this rank's symmetric tensors keep their contents, in memory of the process;
        else they are zero afterwards. Nothing for a suspended group. RankLate names who is missing, and launches go on. RankLost:
        the group is broken.
        """
        library = _c.library()
        library.wait(library.group_suspend, self._open(), int(keep), _c.milliseconds(deadline))

    def resume(self, deadline: float | None = 30) -> None:
        """Makes the memory of a suspended group again, at the same addresses.

        All ranks call it; it waits for them. Nothing for a group that is not suspended. After an error the group is suspended
        still, and all ranks may call it again: ResourceExhausted where memory or a quota does not suffice, RankLate where a rank is
        missing. RankLost names a rank that has ended meanwhile, and the group is broken.
        """
        library = _c.library()
        library.wait(library.group_resume, self._open(), _c.milliseconds(deadline))
