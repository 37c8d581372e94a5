"""What became of the calls of Megatron's linear layers in this process."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple

from .. import _call_report

__all__ = ["Report", "ReportRow", "count", "report"]


class ReportRow(NamedTuple):
    """Forward calls of one kind of layer with one outcome. reason: why Megatron's own code has run them; "" where Tandem has."""

    layer: str
    calls: int
    reason: str

    def __str__(self) -> str:
        return f"{self.layer:15} {self.calls:9} calls"


class Report(_call_report.CallReport[ReportRow]):
    """The counts of forward calls while install() was in force. str() is a table."""

    counted = "calls of Megatron's linear layers"


_lock = threading.Lock()
_calls: Counter[tuple[str, str]] = Counter()


def count(layer: str, reason: str) -> None:
    """Notes a call of a layer, and why it was not taken."""
    with _lock:
        _calls[layer, reason] += 1


def report() -> Report:
    """Which calls of Megatron's linear layers Tandem has run, and why not the others."""
    with _lock:
        return Report([ReportRow(layer, calls, reason) for (layer, reason), calls in sorted(_calls.items())])
