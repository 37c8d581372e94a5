"""What became of the collectives that this process called through torch.distributed."""

from __future__ import annotations

import atexit
from typing import NamedTuple

from .. import _call_report
from . import _distributed

__all__ = ["Report", "ReportRow", "report"]


class ReportRow(NamedTuple):
    """Calls of one collective with one outcome. bytes: of the larger of input and output, summed. reason: why the process
    group's own backend has run them; "" where Tandem has."""

    op: str
    calls: int
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.op:15} {self.calls:9} calls {self.bytes:15} bytes"


class Report(_call_report.CallReport[ReportRow]):
    """The counts of collectives while install() was in force, or of groups of the backend tandem. str() is a table."""

    counted = "collectives of torch.distributed"


def report() -> Report:
    """Which collectives of torch.distributed Tandem has run, and why not the others."""
    return Report([ReportRow(*row) for row in _distributed.tallies()])


if _call_report.wanted_at_exit():
    atexit.register(lambda: _call_report.write(report()))
