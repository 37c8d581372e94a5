"""Prepared plans of one group, found by op, shapes and types; and how they are launched on torch's tensors."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _c, errors
from ..enums import DType
from ..memory import Memory
from ..plan import Operand, Plan, Stream
from ._families import Families, Shape, shape_of
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
_log = logging.getLogger("tandem.torch")
# How long one call into the library waits, so that signals are seen meanwhile.
_SLICE_MS = 500
_ALIGNMENT = 256
# Reasons of a prepare that are no answer about the request: ranks have parted, and no fallback of one rank would meet the others.
_SLIPS = frozenset(("KEY_REUSED", "DESYNC", "RENEWING"))


class Declined(Exception):
    """Tandem cannot serve this call; the argument says why. Equal on all ranks."""


class Slot(NamedTuple):
    """One operand of a call: its role, its tensor, whether the call writes it, and the earlier slot whose memory it is."""

    role: str
    tensor: torch.Tensor
    written: bool = False
    alias_of: int | None = None


class Call(NamedTuple):
    """An op's request: the operation's name, its slots in order, and the other fields."""

    op: str
    slots: Sequence[Slot]
    options: dict[str, Any]


class _Staging:
    """Registered memory of the host backend that CPU tensors are copied to and from. Shared by all plans: a call has it until its
    launch has ended."""

    def __init__(self, attachment: Attachment, size: int) -> None:
        assert attachment.group is not None
        capacity = max(1 << 16, 1 << (size - 1).bit_length())
        self.memory: Memory = attachment.group.registered(capacity, DType.u8)
        whole = (ctypes.c_uint8 * capacity).from_address(self.memory.data)
        whole._owner = self.memory  # type: ignore[attr-defined]  # the tensor keeps the array, the array the memory
        self.bytes = torch.frombuffer(whole, dtype=torch.uint8)


class _Kept:
    """Memory that a launch still has, of a call that was broken off."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


