"""Exceptions: one class a canonical code, and subclasses where a program needs more than the code.

Every exception has the fields of `TandemError`. Catch `Unavailable` for "a rank, the group or the daemon is gone",
`RankLost` for "a rank died", `DeadlineExceeded` for "somebody did not come in time".
"""

from __future__ import annotations

from .enums import Code

__all__ = [
    "Aborted",
    "AlgorithmRefused",
    "AlreadyExists",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FieldMismatch",
    "Internal",
    "InvalidArgument",
    "LaunchAborted",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "RankLate",
    "RankLeft",
    "RankLost",
    "ResourceExhausted",
    "SessionLost",
    "TandemError",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
]


class TandemError(RuntimeError):
    """A status of Tandem that is not OK.

    code: the canonical code. reason: a stable upper-case word, or "". message: for people. who: the rank, session or GPU at
    fault, or "". field: the request's field that is wrong, or "". ranks: the ranks at fault, numbered within their group.
    global_ranks: the same among all processes, where torch knows them. pid: the process at fault, or
    None. limit, usage: of a ResourceExhausted, else 0. started: of a failed launch, whether an engine had begun it (outputs may
    be written in part); None if not known.
    """

    code = Code.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        who: str = "",
        field: str = "",
        ranks: tuple[int, ...] = (),
        pid: int | None = None,
        started: bool | None = None,
        limit: int = 0,
        usage: int = 0,
    ) -> None:
        super().__init__(f"{self.code.name}: {message}" + (f" [{reason}]" if reason else ""))
        self.message = message
        self.reason = reason
        self.who = who
        self.field = field
        self.ranks = ranks
        self.pid = pid
        self.started = started
        self.limit, self.usage = limit, usage
        self.global_ranks: tuple[int, ...] = ()

    def add(self, text: str) -> None:
        """Adds to the message, behind "; "."""
        self.message += f"; {text}"
        self.args = (f"{self.code.name}: {self.message}" + (f" [{self.reason}]" if self.reason else ""),)

    @property
    def rank(self) -> int | None:
        """The first rank at fault, or None."""
        return self.ranks[0] if self.ranks else None


class Cancelled(TandemError):
    """The call was cancelled."""

    code = Code.CANCELLED


class Unknown(TandemError):
    """A failure without a separate code."""

    code = Code.UNKNOWN


class InvalidArgument(TandemError, ValueError):
    """The request is wrong whatever the state; `field` names the field."""

    code = Code.INVALID_ARGUMENT


class FieldMismatch(InvalidArgument):
    """The ranks' requests disagree in `field`; the message has each rank's value."""


class DeadlineExceeded(TandemError, TimeoutError):
    """Somebody did not come in time; `who` and `ranks` name them."""

    code = Code.DEADLINE_EXCEEDED


class RankLate(DeadlineExceeded):
    """`ranks` had not come when the deadline passed."""


class NotFound(TandemError, LookupError):
    """No such object, or one of another session."""

    code = Code.NOT_FOUND


class AlreadyExists(TandemError):
    """The object is there already."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(TandemError):
    """The daemon does not serve this user."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(TandemError):
    """A quota or the machine's memory is used up."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(TandemError):
    """The state forbids the call."""

    code = Code.FAILED_PRECONDITION


class AlgorithmRefused(FailedPrecondition):
    """No algorithm that the request allows can run; the message has the reason against each."""


class Aborted(TandemError):
    """The operation was cut off; it may be tried again."""

    code = Code.ABORTED


class LaunchAborted(Aborted):
    """A launch was cut off, by an engine's end or by its plan's release. `started` says whether it had begun."""


class OutOfRange(TandemError, IndexError):
    """An offset or a rank lies beyond its bounds."""

    code = Code.OUT_OF_RANGE


class Unimplemented(TandemError, NotImplementedError):
    """Tandem has no such operation."""

    code = Code.UNIMPLEMENTED


class Internal(TandemError):
    """A defect of Tandem's, or of the system's."""

    code = Code.INTERNAL


class Unavailable(TandemError):
    """A rank, the group or the daemon is gone; the message names it."""

    code = Code.UNAVAILABLE


class RankLost(Unavailable):
    """The process of `rank` ended without leaving; its group is broken. The other ranks join a new group."""


class RankLeft(Unavailable):
    """`rank` has left the group."""


class SessionLost(Unavailable):
    """The session or the daemon has ended: connect again."""


class DataLoss(TandemError):
    """Data were lost."""

    code = Code.DATA_LOSS


class Unauthenticated(TandemError):
    """No token, a forged one, or one of an earlier daemon."""

    code = Code.UNAUTHENTICATED


_BY_CODE: dict[int, type[TandemError]] = {
    kind.code: kind
    for kind in (
        Cancelled,
        Unknown,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
        Unauthenticated,
    )
}
_BY_REASON: dict[str, type[TandemError]] = {
    "FIELD_MISMATCH": FieldMismatch,
    "RANK_LATE": RankLate,
    "ALGORITHM_REFUSED": AlgorithmRefused,
    "UNFUSED_REFUSED": AlgorithmRefused,
    "ENGINE_RESTARTED": LaunchAborted,
    "RELEASED": LaunchAborted,
    "RANK_LOST": RankLost,
    "RANK_LEFT": RankLeft,
    "SESSION_LOST": SessionLost,
}


def make(
    code: int,
    message: str,
    *,
    reason: str = "",
    who: str = "",
    field: str = "",
    ranks: tuple[int, ...] = (),
    pid: int | None = None,
    started: bool | None = None,
    limit: int = 0,
    usage: int = 0,
) -> TandemError:
    """The exception for a status. A reason's class counts only where it is one of the code's."""
    kind = _BY_CODE.get(code, Unknown)
    special = _BY_REASON.get(reason)
    if special is not None and (issubclass(special, kind) or special is SessionLost):
        kind = special
    return kind(message, reason=reason, who=who, field=field, ranks=ranks, pid=pid, started=started, limit=limit, usage=usage)
