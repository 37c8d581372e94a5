"""What became of the collectives that this process called through torch.distributed."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NamedTuple

from . import _distributed

__all__ = ["Report", "ReportRow", "report"]


class ReportRow(NamedTuple):
    """Calls of one collective with one outcome. bytes: of the larger of input and output, summed. reason: why the process
    group's own backend has run them; "" where Tandem has."""

    op: str
    calls: int
    bytes: int
    reason: str


class Report(NamedTuple):
    """The counts since the process began. str() is a table."""

    rows: list[ReportRow]

    @property
    def seen(self) -> int:
        """Collectives that were called while install() was in force."""
        return sum(row.calls for row in self.rows)

    @property
    def taken(self) -> int:
        """Those that Tandem has run."""
        return sum(row.calls for row in self.rows if not row.reason)

    def __str__(self) -> str:
        lines = [f"Tandem has run {self.taken} of {self.seen} collectives of torch.distributed"]
        for row in self.rows:
            lines.append(f"  {row.op:15} {row.calls:9} calls {row.bytes:15} bytes  {row.reason or 'by Tandem'}")
        return "\n".join(lines)


def _line(counts: Report) -> str:
    """The counts in one line; reasons by their numbers of calls, of all collectives together."""
    reasons: dict[str, int] = {}
    for row in counts.rows:
        if row.reason:
            reasons[row.reason] = reasons.get(row.reason, 0) + row.calls
    left = [f"{calls} not, since {reason}" for reason, calls in sorted(reasons.items(), key=lambda item: -item[1])]
    return "; ".join([f"ran {counts.taken} of {counts.seen} collectives of torch.distributed", *left])


if os.environ.get("TANDEM_REPORT", "") == "1":

    @atexit.register
    def _tell() -> None:
        print(f"tandem: rank {os.environ.get('RANK', '?')} {_line(report())}", file=sys.stderr, flush=True)


def report() -> Report:
    """Which collectives of torch.distributed Tandem has run, and why not the others."""
    return Report([ReportRow(*row) for row in _distributed.tallies()])
