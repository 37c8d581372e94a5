"""What became of the calls of Megatron's linear layers in this process."""

from __future__ import annotations

from typing import NamedTuple

from .._call_report import CallReport, Tally

__all__ = ["Report", "ReportRow", "count", "report"]


class ReportRow(NamedTuple):
    """Forward calls of one kind of layer with one outcome. reason: why Megatron's own code has run them; "" where Tandem has."""

    layer: str
    calls: int
    reason: str

    def __str__(self) -> str:
        return f"{self.layer:15} {self.calls:9} calls"


class Report(CallReport[ReportRow]):
    """The counts of forward calls while install() was in force. str() is a table."""

    counted = "calls of Megatron's linear layers"


_calls = Tally(Report, ReportRow)
count = _calls.count


def report() -> Report:
    """Which calls of Megatron's linear layers Tandem has run, and why not the others."""
    return _calls.report()
