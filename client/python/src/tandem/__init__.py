"""Tandem: fused collectives and matrix products by the node's daemon.

    import tandem
    with tandem.connect() as client, client.join("tp", world_size=2, rank=rank, job_key=key) as group:
        x, y = group.empty((1024,), "f32"), group.empty((1024,), "f32")
        with group.prepare("sum", "all_reduce", [("input", x), ("output", y)]) as plan:
            print(plan.explain())
            plan.launch(x, y)
            plan.wait()

`tandem.torch` is for PyTorch; nothing here needs it. Every function raises subclasses of `TandemError` (tandem.errors).
Times are in seconds. Objects may be used from any thread.
"""

from . import errors
from ._session import Event
from ._usage import MemoryUsage
from ._version import Version, version
from .bootstrap import Job
from .client import Client, connect, cuda_device_uuid, init
from .enums import Algorithm, Code, Determinism, DType, EventKind, OnUnfused, Op, Placement, ReduceOp, Role, Rounding, WireType
from .errors import (
    Aborted,
    AlgorithmRefused,
    DeadlineExceeded,
    FailedPrecondition,
    FieldMismatch,
    InvalidArgument,
    LaunchAborted,
    RankLate,
    RankLeft,
    RankLost,
    ResourceExhausted,
    SessionLost,
    TandemError,
    Unavailable,
)
from .group import Group
from .memory import Memory, Reservation, Tensor
from .plan import Operand, Plan, PlanInfo, Transfer
from .streams import Graph, Stream

__all__ = [
    "Aborted",
    "Algorithm",
    "AlgorithmRefused",
    "Client",
    "Code",
    "DType",
    "DeadlineExceeded",
    "Determinism",
    "Event",
    "EventKind",
    "FailedPrecondition",
    "FieldMismatch",
    "Graph",
    "Group",
    "InvalidArgument",
    "Job",
    "LaunchAborted",
    "Memory",
    "MemoryUsage",
    "OnUnfused",
    "Op",
    "Operand",
    "Placement",
    "Plan",
    "PlanInfo",
    "RankLate",
    "RankLeft",
    "RankLost",
    "ReduceOp",
    "Reservation",
    "ResourceExhausted",
    "Role",
    "Rounding",
    "SessionLost",
    "Stream",
    "TandemError",
    "Tensor",
    "Transfer",
    "Unavailable",
    "Version",
    "WireType",
    "connect",
    "cuda_device_uuid",
    "errors",
    "init",
    "version",
]
