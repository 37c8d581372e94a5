"""c10d's own names for a sleep, on groups of the backend "tandem": backend.suspend() and resume(), which torch 2.12 has for NCCL's
communicators. There Tandem's group of the process group sleeps and wakes up, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _suspension
from ._groups import Attachment, attached
from ._private import backends_of, resolve

_Call = Callable[[Any], None]


def follow(backend: Any, name: str) -> None:
    """Lets the methods of the backend's class include Tandem's groups of the backend `name`. Nothing where torch has none."""
    for method, including in (("suspend", _suspending), ("resume", _resuming)):
        owner = next((one for one in type(backend).__mro__ if method in vars(one)), None)
        if owner is not None and not hasattr(vars(owner)[method], "tandem"):
            ours = including(vars(owner)[method], name)
            ours.tandem = name  # type: ignore[attr-defined]
            setattr(owner, method, ours)


def _group_of(backend: Any, name: str) -> Attachment | None:
    """The attachment of the backend's process group, if that is of the backend `name`."""
    group_name = str(getattr(getattr(backend, "options", None), "group_name", ""))
    for found in attached():
        if found.name == group_name and found.group is not None:
            backends = backends_of(resolve(group_name)).split(",")
            return found if any(one.endswith(f":{name}") for one in backends) else None
    return None


def _suspending(theirs: _Call, name: str) -> _Call:
    def suspend(self: Any) -> None:
        theirs(self)
        found = _group_of(self, name)
        if found is None:
            return
        try:
            _suspension.suspend(found.name, keep=True)  # as NCCL keeps what its memory holds
        except BaseException:
            self.resume()  # Tandem's group is awake
            raise

    return suspend


def _resuming(theirs: _Call, name: str) -> _Call:
    def resume(self: Any) -> None:
        found = _group_of(self, name)
        if found is not None:
            _suspension.resume(found.name)
        theirs(self)

    return resume
