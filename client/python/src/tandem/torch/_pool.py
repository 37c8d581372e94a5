"""A pool of symmetric memory behind torch's caching allocator, so that ordinary tensors lie where peers can write in place."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .. import errors
from . import _native
from ._memory import empty, keep_arena, rendezvous, served

__all__ = ["mem_pool"]

_UNIT = 2 << 20  # torch asks for whole multiples of it


class _Pool:
    """The symmetric memory of one device's pool, and torch's side of it."""

    def __init__(self) -> None:
        self.arenas: list[torch.Tensor] = []
        self.allocator: Any = None  # the MemPool does not keep it
        self.mem_pool: Any = None


_pools: dict[int, _Pool] = {}
_lock = threading.Lock()


def arenas(size: int, group: Any, device: int) -> _Pool:
    """The pool of the device with this ordinal, with `size` bytes or more that are symmetric in the group. Collective."""
    kernels = _native.kernels
    if kernels is None:
        raise errors.Unavailable("mem_pool() needs libtandem_torch.so beside libtandem.so", reason="UNAVAILABLE")
    if size < 1:
        raise ValueError(f"a pool of {size} bytes")
    with _lock:
        pool = _pools.setdefault(device, _Pool())
        arenas_now = list(pool.arenas)
    # The ranks meet without the lock: another thread may enlarge the pool for another group.
    for arena in arenas_now:
        rendezvous(arena, group)
    missing = size - sum(arena.numel() for arena in arenas_now)
    if missing > 0:
        arena = empty(-(-missing // _UNIT) * _UNIT, dtype=torch.uint8, group=group)
        with _lock:
            keep_arena(arena)
            if not kernels.add_arena(device, arena.data_ptr(), arena.numel()):
                raise errors.ResourceExhausted("out of memory", reason="NO_MEMORY")
            pool.arenas.append(arena)
    return pool


def mem_pool(size: int, group: Any = None) -> Any:
    """A torch.cuda.MemPool over symmetric memory of the current device, for torch.cuda.use_mem_pool().

    Ops write their outputs in it by the peers, in place. Tensors in it have handles (rendezvous()).

    Collective: every rank of the group calls it with the same size. size: bytes that the pool has at least; where it is full,
    allocations raise torch.OutOfMemoryError. A device has one pool: a later call with more bytes enlarges it, and one with another
    group makes it symmetric there, too. group: a process group or its name; None: the default one. The memory stays taken until
    the process ends.

    All ranks must allocate from the pool alike, so that outputs of one op lie at one offset: else the op fails on all ranks, with
    LAUNCH_MISMATCH as its reason.

    Raises Unavailable on the host backend, whose tensors are the CPU's, and where Tandem does not serve the group; RankLate;
    ResourceExhausted.
    """
    attachment = served(group)
    if attachment.device_type != "cuda":
        raise errors.Unavailable(
            "mem_pool() is of the CUDA backend: torch has no memory pools of the CPU. On the host backend use tandem.torch.empty()",
            reason="UNAVAILABLE",
        )
    pool = arenas(size, group, torch.cuda.current_device())
    with _lock:
        if pool.mem_pool is None:
            assert _native.kernels is not None
            names = ("tandem_torch_pool_allocate", "tandem_torch_pool_free")
            pool.allocator = torch.cuda.memory.CUDAPluggableAllocator(_native.kernels.path, *names)
            pool.mem_pool = torch.cuda.MemPool(pool.allocator.allocator())
        return pool.mem_pool
