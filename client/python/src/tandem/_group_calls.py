"""Counts of the collectives that a server's program has called on its groups, and of those that Tandem has run."""

from __future__ import annotations

import atexit
from collections import Counter
from typing import Generic, NamedTuple, TypeVar

from . import _call_report


class ReportRow(NamedTuple):
    """Calls of one collective of one group with one outcome. reason: why the server's own communicator has run them; "" where
    Tandem has."""

    group: str
    op: str
    calls: int
    reason: str

    def __str__(self) -> str:
        return f"{self.group:8} {self.op:15} {self.calls:9} calls"


Kind = TypeVar("Kind", bound=_call_report.CallReport[ReportRow])


class GroupCalls(Generic[Kind]):
    """The counts of this process, by group, collective and reason; written at its end where TANDEM_REPORT asks for them."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self._calls: Counter[tuple[str, str, str]] = Counter()
        if _call_report.wanted_at_exit():
            atexit.register(self._write)

    def count(self, group: str, op: str, reason: str) -> None:
        """Counts one call. reason: as of ReportRow."""
        self._calls[group, op, reason] += 1

    def report(self) -> Kind:
        """The counts up to now."""
        return self._kind([ReportRow(group, op, calls, reason) for (group, op, reason), calls in sorted(self._calls.items())])

    def _write(self) -> None:
        if self._calls:  # servers have processes without a group
            _call_report.write(self.report())
