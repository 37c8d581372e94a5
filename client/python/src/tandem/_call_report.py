"""Reports of the calls that a program has made, and of those that Tandem has run."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar


class CallRow(Protocol):
    """Calls with one outcome. str() is the row's line in the table."""

    @property
    def calls(self) -> int:
        """The number of calls."""

    @property
    def reason(self) -> str:
        """Why Tandem has not run them; "" where it has."""


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
