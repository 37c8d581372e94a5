"""Memory that launches can be bound to: registered memory, and symmetric tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import _c, _dlpack, enums
from ._membership import Membership
from ._session import Session
from .enums import DType
from .streams import Stream

__all__ = ["Memory", "Reservation", "Tensor"]

_TYPESTR = {DType.f32: "<f4", DType.f16: "<f2", DType.i32: "<i4", DType.i64: "<i8", DType.u8: "|u1"}


class Memory:
    """Registered memory of this process, seen as one contiguous array. Usable from any thread.

    Arrays made from it (numpy.asarray, torch.from_dlpack, …) keep the memory alive, also after close() and after this object
    is gone. `data`, `nbytes`, `shape` and `dtype` describe it; `data` is an address of the host on the host backend and of the
    device on the CUDA backend.
    """

    def __init__(self, client: Session, handle: int, shape: Sequence[int], dtype: DType, keep: Any = None) -> None:
        library = _c.library()
        self._client = client  # a handle of the C interface keeps what it came from alive
        self._handle = _c.Handle(handle, library.memory_free)
        self._keep = keep
        self._viewed = False
        self.data: int = library.memory_data(handle) or 0
        self.nbytes: int = library.memory_bytes(handle)
        self.registration_id: int = library.memory_registration_id(handle)
        self.shape = tuple(int(extent) for extent in shape)
        self.dtype = dtype

    symmetric = False

    def __repr__(self) -> str:
        return f"<tandem.{type(self).__name__} {self.dtype.name}{list(self.shape)} at {self.data:#x}>"

    def _open(self) -> int:
        if not self._handle.value:
            raise ValueError("this memory has been closed")
        return self._handle.value

    @property
    def _interface(self) -> dict[str, Any]:
        self._open()
        if self.dtype not in _TYPESTR:
            raise AttributeError(f"the array interface has no {self.dtype.name}; DLPack has")
        self._viewed = True  # whoever reads this has a reference to self, not to the handle
        return {"shape": self.shape, "typestr": _TYPESTR[self.dtype], "data": (self.data, False), "strides": None, "version": 3}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's protocol, of memory of the host backend. f32, f16, i32, i64 and u8; AttributeError for others."""
        if self._client.backend != "host":
            raise AttributeError("memory of a GPU: it has __cuda_array_interface__")
        return self._interface

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The same of memory of the CUDA backend, version 3. Consumers order their work themselves: no stream is named."""
        if self._client.backend != "cuda":
            raise AttributeError("memory of the host: it has __array_interface__")
        return self._interface

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0) for memory of the host, (2, ordinal) for that of a GPU."""
        if self._client.backend == "host":
            return (_dlpack.CPU, 0)
        return (_dlpack.CUDA, self._client.cuda_ordinal(self.gpu_uuid))

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """A DLPack capsule of all element types. It never copies; BufferError if a copy or another device is asked for."""
        if copy:
            raise BufferError("this memory is exported without a copy")
        device = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"this memory is on device {device}, not on {tuple(dl_device)}")
        self._open()
        return _dlpack.capsule(self.data, self.shape, self.dtype, device, self._handle)

    @property
    def gpu_uuid(self) -> str:
        """The GPU that the memory lies on."""
        return str(self._keep or "")

    def close(self) -> None:
        """Drops this object's hold on the memory. It is freed with the last array that was made from it."""
        if self._viewed:
            # Arrays made by the array interface hold this object, so the handle ends with it.
            self._until_views_end = self._handle
        self._handle = _c.Handle(None, None)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def allocate_registered(session: Session, shape: Sequence[int] | int, dtype: DType | str, gpu_uuid: str) -> Memory:
    """New registered memory on a GPU, of this shape. Its contents are not set."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = enums.parse(DType, dtype)
    library, memory, uuid = _c.library(), _c.Pointer(), _c.text("gpu_uuid", gpu_uuid)
    library.raise_status(
        library.allocate_registered(session._open(), math.prod(extents) * kind.itemsize, uuid, ctypes.byref(memory))
    )
    return Memory(session, memory.value or 0, extents, kind, keep=gpu_uuid)


class Tensor(Memory):
    """A symmetric tensor: every rank of the group has one at the same offset, and all of them are mapped here.

    Signals and barriers are of the CPU and have channels 0 … channels - 1; timeouts are in seconds.
    """

    symmetric = True

    def __init__(self, group: Membership, handle: int, shape: Sequence[int], dtype: DType) -> None:
        super().__init__(group.client, handle, shape, dtype, keep=group.gpu_uuid)
        self.group = group

    @property
    def channels(self) -> int:
        """Channels of the signal pad."""
        return int(_c.library().tensor_channels(self._open()))

    def buffer(self, peer: int, shape: Sequence[int] | None = None, dtype: DType | str | None = None, offset_bytes: int = 0) -> Any:
        """The tensor of rank `peer`, or `shape` elements of it from `offset_bytes` on, as a view that exports arrays.

        OutOfRange for a wrong rank or range. The view keeps this tensor alive.
        """
        library, address = _c.library(), _c.Pointer()
        kind = self.dtype if dtype is None else enums.parse(DType, dtype)
        extents = self.shape if shape is None else tuple(shape)
        library.raise_status(
            library.tensor_get_buffer(
                self._open(), peer, _c.extents(extents), len(extents), kind, offset_bytes, ctypes.byref(address)
            )
        )
        return View(self, address.value or 0, extents, kind)

    def signal_pad(self, peer: int) -> tuple[int, int]:
        """(address, 32-bit words) of the signal pad on `peer`. An address of the device on the CUDA backend."""
        library, address, count = _c.library(), _c.Pointer(), ctypes.c_size_t()
        library.raise_status(library.tensor_signal_pad(self._open(), peer, ctypes.byref(address), ctypes.byref(count)))
        return address.value or 0, count.value

    def put_signal(self, peer: int, channel: int = 0, timeout: float | None = 30) -> None:
        """Sets the peer's word for (this rank, channel). DeadlineExceeded if it has not taken the last signal."""
        library = _c.library()
        library.wait_in_slices(timeout, lambda wait: library.tensor_put_signal(self._open(), peer, channel, wait), "RANK_LATE")

    def wait_signal(self, peer: int, channel: int = 0, timeout: float | None = 30) -> None:
        """Waits for the peer's signal and takes it. DeadlineExceeded names the peer."""
        library = _c.library()
        library.wait_in_slices(timeout, lambda wait: library.tensor_wait_signal(self._open(), peer, channel, wait), "RANK_LATE")

    def barrier(self, channel: int = 0, timeout: float | None = 30) -> None:
        """Waits for all ranks. RankLate names the ranks that did not come. The channel's next barrier continues this one, also
        after an exception of a signal's handler."""
        library = _c.library()
        library.wait_in_slices(timeout, lambda wait: library.tensor_barrier(self._open(), channel, wait), "RANK_LATE")

    def memset32(
        self, value: int, *, peer: int | None = None, offset_bytes: int = 0, count: int = 1, stream: Stream | int | None = None
    ) -> None:
        """Writes `count` 32-bit words in stream order, into this rank's tensor or a peer's.

        stream: a host Stream on the host backend, a cudaStream_t on the CUDA backend. OutOfRange beyond the tensor,
        InvalidArgument if the offset is no multiple of 4.
        """
        library = _c.library()
        to = self.group.rank if peer is None else peer
        if self._client.backend == "cuda":
            status = library.tensor_memset32_cuda(self._open(), stream or None, to, offset_bytes, value, count)
        else:
            status = library.tensor_memset32(self._open(), self._client.host_stream(stream)._open(), to, offset_bytes, value, count)
        library.raise_status(status)


