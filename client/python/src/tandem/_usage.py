"""What a process holds of Tandem's memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from . import _c

__all__ = ["MemoryUsage", "read_usage"]


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes of Tandem's memory that this process holds, by use.

    Memory counts until the last handle, launch and graph that uses it is gone; memory with several handles counts once. A segment
    is the memory of one rank that tensors, scratch memory or signals lie in. Memory of engines, and scratch memory of the GPU's
    libraries, does not count.
    """

    symmetric_bytes: int
    """This rank's parts of symmetric tensors, as they were asked for."""
    workspace_bytes: int
    """This rank's scratch memory for client-placed plans."""
    signal_bytes: int
    """This rank's signals and packets of client-placed plans."""
    segment_bytes: int
    """This rank's segments, whole: those of the three fields above."""
    peer_bytes: int
    """Peers' segments that are mapped here: addresses, no memory of this rank's GPU."""
    registered_bytes: int
    """Memory of registered(), as asked for; 0 for a group."""
    imported_bytes: int
    """The user's own GPU memory, registered by its address; 0 for a group."""
    host_bytes: int
    """Shared with tandemd and engines: verdict pages, and of a client its channels."""


def read_usage(function: Any, handle: int) -> MemoryUsage:
    """The usage that `function` of the C interface writes for a handle."""
    library, usage = _c.library(), _c.MemoryUsage()
    library.memory_usage_init(ctypes.byref(usage), ctypes.sizeof(usage))
    library.raise_status(function(handle, ctypes.byref(usage)))
    return MemoryUsage(*(getattr(usage, name) for name in MemoryUsage.__dataclass_fields__))
