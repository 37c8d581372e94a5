"""What became of the collectives that vLLM has called on its tensor-parallel groups."""

from __future__ import annotations

import atexit
from collections import Counter
from typing import NamedTuple

from .. import _call_report

__all__ = ["Report", "ReportRow", "count", "report"]


class ReportRow(NamedTuple):
    """Calls of one collective of one group of vLLM with one outcome. reason: why vLLM's own communicator has run them; "" where
    Tandem has."""

    group: str
    op: str
    calls: int
    reason: str

    def __str__(self) -> str:
        return f"{self.group:8} {self.op:15} {self.calls:9} calls"


class Report(_call_report.CallReport[ReportRow]):
    """The counts since the process began. The calls of a CUDA graph's capture count; its replays make none. str() is a table."""

    counted = "collectives of vLLM's tensor-parallel groups"


_calls: Counter[tuple[str, str, str]] = Counter()


def count(group: str, op: str, reason: str) -> None:
    """Counts one call. reason: as of ReportRow."""
    _calls[group, op, reason] += 1


def report() -> Report:
    """Which collectives of vLLM's tensor-parallel groups Tandem has run in this process, and why not the others."""
    return Report([ReportRow(group, op, calls, reason) for (group, op, reason), calls in sorted(_calls.items())])


def _tell() -> None:
    if _calls:  # vLLM has processes without a group
        _call_report.write(report())


if _call_report.wanted_at_exit():
    atexit.register(_tell)
