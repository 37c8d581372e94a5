"""A prepared plan, the calls that it serves, and how it is launched on torch's tensors."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .. import _c, errors
from ..enums import DType
from ..group import Group
from ..memory import Memory
from ..plan import Plan
from ..streams import Stream
from ._private import raw_stream

DTYPES = {
    torch.float32: DType.f32,
    torch.float16: DType.f16,
    torch.bfloat16: DType.bf16,
    torch.float8_e4m3fn: DType.f8e4m3,
    torch.float8_e5m2: DType.f8e5m2,
    torch.int32: DType.i32,
    torch.int64: DType.i64,
    torch.uint8: DType.u8,
}
_log = logging.getLogger("tandem.torch")
# How long one call into the library waits, so that signals are seen meanwhile.
_SLICE_MS = 500
_ALIGNMENT = 256
# The operands that are used in place where they lie in symmetric memory, by operation: those that peers write, and those that are
# read while they are written. Elsewhere symmetric memory changes nothing.
IN_PLACE = {
    "all_reduce": ("output",),
    "all_gather": ("output",),
    "all_to_all": ("output",),
    "broadcast": ("output",),
    "matmul_all_reduce": ("c",),
    "all_gather_matmul": ("gathered_a",),
    "async_input_matmul": ("a", "chunk_signals"),
}


class Slot(NamedTuple):
    """One operand of a call: its role, its tensor, whether the call writes it, the earlier slot whose memory it is, and whether
    nobody reads it behind the call."""

    role: str
    tensor: torch.Tensor
    written: bool = False
    alias_of: int | None = None
    scratch: bool = False


class Call(NamedTuple):
    """What an op asks for: the operation's name, its slots in order, and the request's other fields."""

    op: str
    slots: Sequence[Slot]
    options: dict[str, Any]


class FamilyRows(NamedTuple):
    """The rows of one call of a family, and of those that its plan serves, too: up to `most`, multiples of `unit`."""

    rows: int
    most: int
    unit: int
    least: int
    follows: tuple[bool, ...]


class Staging:
    """Registered memory of the host backend that CPU tensors are copied to and from. Shared by all plans: a call has it until its
    launch has ended."""

    def __init__(self, group: Group, size: int) -> None:
        capacity = max(1 << 16, 1 << (size - 1).bit_length())
        self.memory: Memory = group.registered(capacity, DType.u8)
        whole = (ctypes.c_uint8 * capacity).from_address(self.memory.data)
        whole._owner = self.memory  # type: ignore[attr-defined]  # the tensor keeps the array, the array the memory
        self.bytes = torch.frombuffer(whole, dtype=torch.uint8)


class _PreparedMemory:
    """Memory that a launch still has, of a call that was broken off."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