class Reservation:
    """A tensor that several groups may share: each rendezvous() gives it a place in a group. Usable from any thread."""

    def __init__(self, client: Session, number: int, shape: Sequence[int], dtype: DType) -> None:
        self._client, self._number = client, number
        self._unclaimed: dict[int, Tensor] = {}  # by group: of rendezvous() calls that were broken off as they succeeded
        self.shape, self.dtype = tuple(int(extent) for extent in shape), dtype

    def rendezvous(self, group: Membership, deadline: float | None = 30) -> Tensor:
        """The symmetric tensor that this one is with those of the group's other ranks, all of which call this.

        RankLate names who is missing, InvalidArgument: sizes differ between ranks.
        """
        if not self._number:
            raise ValueError("this tensor has been closed")
        unclaimed = self._unclaimed.pop(id(group), None)
        if unclaimed is not None:
            return unclaimed
        library, tensor = _c.library(), _c.Pointer()

        def _made() -> None:
            self._unclaimed[id(group)] = Tensor(group, tensor.value or 0, self.shape, self.dtype)

        client, milliseconds = self._client._open(), _c.milliseconds(deadline)
        library.wait(library.rendezvous, client, self._number, group._open(), milliseconds, ctypes.byref(tensor), made=_made)
        return Tensor(group, tensor.value or 0, self.shape, self.dtype)

    def close(self) -> None:
        """Ends the reservation; symmetric tensors that came of it stay. Does nothing the second time."""
        number, self._number = self._number, 0
        if number and self._client._handle.value:
            library = _c.library()
            library.raise_status(library.free_tensor(self._client._open(), number))


def reserve(session: Session, shape: Sequence[int] | int, dtype: DType | str, gpu_uuid: str, name: str | None) -> Reservation:
    """A tensor on a GPU that no group has yet. name: persistent."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = enums.parse(DType, dtype)
    library, number = _c.library(), ctypes.c_uint64()
    uuid, persistent = _c.text("gpu_uuid", gpu_uuid), _c.optional_text("persistent_name", name)
    library.raise_status(
        library.empty(session._open(), _c.extents(extents), len(extents), kind, uuid, persistent, ctypes.byref(number))
    )
    return Reservation(session, number.value, extents, kind)


class View:
    """A part of a symmetric tensor, this rank's or a peer's, which exports arrays and keeps the tensor alive."""

    def __init__(self, owner: Tensor, address: int, shape: tuple[int, ...], dtype: DType) -> None:
        self._handle, self._client, self._device = owner._handle, owner._client, owner.__dlpack_device__()
        self.data, self.shape, self.dtype = address, shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        owner._viewed = True
        self._owner = owner

    def _interface(self, backend: str) -> dict[str, Any]:
        if self._client.backend != backend or self.dtype not in _TYPESTR:
            raise AttributeError(f"no array interface of {self.dtype.name} on the {self._client.backend} backend")
        return {"shape": self.shape, "typestr": _TYPESTR[self.dtype], "data": (self.data, False), "strides": None, "version": 3}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's protocol, of memory of the host backend."""
        return self._interface("host")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The same of memory of the CUDA backend."""
        return self._interface("cuda")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """A DLPack capsule; it never copies."""
        if copy or (dl_device is not None and tuple(dl_device) != self._device):
            raise BufferError("this memory is exported without a copy, where it lies")
        return _dlpack.capsule(self.data, self.shape, self.dtype, self._device, self)
