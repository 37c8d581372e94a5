"""Plans, and what they are made of."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypedDict

from . import _c, enums, errors
from ._in_flight import InFlight
from ._membership import Membership
from .enums import Algorithm, Determinism, DType, OnUnfused, Op, Placement, ReduceOp, Role, Rounding, WireType
from .memory import Memory
from .streams import Stream

__all__ = ["Operand", "Plan", "PlanInfo", "Transfer"]


class Refused(TypedDict):
    """An algorithm that was not taken."""

    algorithm: str
    reason: str
    predicted_us: float


class RowRange(TypedDict):
    """Numbers of rows of a family, up to `last`, that have one algorithm."""

    last: int
    algorithm: str
    predicted_us: float
    reason: str


class PlanInfo(TypedDict):
    """How a plan explains itself; equal on all ranks. Fields are those of tandem::PlanInfo."""

    plan_id: int
    key: str
    op: str
    algorithm: str
    reason: str
    refused: list[Refused]
    fused: bool
    steps: int
    lanes: int
    summary: str
    scale_mode: str
    wire_type: str
    reduction_order: str
    placement: str
    placed: str
    roundings: int
    deterministic: bool
    determinism: str
    rounding: str
    norm: str
    workspace_bytes: int
    bulk_bytes: int
    bytes_moved: int
    gathered_a_bytes: int
    group_workspace_bytes: int
    unshared_workspace_bytes: int
    predicted_us: float
    warnings: list[str]
    slot_bytes: list[int]
    max_rows: int
    row_unit: int
    rows: list[RowRange]


@dataclass(frozen=True)
class Operand:
    """One slot of a request.

    role: the operand's part in the operation ("a", "b", "output", …). shape: elements. strides: elements, None for contiguous.
    symmetric: the slot will be bound to a symmetric tensor at the same offset on all ranks. alias_of: the slot with which this
    one shares its memory, or None.
    """

    role: Role | str
    dtype: DType | str
    shape: Sequence[int]
    strides: Sequence[int] | None = None
    symmetric: bool = False
    alias_of: int | None = None

    @staticmethod
    def of(role: Role | str, memory: Memory, alias_of: int | None = None) -> Operand:
        """The operand for this memory's shape and type."""
        return Operand(role, memory.dtype, memory.shape, None, memory.symmetric, alias_of)


@dataclass(frozen=True)
class Transfer:
    """One send or receive of a send_receive, between slot `slot` of this rank and the peer's matching transfer."""

    send: bool
    peer: int
    slot: int


@dataclass(frozen=True)
class Request:
    """The request of a plan. The fields are those of tandem::OpRequest."""

    op: Op | str
    operands: Sequence[Operand] = ()
    dim: int = 0
    reduce_op: ReduceOp | str = ReduceOp.sum
    root: int = 0
    wire: WireType | str = WireType.output
    fast_accumulation: bool = True
    low_contention: bool = False
    chunk_pivot: int = 0
    transfers: Sequence[Transfer] = ()
    algorithm: Algorithm | str = Algorithm.auto
    steps: int = 0
    lanes: int = 0
    on_unfused: OnUnfused | str = OnUnfused.warn
    restartable: bool = False
    placement: Placement | str = Placement.auto
    autotune: bool = False
    norm_epsilon: float = 0.0
    max_rows: int = 0
    determinism: Determinism | str = Determinism.off
    rounding: Rounding | str = Rounding.once
    _memory: list[Any] = field(default_factory=list, repr=False, compare=False)

    def to_c(self) -> _c.Request:
        """The C structure. It lives as long as this object."""
        request = _c.Request()
        library = _c.library()
        library.request_init(ctypes.byref(request), ctypes.sizeof(request))
        slots = (_c.Operand * max(1, len(self.operands)))()
        for slot, operand in zip(slots, self.operands, strict=False):
            library.operand_init(ctypes.byref(slot), ctypes.sizeof(slot))
            slot.role, slot.dtype = enums.parse(Role, operand.role), enums.parse(DType, operand.dtype)
            shape = _c.extents(operand.shape)
            slot.shape, slot.dims = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), len(operand.shape)
            self._memory.append(shape)
            if operand.strides is not None:
                if len(operand.strides) != len(operand.shape):
                    raise ValueError(f"{len(operand.shape)} extents with {len(operand.strides)} strides")
                strides = _c.extents(operand.strides)
                slot.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
                self._memory.append(strides)
            slot.symmetric = int(operand.symmetric)
            slot.alias_of = -1 if operand.alias_of is None else operand.alias_of
        transfers = (_c.Transfer * max(1, len(self.transfers)))(
            *[_c.Transfer(int(one.send), one.peer, one.slot) for one in self.transfers]
        )
        self._memory.extend((slots, transfers))
        request.operands, request.operand_count = slots, len(self.operands)
        request.transfers, request.transfer_count = transfers, len(self.transfers)
        request.op, request.dim, request.root = enums.parse(Op, self.op), self.dim, self.root
        request.reduce_op, request.wire = enums.parse(ReduceOp, self.reduce_op), enums.parse(WireType, self.wire)
        request.fast_accumulation, request.low_contention = int(self.fast_accumulation), int(self.low_contention)
        request.chunk_pivot, request.algorithm = self.chunk_pivot, enums.parse(Algorithm, self.algorithm)
        request.steps, request.lanes, request.on_unfused = self.steps, self.lanes, enums.parse(OnUnfused, self.on_unfused)
        request.autotune, request.norm_epsilon = int(self.autotune), self.norm_epsilon
        request.max_rows, request.determinism = self.max_rows, enums.parse(Determinism, self.determinism)
        request.rounding = enums.parse(Rounding, self.rounding)
        request.restartable, request.placement = int(self.restartable), enums.parse(Placement, self.placement)
        return request