class Prepared:
    """A plan for calls of one signature. symmetric: the slots that lie in symmetric memory. numbers: of the plan in the kernels'
    table, one for each order of a call's tensors (an output may be given or made). used: the group's count at the last call that
    Python ran. family: the rows of the call; None: the plan is of one shape."""

    def __init__(
        self,
        plan: Plan,
        call: Call,
        symmetric: Sequence[int],
        broken_off: Callable[[Prepared], None],
        family: FamilyRows | None = None,
    ) -> None:
        """broken_off: called where an exception has ended a kernel's wait for the plan. A family stays the caller's."""
        slots = call.slots
        self.plan, self.broken_off, self.family = plan, broken_off, family
        self.rows = -1 if family is None else family.rows
        self.symmetric = frozenset(symmetric)
        self._in_place = IN_PLACE.get(call.op, ())
        self.numbers: dict[Any, int] = {}
        self.used = 0
        self._on_cuda = any(slot.tensor.is_cuda for slot in slots)
        self._count = len(slots)
        self._forms = [(tuple(slot.tensor.shape), slot.tensor.dtype) for slot in slots]
        self.offsets: list[int] = []
        self.staging_bytes = 0
        self.sizes = plan.slot_bytes if family is None else _sizes(slots)
        for i, (slot, size) in enumerate(zip(slots, self.sizes, strict=True)):
            if slot.alias_of is not None:
                self.offsets.append(self.offsets[slot.alias_of])
                continue
            self.offsets.append(self.staging_bytes)
            if family is not None and family.follows[i]:
                size = size * family.most // family.rows
            self.staging_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._captured = False
        self._kept: list[_PreparedMemory] = []
        self._staged: Memory | None = None
        self._views: list[torch.Tensor] = []
        self._bindings: Any = None

    def can_be_symmetric(self, slot: Slot) -> bool:
        """Whether this slot is used in place where it lies in symmetric memory."""
        return slot.role in self._in_place

    def keep(self, memory: Any) -> None:
        """A call of the plan was broken off: its launch has this memory until it has ended."""
        self._kept.append(_PreparedMemory(memory))

    def _stage(self, staging: Staging) -> None:
        memory = staging.memory
        if self._staged is memory:
            return
        self._views = []
        self._bindings = (_c.Binding * max(1, self._count))()
        for i, ((shape, dtype), offset) in enumerate(zip(self._forms, self.offsets, strict=True)):
            size = self.sizes[i]
            self._views.append(staging.bytes[offset : offset + size].view(dtype).view(shape))
            if size:
                self._bindings[i] = _c.Binding(memory._open(), offset)
        self._staged = memory

    def run_on_host(self, slots: Sequence[Slot], staging: Staging, stream: Stream, deadline_ms: int) -> None:
        """Runs the launch to its end, of which a TandemError tells as well. Any other exception leaves the launch in flight,
        perhaps: its memory is not to be used again."""
        if self._kept:
            self._end_broken_off()
        self._stage(staging)
        for i, (slot, view) in enumerate(zip(slots, self._views, strict=True)):
            if i in self.symmetric:
                self._bindings[i] = _c.Binding(None, 0, slot.tensor.data_ptr())
            elif not slot.written:
                view.copy_(slot.tensor)
        library, plan = _c.library(), self.plan._open()
        options = _c.LaunchOptions(ctypes.sizeof(_c.LaunchOptions), deadline_ms, None, self.rows)
        status = library.launch_with_options(plan, stream._open(), self._bindings, self._count, options)
        if status:
            error = library.take(status)
            with contextlib.suppress(errors.TandemError):
                self.wait()  # it may have been enqueued all the same
            raise error
        self.wait()
        for i, (slot, view) in enumerate(zip(slots, self._views, strict=True)):
            if slot.written and i not in self.symmetric:
                slot.tensor.copy_(view)

    def _end_broken_off(self) -> None:
        """Waits for launches whose calls were broken off. Nobody is told how they end: a call that raised an earlier one's failure
        would end otherwise than on the other ranks."""
        try:
            self.wait()
        except errors.TandemError as error:
            if isinstance(error, errors.Unavailable):
                raise
            _log.warning("a launch whose call was broken off has failed: %s", error)

    def run_on_cuda(self, slots: Sequence[Slot], deadline_ms: int) -> None:
        """Enqueues the launch on torch's current stream."""
        library = _c.library()
        pointers = (_c.Pointer * max(1, self._count))(*[slot.tensor.data_ptr() for slot in slots])
        device = slots[0].tensor.device.index if slots else torch.cuda.current_device()
        stream = raw_stream(device)
        self._captured = self._captured or torch.cuda.is_current_stream_capturing()
        options = _c.LaunchOptions(ctypes.sizeof(_c.LaunchOptions), deadline_ms, None, self.rows)
        library.raise_status(library.launch_cuda_pointers_with_options(self.plan._open(), stream, pointers, self._count, options))

    def close(self) -> None:
        """Releases the plan after its launches. A plan in a CUDA graph lives as long as the graph. A family goes on, and a launch
        of it whose call was broken off ends before its memory goes."""
        if self.family is not None:
            if self._kept:
                self._end_broken_off()
            return
        # A launch by the kernels may have been captured.
        if self._captured or (self.numbers and self._on_cuda):
            with contextlib.suppress(errors.TandemError):
                self.wait()
            self.plan._handle.close()
        else:
            self.plan.close()

    def wait(self) -> None:
        """Waits until the plan's launches have ended; raises the first failure not yet raised."""
        library, plan = _c.library(), self.plan._open()
        kept = list(self._kept)
        error: errors.TandemError | None = None
        while True:
            status = library.plan_wait(plan, _SLICE_MS)
            error = library.take(status) if status else None
            if not isinstance(error, errors.DeadlineExceeded) or error.reason != "NOT_ENDED":
                break  # not the slice's end: a launch's own deadline has another reason
        for one in kept:
            with contextlib.suppress(ValueError):  # another wait has seen the end, too
                self._kept.remove(one)
        if error is not None:
            raise error


def _sizes(slots: Sequence[Slot]) -> list[int]:
    """Bytes of each slot's memory, with all that lies in it."""
    sizes = [slot.tensor.numel() * slot.tensor.element_size() for slot in slots]
    for i, slot in enumerate(slots):
        if slot.alias_of is not None:
            sizes[i] = sizes[slot.alias_of] = max(sizes[i], sizes[slot.alias_of])
    return sizes
