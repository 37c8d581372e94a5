"""What became of the calls of Megatron's linear layers in this process."""

from __future__ import annotations

import threading
from typing import NamedTuple

__all__ = ["Report", "ReportRow", "count", "report"]


class ReportRow(NamedTuple):
    """Forward calls of one kind of layer with one outcome. reason: why Megatron's own code has run them; "" where Tandem has."""

    layer: str
    calls: int
    reason: str


class Report(NamedTuple):
    """The counts since the process began. str() is a table."""

    rows: list[ReportRow]

    @property
    def seen(self) -> int:
        """Forward calls of linear layers while install() was in force."""
        return sum(row.calls for row in self.rows)

    @property
    def taken(self) -> int:
        """Those that Tandem has run."""
        return sum(row.calls for row in self.rows if not row.reason)

    def __str__(self) -> str:
        lines = [f"Tandem has run {self.taken} of {self.seen} calls of Megatron's linear layers"]
        for row in self.rows:
            lines.append(f"  {row.layer:15} {row.calls:9} calls  {row.reason or 'by Tandem'}")
        return "\n".join(lines)


_lock = threading.Lock()
_calls: dict[tuple[str, str], int] = {}


def count(layer: str, reason: str) -> None:
    """Notes a call of a layer, and why it was not taken."""
    with _lock:
        _calls[layer, reason] = _calls.get((layer, reason), 0) + 1


def report() -> Report:
    """Which calls of Megatron's linear layers Tandem has run, and why not the others."""
    with _lock:
        return Report([ReportRow(layer, calls, reason) for (layer, reason), calls in sorted(_calls.items())])
