"""What became of the collectives that this process called through torch.distributed."""

from __future__ import annotations

import atexit

from .._call_report import CallReport, OpRow as ReportRow, wanted_at_exit, write
from . import _distributed

__all__ = ["Report", "ReportRow", "report"]


class Report(CallReport[ReportRow]):
    """The counts of collectives while install() was in force, or of groups of the backend tandem. A call's bytes are those of the
    larger of input and output. Where a row has a reason, the process group's own backend has run the calls. str() is a table."""

    counted = "collectives of torch.distributed"


def report() -> Report:
    """Which collectives of torch.distributed Tandem has run, and why not the others."""
    return Report([ReportRow(*row) for row in _distributed.tallies()])


if wanted_at_exit():
    atexit.register(lambda: write(report()))