class Refusal:
    """Why Tandem cannot serve calls of one signature."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.used = 0


class Prepared:
    """A plan for calls of one signature. symmetric: the slots that lie in symmetric memory. numbers: of the plan in the kernels'
    table, one for each order of a call's tensors (an output may be given or made). used: the group's count at the last call that
    Python ran. rows: of a family's launches; -1: the plan is of one shape."""

    def __init__(
        self, plan: Plan, call: Call, symmetric: Sequence[int], broken_off: Callable[[Prepared], None], rows: int = -1
    ) -> None:
        """broken_off: called where an exception has ended a kernel's wait for the plan. rows: not -1: the family stays the
        caller's."""
        slots = call.slots
        self.plan, self.broken_off, self.rows = plan, broken_off, rows
        self.symmetric = frozenset(symmetric)
        self._in_place = IN_PLACE.get(call.op, ())
        self.numbers: dict[Any, int] = {}
        self.used = 0
        self._on_cuda = any(slot.tensor.is_cuda for slot in slots)
        self._count = len(slots)
        self._forms = [(tuple(slot.tensor.shape), slot.tensor.dtype) for slot in slots]
        self.offsets: list[int] = []
        self.staging_bytes = 0
        self._sizes = plan.slot_bytes if rows < 0 else _sizes(slots)
        for slot, size in zip(slots, self._sizes, strict=True):
            if slot.alias_of is not None:
                self.offsets.append(self.offsets[slot.alias_of])
                continue
            self.offsets.append(self.staging_bytes)
            self.staging_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._captured = False
        self._kept: list[_Kept] = []
        self._staged: Memory | None = None
        self._views: list[torch.Tensor] = []
        self._bindings: Any = None

    def can_be_symmetric(self, slot: Slot) -> bool:
        """Whether this slot is used in place where it lies in symmetric memory."""
        return slot.role in self._in_place

    def keep(self, memory: Any) -> None:
        """A call of the plan was broken off: its launch has this memory until it has ended."""
        self._kept.append(_Kept(memory))

    def _stage(self, staging: _Staging) -> None:
        memory = staging.memory
        if self._staged is memory:
            return
        self._views = []
        self._bindings = (_c.Binding * max(1, self._count))()
        for i, ((shape, dtype), offset) in enumerate(zip(self._forms, self.offsets, strict=True)):
            size = self._sizes[i]
            self._views.append(staging.bytes[offset : offset + size].view(dtype).view(shape))
            if size:
                self._bindings[i] = _c.Binding(memory._open(), offset)
        self._staged = memory

    def run_on_host(self, slots: Sequence[Slot], staging: _Staging, stream: Stream, deadline_ms: int) -> None:
        """Runs the launch to its end, also to a failure. Any other exception leaves the launch in flight,
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
        """Waits for launches whose calls were broken off. Their ends are not reported: a call that raised an earlier one's
        failure would end otherwise than on the other ranks."""
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
        library.raise_status(
            library.launch_cuda_pointers_with_options(self.plan._open(), stream, pointers, self._count, options)
        )

    def close(self) -> None:
        """Releases the plan after its launches. A plan in a CUDA graph lives as long as the graph. A family goes on."""
        if self.rows >= 0:
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


class PlanCache:
    """The plans of one group. Thread-safe. Ranks that make the same calls in the same order hold the same plans."""

    def __init__(self, attachment: Attachment, table: Table | None) -> None:
        """table: where the kernels in C++ find this group's plans; None where Python's kernels serve alone."""
        self._attachment = attachment
        self._table = table
        self._plans: dict[Any, Prepared | Refusal] = {}
        # Calls from Python run one after another. The thread with the turn may wait for other ranks, so nothing else waits for it.
        self._turn = threading.RLock()
        # Stream and staging belong to the group alone: a launch of another group waits for other ranks.
        self._stream: Stream | None = None
        self._staging: _Staging | None = None
        # Staging of the kernels, which copy while Python runs another call, by handle. All but the last are about to
        # be freed.
        self._kernels_staging: dict[int, _Staging] = {}
        self._made = 0
        group = attachment.group
        self._families = Families(attachment.config.max_rows, group.world_size if group is not None else 1)
        self._offers = True  # whether the kernels get plans
        self._calls = 0  # counted here where there is no table
        self._deadline_ms = _c.milliseconds(attachment.config.launch_deadline, 0)

    def __len__(self) -> int:
        return len(self.prepared())

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
        with self._turn:
            prepared = self._plans.get(key)
            if prepared is None:
                prepared = self._prepare(key, call, symmetric, on_host)
            prepared.used = self._tick()
            if isinstance(prepared, Refusal):
                raise Declined(prepared.reason)
            if on_host:
                self._run_on_host(prepared, call.slots)
            else:
                prepared.run_on_cuda(call.slots, self._deadline_ms)
            if self._table is not None and self._offers:
                self._offer(self._table, prepared, call.slots, on_host)
        return call

    def _symmetric_slots(self, call: Call) -> tuple[int, ...]:
        """The slots that are used in place in this call; with an output in place its input, which is the same memory."""
        roles, found = IN_PLACE.get(call.op, ()), []
        for i, slot in enumerate(call.slots):
            if slot.role in roles and self._attachment.symmetric.hold(slot.tensor):
                found += [i] if slot.alias_of is None else [slot.alias_of, i]
        return tuple(found)

    def _run_on_host(self, prepared: Prepared, slots: Sequence[Slot]) -> None:
        if self._staging is None or self._staging.memory.nbytes < prepared.staging_bytes:
            self._staging = _Staging(self._attachment, prepared.staging_bytes)
        staging = self._staging
        try:
            prepared.run_on_host(slots, staging, self.stream(), self._deadline_ms)
        except errors.TandemError:
            raise
        except BaseException:
            self._staging = None
            self._keep_memory(prepared, [staging, slots])
            raise

    def stream(self) -> Stream:
        """The group's stream on the host backend."""
        if self._stream is None:
            self._stream = Stream()
        return self._stream

    def broken_off(self, prepared: Prepared) -> None:
        """An exception has ended a kernel's wait for the plan on this thread: the launch may be in flight still. Takes no turn,
        since the kernel has its own, for which another call of Python's may wait."""
        assert self._table is not None
        staging = self._kernels_staging.pop(self._table.staging(), None)
        self._table.set_staging(None)
        self._keep_memory(prepared, [staging])

    def _keep_memory(self, prepared: Prepared, memory: list[Any]) -> None:
        """The launch in flight keeps this memory, and symmetric tensors: any of them may be its operand."""
        prepared.keep([*memory, *self._attachment.symmetric.owners()])
        if self._table is not None:  # the next call waits for the launch, which kernels do not
            prepared.used = max(prepared.used, self._table.last_use(prepared))
            self._table.remove(prepared)

    def _offer(self, table: Table, prepared: Prepared, slots: Sequence[Slot], on_host: bool) -> None:
        """Lets the kernels launch the plan in calls like the one that has just run."""
        stream = None
        if on_host:
            stream = self.stream()._open()
            current = self._kernels_staging.get(table.staging())
            if current is None or current.memory.nbytes < prepared.staging_bytes:
                larger = _Staging(self._attachment, prepared.staging_bytes)
                self._kernels_staging[larger.memory._open()] = larger
                table.set_staging(larger.memory)  # waits for calls that use the one before
                for handle in [handle for handle, one in self._kernels_staging.items() if one is not larger]:
                    self._kernels_staging.pop(handle, None)
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
        operands = []
        for i, slot in enumerate(call.slots):
            dtype = DTYPES.get(slot.tensor.dtype)
            if dtype is None:
                return self._keep(key, Refusal(f"Tandem has no tensors of {slot.tensor.dtype}"))
            strides = None if on_host else slot.tensor.stride()
            operands.append(Operand(slot.role, dtype, tuple(slot.tensor.shape), strides, i in symmetric, slot.alias_of))
        # On the host backend "auto" takes the engines, which run plans of one shape.
        clients = config.placement == "client" or (config.placement == "auto" and not on_host)
        family = shape_of(call, operands, config.families if clients else "none")
        if family is not None and (plan := self._families.find(family)) is not None:
            return self._keep(key, Prepared(plan, call, symmetric, self.broken_off, family.rows))
        if not on_host and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"tandem.{call.op} has no plan for these shapes yet, and a CUDA graph is being captured: run the captured function "
                "once before the capture, on all ranks, as torch.cuda.graph's warm-up does"
            )
        # Ranks that disagree meet under one key all the same, and all get the field's name. A key whose call fails is used again:
        # a rank that has made another call instead has not used it.
        name = f"torch.{self._made}"
        options = {"placement": config.placement, "autotune": config.autotune, **call.options}
        bound = 0 if family is None else self._families.bound_for(family)
        if family is not None and bound > 0:
            options |= {"max_rows": bound, "autotune": False}
        try:
            plan = group.prepare(name, call.op, operands, deadline=config.rendezvous_timeout, **options)
        except (errors.Unimplemented, errors.FailedPrecondition, errors.InvalidArgument) as error:
            if isinstance(error, errors.FieldMismatch) or error.reason in _SLIPS:
                raise
            self._made += 1
            if family is not None and bound > 0:
                self._families.refuse(family)
                return self._prepare(key, call, symmetric, on_host)
            return self._keep(key, Refusal(str(error)))
        except errors.TandemError:
            raise
        except BaseException:
            # Broken off. This rank comes again with the number that the others wait under, unless they have gone on.
            made = group.unclaimed(name)
            if made is not None:
                self._made += 1
                self._kept_plan(key, made, call, symmetric, family, bound)
            raise
        self._made += 1
        return self._kept_plan(key, plan, call, symmetric, family, bound)

    def _kept_plan(
        self, key: Any, plan: Plan, call: Call, symmetric: tuple[int, ...], family: Shape | None, bound: int
    ) -> Prepared | Refusal:
        """The entry of a plan that was just made, which is a family where `bound` is above 0."""
        if family is None or bound == 0:
            return self._keep(key, Prepared(plan, call, symmetric, self.broken_off))
        self._families.add(family, bound, plan)
        return self._keep(key, Prepared(plan, call, symmetric, self.broken_off, family.rows))

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

    def _close_family(self, plan: Plan) -> None:
        """Drops the handle after the family's launches: a graph may hold a member."""
        with contextlib.suppress(errors.TandemError):
            library = _c.library()
            library.wait_in_slices(60, lambda wait: library.plan_wait(plan._open(), wait))
        plan._handle.close()

    def prepared(self) -> list[Prepared]:
        """The live plans, the least recently used first."""
        plans = [plan for plan in list(self._plans.values()) if isinstance(plan, Prepared)]
        return sorted(plans, key=self._last_use)

    def infos(self) -> list[Any]:
        """PlanInfo of the live plans, the least recently used first."""
        return [plan.plan.info for plan in self.prepared()]

    def wait(self) -> None:
        """Waits for all launches; raises the first failure not yet raised."""
        for plan in self.prepared():
            plan.wait()

    def drop(self) -> None:
        """Releases all plans. Later calls prepare theirs anew, and Python launches them."""
        with self._turn:
            self._offers = False
            for plan in self._plans.values():
                with contextlib.suppress(errors.TandemError):
                    self._close(plan)
            self._plans.clear()
            self._families.close(self._close_family)

    def close(self) -> None:
        """Releases all plans, for good."""
        with self._turn:
            self.drop()
            if self._table is not None:
                self._table.close()
                self._table = None
            self._staging, self._stream = None, None
            self._kernels_staging.clear()
