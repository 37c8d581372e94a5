"""Enumerations of Tandem's C interface. Functions also take the members' names as text: "all_reduce", "bf16"."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

__all__ = [
    "Algorithm",
    "Code",
    "DType",
    "Determinism",
    "EventKind",
    "OnUnfused",
    "Op",
    "Placement",
    "ReduceOp",
    "Role",
    "Rounding",
    "WireType",
]


class Code(IntEnum):
    """Canonical status codes; values equal gRPC's."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Op(IntEnum):
    """The operations; docs/algorithms.md has the shapes of each."""

    all_reduce = 1
    all_gather = 2
    reduce_scatter = 3
    all_gather_matmul = 4
    matmul_reduce_scatter = 5
    matmul_all_reduce = 6
    broadcast = 7
    reduce = 8
    all_to_all = 9
    send_receive = 10
    barrier = 11
    async_input_matmul = 12
    empty = 13


class ReduceOp(IntEnum):
    """How values of several ranks become one."""

    sum = 0
    avg = 1
    min = 2
    max = 3
    product = 4
    bit_and = 5
    bit_or = 6
    bit_xor = 7


class WireType(IntEnum):
    """The type in which partial sums travel: the output's own, or fp32."""

    output = 0
    f32 = 1


class OnUnfused(IntEnum):
    """The answer where only the unfused composition can serve a fused operation."""

    allow = 0
    warn = 1
    error = 2


class Placement(IntEnum):
    """Where a plan's launches run; `auto` leaves it to the group's option, and that to the daemon."""

    auto = 0
    engine = 1
    client = 2


class Determinism(IntEnum):
    """The promise about the bits of a plan's results (docs/determinism.md)."""

    off = 0
    run = 1
    batch = 2


class Rounding(IntEnum):
    """The value behind a sum and a residual that a norm is computed from (docs/requests.md)."""

    once = 0
    model = 1


class Algorithm(IntEnum):
    """The algorithms; `auto` leaves the choice to the daemon."""

    auto = 0
    one_shot = 1
    two_shot = 2
    hybrid_cube_mesh = 3
    low_latency = 4
    nccl = 5
    copy_engine = 6
    sm = 7
    unfused = 8
    pipeline = 9
    ring = 10
    tiled_two_shot = 11
    fused = 12
    direct = 13


class Role(IntEnum):
    """The part that an operand has in its operation."""

    input = 1
    output = 2
    a = 3
    b = 4
    c = 5
    gathered_a = 6
    scale_a = 7
    scale_b = 8
    bias = 9
    result_scale = 10
    chunk_signals = 11
    norm_weight = 12
    residual = 13
    residual_output = 14
    quantized_output = 15
    static_scale = 16
    scale_output = 17


class DType(IntEnum):
    """Element types."""

    f32 = 0
    f16 = 1
    bf16 = 2
    f8e4m3 = 3
    f8e5m2 = 4
    i32 = 5
    i64 = 6
    u8 = 7

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {DType.f32: 4, DType.f16: 2, DType.bf16: 2, DType.f8e4m3: 1, DType.f8e5m2: 1, DType.i32: 4, DType.i64: 8, DType.u8: 1}


class EventKind(IntEnum):
    """Kinds of a session's events."""

    rank_lost = 0
    group_broken = 1
    rank_left = 2
    engine_restarted = 3
    draining = 4
    late = 5
    daemon_lost = 6
    plan_warning = 7
    group_stalled = 8
    suspend_requested = 9
    resume_requested = 10


_Enum = TypeVar("_Enum", bound=IntEnum)


def parse(kind: type[_Enum], value: _Enum | int | str) -> _Enum:
    """A member of `kind` from itself, its number or its name; ValueError lists the names."""
    if isinstance(value, kind):
        return value
    try:
        return kind[value] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        names = ", ".join(kind.__members__)
        raise ValueError(f"{value!r} is no {kind.__name__}; there are: {names}") from None
