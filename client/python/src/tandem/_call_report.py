"""Reports of the calls that a program has made, and of those that Tandem has run."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar


class CallRow(Protocol):
    """Calls with one outcome. str() is the row's line in the table."""

    @property
    def calls(self) -> int:
        """The number of calls."""

    @property
    def reason(self) -> str:
        """Why Tandem has not run them; "" where it has."""


class OpRow(NamedTuple):
    """Calls of one collective or function with one outcome. bytes: of their tensors, summed. reason: why Tandem has not run
    them; "" where it has."""

    op: str
    calls: int
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.op:22} {self.calls:9} calls {self.bytes:15} bytes"


class GroupRow(NamedTuple):
    """Calls of one collective of one group of a server with one outcome. reason: why the server's own communicator has run them; ""
    where Tandem has."""

    group: str
    op: str
    calls: int
    reason: str

    def __str__(self) -> str:
        return f"{self.group:8} {self.op:15} {self.calls:9} calls"


Row = TypeVar("Row", bound=CallRow)


@dataclass(frozen=True)
class CallReport(Generic[Row]):
    """The counts since the process began. str() is a table."""

    rows: list[Row]
    counted: ClassVar[str] = "calls"  # in words

    @property
    def seen(self) -> int:
        """All calls that are counted."""
        return sum(row.calls for row in self.rows)

    @property
    def taken(self) -> int:
        """The calls that Tandem has run."""
        return sum(row.calls for row in self.rows if not row.reason)

    def __str__(self) -> str:
        head = f"Tandem has run {self.taken} of {self.seen} {self.counted}"
        return "\n".join([head, *(f"  {row}  {row.reason or 'by Tandem'}" for row in self.rows)])

    def line(self) -> str:
        """The counts in one line, by reasons; the most frequent reason comes first."""
        reasons: dict[str, int] = {}
        for row in self.rows:
            if row.reason:
                reasons[row.reason] = reasons.get(row.reason, 0) + row.calls
        left = [f"{calls} not, since {reason}" for reason, calls in sorted(reasons.items(), key=lambda item: -item[1])]
        return "; ".join([f"ran {self.taken} of {self.seen} {self.counted}", *left])


def wanted_at_exit() -> bool:
    """Whether TANDEM_REPORT asks each process for its counts at its end."""
    return os.environ.get("TANDEM_REPORT", "") == "1"


def write(report: CallReport[Row]) -> None:
    """Writes the counts to standard error, with the rank or else the process."""
    rank = os.environ.get("RANK", "")
    who = f"rank {rank}" if rank else f"process {os.getpid()}"
    print(f"tandem: {who} {report.line()}", file=sys.stderr, flush=True)


Kind = TypeVar("Kind", bound=CallReport[Any])


class Tally(Generic[Kind]):
    """The counts of this process, by names and by the reason that Tandem has not run a call. Threads count at any time.

    kind, row: the classes of the report and of its rows. A row is made from the names, the calls, the bytes where `sized`, and the
    reason. Where TANDEM_REPORT asks for it, a process that has counted a call writes its counts at its end.
    """

    def __init__(self, kind: type[Kind], row: Callable[..., CallRow], sized: bool = False) -> None:
        self._kind, self._row, self._sized = kind, row, sized
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, ...]] = Counter()
        self._bytes: Counter[tuple[str, ...]] = Counter()
        if wanted_at_exit():
            atexit.register(self._write)

    def count(self, *names_and_reason: str, size: int = 0) -> bool:
        """Counts one call; whether it is the first of these names and this reason. The reason comes last, and is "" where Tandem
        runs the call. size: in bytes."""
        with self._lock:
            self._calls[names_and_reason] += 1
            self._bytes[names_and_reason] += size
            return self._calls[names_and_reason] == 1

    def report(self) -> Kind:
        """The counts up to now."""
        with self._lock:
            counted = [(*key, calls, self._bytes[key]) for key, calls in sorted(self._calls.items())]
        rows = []
        for *names, reason, calls, size in counted:
            rows.append(self._row(*names, calls, size, reason) if self._sized else self._row(*names, calls, reason))
        return self._kind(rows)

    def _write(self) -> None:
        if self._calls:  # servers have processes without a group
            write(self.report())
