"""Prepared plans of one group, found by op, shapes and types; and how they are launched on torch's tensors."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _c, errors
from ..enums import DType
from ..memory import Memory
from ..plan import Operand, Plan
from ._private import raw_stream
from ._symmetric import IN_PLACE

if TYPE_CHECKING:
    from ._groups import Attachment
    from ._native import Table

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
# How long one call into the library waits, so that signals are seen meanwhile.
_SLICE_MS = 500
_ALIGNMENT = 256


class Declined(Exception):
    """Tandem cannot serve this call; the argument says why. Equal on all ranks."""


class Slot(NamedTuple):
    """One operand of a call: its role, its tensor, whether the call writes it, and the earlier slot whose memory it is."""

    role: str
    tensor: torch.Tensor
    written: bool = False
    alias_of: int | None = None


class Call(NamedTuple):
    """What an op asks for: the operation's name, its slots in order, and the request's other fields."""

    op: str
    slots: Sequence[Slot]
    options: dict[str, Any]


class _Staging:
    """Registered memory of the host backend that CPU tensors are copied to and from. Grows, and is shared by all plans: a call
    has it for as long as it runs."""

    def __init__(self) -> None:
        self.memory: Memory | None = None
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def reserve(self, attachment: Attachment, size: int) -> None:
        if self.memory is not None and self.memory.nbytes >= size:
            return
        assert attachment.group is not None
        capacity = max(1 << 16, 1 << (size - 1).bit_length())
        memory = attachment.group.registered(capacity, DType.u8)
        whole = (ctypes.c_uint8 * capacity).from_address(memory.data)
        whole._owner = memory  # type: ignore[attr-defined]  # the tensor keeps the array, the array the memory
        self.memory, self.bytes = memory, torch.frombuffer(whole, dtype=torch.uint8)


class Refusal:
    """Why Tandem cannot serve calls of one signature."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.used = 0


class Prepared:
    """A plan for calls of one signature. symmetric: the slots that lie in symmetric memory. numbers: of the plan in the kernels'
    table, one for each order of a call's tensors (an output may be given or made). used: the group's count at the last call that
    Python ran."""

    def __init__(self, plan: Plan, call: Call, symmetric: Sequence[int]) -> None:
        slots = call.slots
        self.plan = plan
        self.symmetric = frozenset(symmetric)
        self._in_place = IN_PLACE.get(call.op, ())
        self.numbers: dict[Any, int] = {}
        self.used = 0
        self._on_cuda = any(slot.tensor.is_cuda for slot in slots)
        self._count = len(slots)
        self._forms = [(tuple(slot.tensor.shape), slot.tensor.dtype) for slot in slots]
        self.offsets: list[int] = []
        self.staging_bytes = 0
        for slot, size in zip(slots, plan.slot_bytes, strict=True):
            if slot.alias_of is not None:
                self.offsets.append(self.offsets[slot.alias_of])
                continue
            self.offsets.append(self.staging_bytes)
            self.staging_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._captured = False
        self._staged: Memory | None = None
        self._views: list[torch.Tensor] = []
        self._bindings: Any = None

    def can_be_symmetric(self, slot: Slot) -> bool:
        """Whether this slot is used in place where it lies in symmetric memory."""
        return slot.role in self._in_place

    def _stage(self, staging: _Staging, attachment: Attachment) -> None:
        staging.reserve(attachment, self.staging_bytes)
        memory = staging.memory
        if self._staged is memory or memory is None:
            return
        self._views = []
        self._bindings = (_c.Binding * max(1, self._count))()
        for i, ((shape, dtype), offset) in enumerate(zip(self._forms, self.offsets, strict=True)):
            size = self.plan.slot_bytes[i]
            self._views.append(staging.bytes[offset : offset + size].view(dtype).view(shape))
            if size:
                self._bindings[i] = _c.Binding(memory._open(), offset)
        self._staged = memory

    def run_on_host(self, slots: Sequence[Slot], staging: _Staging, attachment: Attachment, deadline_ms: int) -> None:
        """Runs the launch to its end. The caller holds the group's lock."""
        self._stage(staging, attachment)
        for i, (slot, view) in enumerate(zip(slots, self._views, strict=True)):
            if i in self.symmetric:
                self._bindings[i] = _c.Binding(None, 0, slot.tensor.data_ptr())
            elif not slot.written:
                view.copy_(slot.tensor)
        library, plan = _c.library(), self.plan._open()
        stream = self.plan.group.client.host_stream()._open()
        library.raise_status(library.launch(plan, stream, self._bindings, self._count, deadline_ms, None))
        self.wait()
        for i, (slot, view) in enumerate(zip(slots, self._views, strict=True)):
            if slot.written and i not in self.symmetric:
                slot.tensor.copy_(view)

    def run_on_cuda(self, slots: Sequence[Slot], deadline_ms: int) -> None:
        """Enqueues the launch on torch's current stream."""
        library = _c.library()
        pointers = (_c.Pointer * max(1, self._count))(*[slot.tensor.data_ptr() for slot in slots])
        device = slots[0].tensor.device.index if slots else torch.cuda.current_device()
        stream = raw_stream(device)
        self._captured = self._captured or torch.cuda.is_current_stream_capturing()
        library.raise_status(library.launch_cuda_pointers(self.plan._open(), stream, pointers, self._count, deadline_ms, None))

    def close(self) -> None:
        """Releases the plan after its launches. A plan in a CUDA graph lives as long as the graph."""
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
        while True:
            status = library.plan_wait(plan, _SLICE_MS)
            if not status:
                return
            error = library.take(status)
            if isinstance(error, errors.DeadlineExceeded) and not error.reason:
                continue  # the slice's end; a launch's own deadline has a reason
            raise error


