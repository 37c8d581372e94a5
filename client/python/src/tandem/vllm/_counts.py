"""What became of the collectives that vLLM has called on its tensor-parallel groups."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NamedTuple

__all__ = ["Report", "ReportRow", "count", "report"]


class ReportRow(NamedTuple):
    """Calls of one collective of one group of vLLM with one outcome. reason: why vLLM's own communicator has run them; "" where
    Tandem has."""

    group: str
    op: str
    calls: int
    reason: str


class Report(NamedTuple):
    """The counts since the process began. A replay of a CUDA graph is no call: the calls of its capture are. str() is a table."""

    rows: list[ReportRow]

    @property
    def seen(self) -> int:
        """Collectives that vLLM has called."""
        return sum(row.calls for row in self.rows)

    @property
    def taken(self) -> int:
        """Those that Tandem has run."""
        return sum(row.calls for row in self.rows if not row.reason)

    def __str__(self) -> str:
        lines = [f"Tandem has run {self.taken} of {self.seen} collectives of vLLM's tensor-parallel groups"]
        for row in self.rows:
            lines.append(f"  {row.group:8} {row.op:15} {row.calls:9} calls  {row.reason or 'by Tandem'}")
        return "\n".join(lines)


_calls: dict[tuple[str, str, str], int] = {}


def count(group: str, op: str, reason: str) -> None:
    """Counts one call. reason: as of ReportRow."""
    key = (group, op, reason)
    _calls[key] = _calls.get(key, 0) + 1


def report() -> Report:
    """Which collectives of vLLM's tensor-parallel groups Tandem has run in this process, and why not the others."""
    return Report([ReportRow(group, op, calls, reason) for (group, op, reason), calls in sorted(_calls.items())])


if os.environ.get("TANDEM_REPORT", "") == "1":

    @atexit.register
    def _tell() -> None:
        if _calls:
            print(f"tandem: process {os.getpid()}: {report()}", file=sys.stderr, flush=True)
