"""Symmetric tensors as torch tensors: every rank of a process group has one, and each rank sees all of them.

    x = tandem.torch.empty(1024, dtype=torch.bfloat16, group=group)
    memory = tandem.torch.rendezvous(x, group)
    memory.barrier()
    peer = memory.get_buffer(1, x.shape, x.dtype)

Names and order of arguments are those of torch.distributed._symmetric_memory. Signals and barriers are the CPU's here: they first
wait for torch's current stream, and block the caller.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import math
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.dlpack

from .. import _dlpack, errors
from ..enums import DType
from ..memory import Reservation, Tensor as CoreTensor, reserve
from ._groups import Attachment, attach
from ._private import raw_stream

__all__ = ["SymmetricMemory", "empty", "is_symmetric", "memset32", "rendezvous", "stream_write_value32"]


class _Exporter:
    """Bytes at an address, for torch.from_dlpack. The torch tensor keeps `owner` alive."""

    def __init__(self, address: int, size: int, device: tuple[int, int], owner: Any) -> None:
        self._given = (address, (size,), DType.u8, device, owner)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._given[3]

    def __dlpack__(self, **_options: Any) -> Any:
        return _dlpack.capsule(*self._given)


def _tensor_at(address: int, sizes: Sequence[int], dtype: torch.dtype, device: tuple[int, int], owner: Any) -> torch.Tensor:
    size = math.prod(sizes) * dtype.itemsize
    if size == 0:
        where = torch.device("cpu") if device[0] == _dlpack.CPU else torch.device("cuda", device[1])
        return torch.empty(sizes, dtype=dtype, device=where)
    whole: torch.Tensor = torch.utils.dlpack.from_dlpack(_Exporter(address, size, device, owner))
    return whole.view(dtype).view(*sizes)


class _Allocation:
    """A symmetric tensor of this process, and its place in each group that it has met."""

    def __init__(self, reservation: Reservation, first: Attachment, deadline: float) -> None:
        assert first.group is not None
        core = reservation.rendezvous(first.group, deadline)
        self._reservation, self._process = reservation, os.getpid()
        self._lock = threading.Lock()
        self.address, self.device, self.nbytes = core.data, core.__dlpack_device__(), math.prod(reservation.shape)
        self._places: dict[int, tuple[Attachment, CoreTensor]] = {id(first): (first, core)}
        first.symmetric.add(self.address, self.nbytes, self)

    def place(self, attachment: Attachment, deadline: float) -> CoreTensor:
        """The symmetric tensor in this group; the ranks meet the first time."""
        found = self._places.get(id(attachment))
        if found is not None:
            return found[1]
        assert attachment.group is not None
        core = self._reservation.rendezvous(attachment.group, deadline)  # no lock is held: another thread may be in another group
        if core.data != self.address:
            raise errors.Internal(f"a tensor lies at {self.address:#x} in one group and at {core.data:#x} in another")
        with self._lock:
            if id(attachment) not in self._places:
                self._places[id(attachment)] = (attachment, core)
                attachment.symmetric.add(self.address, self.nbytes, self)
            return self._places[id(attachment)][1]

    def __del__(self) -> None:
        if getattr(self, "_process", 0) != os.getpid():  # of a forked child's parent
            return
        _finish_work(getattr(self, "device", (_dlpack.CPU, 0)))
        for attachment, _ in getattr(self, "_places", {}).values():
            attachment.symmetric.remove(self.address)
        with contextlib.suppress(errors.TandemError, ValueError, AttributeError):
            self._reservation.close()


def _finish_work(device: tuple[int, int]) -> None:
    """Waits until a GPU has done what it was given: kernels may still read memory whose tensors are gone. A capture is left alone,
    and so is a GPU whose context has failed."""
    with contextlib.suppress(RuntimeError, AssertionError):
        if device[0] != _dlpack.CPU and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(device[1])


_allocations: weakref.WeakValueDictionary[int, _Allocation] = weakref.WeakValueDictionary()
_arenas: list[_Allocation] = []  # of the memory pools, whose tensors are pieces of them


def served(group: Any) -> Attachment:
    attachment = attach(group)
    if attachment.group is None:
        raise errors.Unavailable(f"Tandem has no memory for group {attachment.name!r}: {attachment.reason}", reason="UNAVAILABLE")
    return attachment


def empty(*size: Any, dtype: torch.dtype | None = None, group: Any = None, name: str | None = None) -> torch.Tensor:
    """A contiguous symmetric tensor on this rank's GPU, or in memory of the host backend. Its contents are not set.

    Collective: every rank of the group calls it with the same sizes. size: integers, or one sequence of them. dtype: None: torch's
    default. group: a process group or its name; None: the default one. name: persistent; a later call with the name and the same
    number of bytes gets the same memory while the group is attached.

    Raises Unavailable where Tandem does not serve the group, RankLate with the ranks that do not come, ResourceExhausted.
    """
    sizes = [int(one) for one in (size[0] if len(size) == 1 and not isinstance(size[0], int) else size)]
    kind = torch.get_default_dtype() if dtype is None else dtype
    attachment = served(group)
    assert attachment.group is not None
    bytes_ = max(1, math.prod(sizes) * kind.itemsize)
    # A call before may have been broken off, also as the ranks met.
    reservation = attachment.broken_off.pop((bytes_, name), None)
    if reservation is None:
        reservation = reserve(attachment.group.client, bytes_, DType.u8, attachment.group.gpu_uuid, name)
    try:
        allocation = _Allocation(reservation, attachment, attachment.config.rendezvous_timeout)
    except errors.TandemError:
        reservation.close()
        raise
    except BaseException:
        attachment.broken_off[bytes_, name] = reservation
        raise
    if name is None:
        _allocations[allocation.address] = allocation
    else:  # several tensors share the memory; each keeps what it came of
        allocation = _allocations.setdefault(allocation.address, allocation)
    return _tensor_at(allocation.address, sizes, kind, allocation.device, allocation)


def _find(tensor: torch.Tensor) -> _Allocation | None:
    address = tensor.untyped_storage().data_ptr()
    found = _allocations.get(address)
    if found is None:
        found = next((arena for arena in _arenas if arena.address <= address < arena.address + arena.nbytes), None)
    return found


def keep_arena(arena: torch.Tensor) -> None:
    """Makes a tensor of empty() one whose pieces are symmetric tensors of their own, until the process ends."""
    allocation = _find(arena)
    assert allocation is not None
    _arenas.append(allocation)


def is_symmetric(tensor: torch.Tensor) -> bool:
    """Whether the tensor is one of empty() or of mem_pool(), or a view of one."""
    return _find(tensor) is not None


def rendezvous(tensor: torch.Tensor, group: Any = None) -> SymmetricMemory:
    """The handle of a tensor of empty() or of mem_pool(), or of a view of one, in a group. In another group than empty()'s the
    ranks meet the first time. The buffer of a tensor of mem_pool() is the pool's memory. ValueError for another tensor."""
    allocation = _find(tensor)
    if allocation is None:
        raise ValueError("this tensor is not of tandem.torch.empty() or mem_pool(): other memory is not symmetric")
    attachment = served(group)
    place = allocation.place(attachment, attachment.config.rendezvous_timeout)
    offset = tensor.data_ptr() - allocation.address
    return SymmetricMemory(allocation, place, attachment, tensor.device, offset)


