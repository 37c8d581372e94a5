"""What became of the collectives that vLLM has called on its tensor-parallel groups."""

from __future__ import annotations

from .._call_report import CallReport, GroupRow as ReportRow, Tally

__all__ = ["Report", "ReportRow", "count", "report"]


class Report(CallReport[ReportRow]):
    """The counts since the process began. The calls of a CUDA graph's capture count; its replays make none. str() is a table."""

    counted = "collectives of vLLM's tensor-parallel groups"


_calls = Tally(Report, ReportRow)
count = _calls.count


def report() -> Report:
    """Which collectives of vLLM's tensor-parallel groups Tandem has run in this process, and why not the others."""
    return _calls.report()