class PlanCache:
    """The plans of one group. Thread-safe. Ranks that make the same calls in the same order hold the same plans."""

    def __init__(self, attachment: Attachment, table: Table | None) -> None:
        """table: where the kernels in C++ find this group's plans; None where Python's kernels serve alone."""
        self._attachment = attachment
        self._table = table
        self._plans: dict[Any, Prepared | Refusal] = {}
        self._lock = threading.RLock()
        self._staging = _Staging()
        self._kernels_staging = _Staging()  # a kernel copies while Python runs another call
        self._made = 0
        self._calls = 0  # counted here where there is no table
        self._deadline_ms = _c.milliseconds(attachment.config.launch_deadline, 0)

    def __len__(self) -> int:
        return sum(isinstance(plan, Prepared) for plan in self._plans.values())

    def run(self, key: Any, make: Callable[[], Call]) -> Call:
        """Runs one call. `key`: all that its plan depends on, but strides; `make` gives it tensors.

        Declined: Tandem cannot serve it (on all ranks alike). Other failures raise TandemError with the rank's name.
        """
        call = make()
        on_host = self._attachment.device_type == "cpu"
        if not on_host:
            key = (key, tuple(slot.tensor.stride() for slot in call.slots))
        symmetric = self._symmetric_slots(call)
        if symmetric:
            key = (key, "symmetric", symmetric)
        with self._lock:
            prepared = self._plans.get(key)
            if prepared is None:
                prepared = self._prepare(key, call, symmetric, on_host)
            prepared.used = self._tick()
            if isinstance(prepared, Refusal):
                raise Declined(prepared.reason)
            if on_host:
                prepared.run_on_host(call.slots, self._staging, self._attachment, self._deadline_ms)
            else:
                prepared.run_on_cuda(call.slots, self._deadline_ms)
            if self._table is not None:
                self._offer(self._table, prepared, call.slots, on_host)
        return call

    def _symmetric_slots(self, call: Call) -> tuple[int, ...]:
        """The slots that are used in place in this call; with an output in place its input, which is the same memory."""
        roles, found = IN_PLACE.get(call.op, ()), []
        for i, slot in enumerate(call.slots):
            if slot.role in roles and self._attachment.symmetric.hold(slot.tensor):
                found += [i] if slot.alias_of is None else [slot.alias_of, i]
        return tuple(found)

    def _offer(self, table: Table, prepared: Prepared, slots: Sequence[Slot], on_host: bool) -> None:
        """Lets the kernels launch the plan in calls like the one that has just run."""
        stream = None
        if on_host:
            memory = self._kernels_staging.memory
            self._kernels_staging.reserve(self._attachment, prepared.staging_bytes)
            if self._kernels_staging.memory is not memory:
                table.set_staging(self._kernels_staging.memory)
            stream = prepared.plan.group.client.host_stream()._open()
        table.add(prepared, slots, stream, self._deadline_ms)

    def _tick(self) -> int:
        """The number of this call among the group's, in Python and in C++."""
        self._calls += 1
        return self._calls if self._table is None else self._table.tick()

    def _last_use(self, plan: Prepared | Refusal) -> int:
        if self._table is None or isinstance(plan, Refusal):
            return plan.used
        return max(plan.used, self._table.last_use(plan))

    def _prepare(self, key: Any, call: Call, symmetric: tuple[int, ...], on_host: bool) -> Prepared | Refusal:
        group, config = self._attachment.group, self._attachment.config
        assert group is not None
        if not on_host and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"tandem.{call.op} has no plan for these shapes yet, and a CUDA graph is being captured: run the captured function "
                "once before the capture, on all ranks, as torch.cuda.graph's warm-up does"
            )
        operands = []
        for i, slot in enumerate(call.slots):
            dtype = DTYPES.get(slot.tensor.dtype)
            if dtype is None:
                return self._keep(key, Refusal(f"Tandem has no tensors of {slot.tensor.dtype}"))
            strides = None if on_host else slot.tensor.stride()
            operands.append(Operand(slot.role, dtype, tuple(slot.tensor.shape), strides, i in symmetric, slot.alias_of))
        # Ranks that disagree meet under one key all the same, and all get the field's name. A key whose call fails is used again:
        # a rank that has made another call instead has not used it.
        name = f"torch.{self._made}"
        try:
            options = {"placement": config.placement, "autotune": config.autotune, **call.options}
            plan = group.prepare(name, call.op, operands, deadline=config.rendezvous_timeout, **options)
        except (errors.Unimplemented, errors.FailedPrecondition, errors.InvalidArgument) as error:
            if isinstance(error, errors.FieldMismatch) or error.reason == "KEY_REUSED":
                raise
            self._made += 1
            return self._keep(key, Refusal(str(error)))
        self._made += 1
        return self._keep(key, Prepared(plan, call, symmetric))

    def _keep(self, key: Any, value: Prepared | Refusal) -> Prepared | Refusal:
        while len(self._plans) >= self._attachment.config.max_plans:
            oldest = min(self._plans, key=lambda other: self._last_use(self._plans[other]))
            self._close(self._plans.pop(oldest))
        self._plans[key] = value
        return value

    def _close(self, plan: Prepared | Refusal) -> None:
        if isinstance(plan, Prepared):
            if self._table is not None:
                self._table.remove(plan)
            plan.close()

    def prepared(self) -> list[Prepared]:
        """The live plans, the least recently used first."""
        with self._lock:
            plans = [plan for plan in self._plans.values() if isinstance(plan, Prepared)]
            return sorted(plans, key=self._last_use)

    def infos(self) -> list[Any]:
        """PlanInfo of the live plans, the least recently used first."""
        return [plan.plan.info for plan in self.prepared()]

    def wait(self) -> None:
        """Waits for all launches; raises the first failure not yet raised."""
        for plan in self.prepared():
            plan.wait()

    def close(self) -> None:
        """Releases all plans."""
        with self._lock:
            for plan in self._plans.values():
                with contextlib.suppress(errors.TandemError):
                    self._close(plan)
            self._plans.clear()
            if self._table is not None:
                self._table.close()
                self._table = None
            self._staging = self._kernels_staging = _Staging()
