"""What became of the collectives that this process called through torch.distributed."""

from __future__ import annotations

import atexit
from dataclasses import dataclass

from .._call_report import CallReport, OpRow as ReportRow, wanted_at_exit, write
from . import _distributed

__all__ = ["Report", "ReportRow", "report"]


@dataclass(frozen=True)
class Report(CallReport[ReportRow]):
    """The counts of collectives while install() was in force, or of groups of the backend tandem. A call's bytes are those of the
    larger of input and output. Where a row has a reason, the process group's own backend has run the calls. str() is a table.

    unavailable: why no collective is taken or counted, as with a version of torch that Tandem has no library for; else "".
    """

    unavailable: str = ""
    counted = "collectives of torch.distributed"

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.unavailable}" if self.unavailable else super().__str__()

    def line(self) -> str:
        return f"{super().line()}; {self.unavailable}" if self.unavailable else super().line()


def report() -> Report:
    """Which collectives of torch.distributed Tandem has run, and why not the others."""
    return Report([ReportRow(*row) for row in _distributed.tallies()], _distributed.unavailable)


if wanted_at_exit():
    atexit.register(lambda: write(report()))