class SymmetricMemory:
    """A symmetric tensor in a group.

    rank, world_size: of the group. device: the tensor's. buffer_size: bytes. offset: bytes from the buffer's start to the tensor
    that rendezvous() got. signal_pad_size: bytes of a signal pad. Timeouts are in milliseconds, 0 is the group's
    rendezvous_timeout.
    """

    def __init__(
        self, allocation: _Allocation, place: CoreTensor, attachment: Attachment, device: torch.device, offset: int
    ) -> None:
        self._allocation, self._place, self._config = allocation, place, attachment.config
        self.rank, self.world_size = attachment.rank, attachment.world_size
        self.device, self.offset, self.buffer_size = device, offset, allocation.nbytes
        self.signal_pad_size = 4 * place.signal_pad(self.rank)[1]

    @property
    def buffer_ptrs(self) -> list[int]:
        """The address in this process of every rank's buffer."""
        return [int(self._place.buffer(rank, (0,), DType.u8).data) for rank in range(self.world_size)]

    @property
    def signal_pad_ptrs(self) -> list[int]:
        """The address in this process of this rank's signal pad on every rank."""
        return [self._place.signal_pad(rank)[0] for rank in range(self.world_size)]

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """A tensor over the buffer of `rank`, `storage_offset` elements from its start. OutOfRange beyond the buffer. It keeps the
        memory alive."""
        size = math.prod(sizes) * dtype.itemsize
        view = self._place.buffer(rank, (size,), DType.u8, storage_offset * dtype.itemsize)
        return _tensor_at(view.data, sizes, dtype, self._allocation.device, (view, self._allocation))

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The peer's tensor that lies where the tensor that rendezvous() got lies here. Errors as of get_buffer()."""
        view = self._place.buffer(peer, (math.prod(sizes) * dtype.itemsize,), DType.u8, self.offset)
        return _tensor_at(view.data, sizes, dtype, self._allocation.device, (view, self._allocation))

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> torch.Tensor:
        """A tensor over this rank's signal pad on `rank`; without sizes the whole pad. dtype: None: int32. OutOfRange beyond it."""
        address, words = self._place.signal_pad(rank)
        kind = torch.int32 if dtype is None else dtype
        wanted = list(sizes) or [4 * words // kind.itemsize - storage_offset]
        if storage_offset < 0 or (storage_offset + math.prod(wanted)) * kind.itemsize > 4 * words:
            raise errors.OutOfRange(f"{wanted} of {kind} from {storage_offset} on are beyond the pad's {4 * words} bytes")
        at = address + storage_offset * kind.itemsize
        return _tensor_at(at, wanted, kind, self._allocation.device, (self._place, self._allocation))

    def _ordered(self, timeout_ms: int) -> float:
        """Waits for what torch's current stream has been given, so that peers see it; the timeout in seconds."""
        if self.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("signals and barriers are the CPU's: they cannot be captured")
            torch.cuda.current_stream(self.device).synchronize()
        return self._config.rendezvous_timeout if timeout_ms == 0 else timeout_ms / 1000

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Waits for all ranks on a channel. DeadlineExceeded names the ranks that did not come, OutOfRange: no such channel."""
        self._place.barrier(channel, self._ordered(timeout_ms))

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Signals a rank. DeadlineExceeded: it has not taken the signal before."""
        self._place.put_signal(dst_rank, channel, self._ordered(timeout_ms))

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Waits for a rank's signal and takes it. DeadlineExceeded names the rank."""
        self._place.wait_signal(src_rank, channel, self._ordered(timeout_ms))

    def memset32(self, offset: int, value: int, count: int = 1, rank: int | None = None) -> None:
        """Sets `count` 32-bit words of a rank's buffer, this rank's for None, from word `offset` on, in the order of torch's
        current stream. OutOfRange beyond the buffer, and for a value that has no 32 bits."""
        if not -(1 << 31) <= value < 1 << 32:
            raise errors.OutOfRange(f"{value} has no 32 bits")
        stream = raw_stream(self._allocation.device[1]) if self.device.type == "cuda" else None
        self._place.memset32(value, peer=rank, offset_bytes=4 * offset, count=count, stream=stream)
        if stream is None:  # CPU tensors are read at once
            self._place.group.client.host_stream().synchronize()


def memset32(tensor: torch.Tensor, offset: int, value: int, count: int = 1) -> None:
    """Sets `count` elements of a tensor of empty() with elements of 32 bits, from element `offset` on, in stream order.

    ValueError for another tensor or type, OutOfRange beyond the tensor, and for a value that has no 32 bits.
    """
    if tensor.element_size() != 4 or not tensor.is_contiguous():
        raise ValueError(f"memset32 needs contiguous elements of 32 bits, not {tensor.dtype}")
    if offset < 0 or count < 1 or offset + count > tensor.numel():
        raise errors.OutOfRange(f"{count} elements from {offset} on are beyond the tensor's {tensor.numel()}")
    allocation = _find(tensor)
    if allocation is None:
        raise ValueError("this tensor is not of tandem.torch.empty()")
    attachment, place = next(iter(allocation._places.values()))
    handle = SymmetricMemory(allocation, place, attachment, tensor.device, tensor.data_ptr() - allocation.address)
    handle.memset32(handle.offset // 4 + offset, value, count)


def stream_write_value32(tensor: torch.Tensor, offset: int, value: int) -> None:
    """Sets one element, as memset32()."""
    memset32(tensor, offset, value, 1)


class _ParentsTensor(torch.Tensor):
    """A tensor whose memory a forked child does not have."""

    @classmethod
    def __torch_function__(cls, *_call: Any, **_more: Any) -> Any:
        raise errors.FailedPrecondition(
            "this tensor lies in symmetric memory of the parent, which a forked child does not have; copy it before the fork, or "
            "start the child by exec or spawn",
            reason="FORKED",
        )


def _mapped() -> list[tuple[int, int]]:
    """The address ranges that this process has, in order."""
    with open("/proc/self/maps") as file:
        ranges = [line.split(maxsplit=1)[0].split("-") for line in file]
    return [(int(begin, 16), int(end, 16)) for begin, end in ranges]


def _after_fork() -> None:
    """Makes tensors in memory that was not inherited raise, where a read of them would end the child."""
    if not _allocations and not _arenas:
        return
    ranges = _mapped()
    begins = [begin for begin, _ in ranges]
    for tensor in [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]:
        with contextlib.suppress(RuntimeError, TypeError):  # one without storage, or of another layout
            if tensor.device.type != "cpu" or tensor.untyped_storage().nbytes() == 0:
                continue
            address = tensor.untyped_storage().data_ptr()
            at = bisect.bisect_right(begins, address) - 1
            if address and (at < 0 or address >= ranges[at][1]):
                tensor.__class__ = _ParentsTensor


os.register_at_fork(after_in_child=_after_fork)