class Plan:
    """A request that was prepared once and is launched many times. Usable from any thread.

    Launch k of a plan on one rank meets launch k on all others. Leaving the context, or close(), releases the plan.
    """

    def __init__(self, group: Membership, handle: int) -> None:
        library = _c.library()
        self.group = group
        self._handle = _c.Handle(handle, library.plan_free)
        self._in_flight = InFlight(self._handle)
        self.id: int = library.plan_id(handle)
        self.info: PlanInfo = json.loads(library.plan_json(handle))
        self.slot_bytes = tuple(library.plan_slot_bytes(handle, slot) for slot in range(library.plan_slots(handle)))

    def __repr__(self) -> str:
        return f"<tandem.Plan {self.info['key']!r}: {self.info['op']} by {self.info['algorithm']}>"

    def _open(self) -> int:
        if not self._handle.value:
            raise ValueError("this plan has been closed")
        return self._handle.value

    def explain(self) -> str:
        """Why this algorithm and not another one, as text of several lines."""
        return str(_c.library().plan_explanation(self._open()).decode())

    def launch(
        self,
        *bindings: Memory | tuple[Memory, int] | int,
        stream: Stream | int | None = None,
        deadline: float | None = None,
        tag: str | None = None,
        rows: int | None = None,
    ) -> None:
        """Enqueues one launch on `stream`; work that is enqueued later runs after it.

        bindings: for each slot a Memory, or a Memory and an offset in bytes; on the CUDA backend also device addresses (then of
        every slot; 0 for a slot of no bytes). stream: of the host backend a Stream (None: the client's own), of the CUDA backend
        a cudaStream_t (None: the default stream). deadline: seconds from the first rank's arrival, None for the group's. tag:
        compared across ranks. rows: of a family (Request.max_rows) the launch's number of rows, equal on all ranks; None for its
        bound. Bindings need memory for these rows only.

        Raises the failure of an earlier launch of this plan on the stream that no call has raised yet, else what is wrong with
        this launch, which then fails on all ranks.
        """
        library, handle = _c.library(), self._open()
        failure = self._in_flight.failure_of_ended(self.done)
        options = _c.LaunchOptions(ctypes.sizeof(_c.LaunchOptions), _c.milliseconds(deadline, 0), _c.optional_text("tag", tag))
        options.rows = -1 if rows is None else rows
        if rows is not None and rows < 0:
            raise ValueError(f"rows: {rows} is negative")
        if bindings and isinstance(bindings[0], int):
            addresses: Any = bindings
            pointers = (_c.Pointer * len(bindings))(*addresses)
            status = library.launch_cuda_pointers_with_options(handle, stream, pointers, len(bindings), options)
            library.raise_status(status)
            return
        array, used = (_c.Binding * max(1, len(bindings)))(), []
        for slot, binding in zip(array, bindings, strict=False):
            memory, offset = binding if isinstance(binding, tuple) else (binding, 0)
            if not isinstance(memory, Memory):
                raise TypeError(f"a slot is bound to Memory, not to {type(memory).__name__}")
            slot.memory, slot.offset = memory._open(), offset
            used.append(memory._handle)
        if self.group.client.backend == "cuda":
            status = library.launch_cuda_with_options(handle, stream, array, len(bindings), options)
        else:
            host = self.group.client.host_stream(stream)
            status = library.launch_with_options(handle, host._open(), array, len(bindings), options)
            host._use(used)
        self._in_flight.add(used)
        library.raise_status(status)
        if failure is not None:
            raise failure

    def wait(self, timeout: float | None = 600) -> None:
        """Waits until every launch of the plan by this client has ended, and raises the first failure not yet raised."""
        library = _c.library()
        with self._in_flight.ending() as end:
            library.wait_in_slices(timeout, lambda wait: library.plan_wait(self._open(), wait))
            end()

    def done(self) -> bool:
        """Whether all launches have ended; raises a failure not yet raised."""
        library, ended = _c.library(), ctypes.c_int()
        with self._in_flight.ending() as end:
            library.raise_status(library.plan_query(self._open(), ctypes.byref(ended)))
            if ended.value:
                end()
        return bool(ended.value)

    def close(self) -> None:
        """Releases the plan; launches on streams end first. Does nothing the second time."""
        if self._handle.value:
            library = _c.library()
            with contextlib.suppress(errors.TandemError):  # whose failure it is, nobody asks any more
                self.wait(60)
            # A group that has been left has taken its plans along.
            status = library.plan_release(self._handle.value) if self.group._handle.value else 0
            self._handle.close()
            library.raise_status(status)

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._handle.close()  # the first failure is the one to report
