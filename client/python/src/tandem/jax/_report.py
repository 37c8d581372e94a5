"""What became of the calls that this process has traced."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections import Counter
from typing import NamedTuple

import jax

from .. import _call_report

__all__ = ["Report", "ReportRow", "count", "report"]


class ReportRow(NamedTuple):
    """Traced calls of one function with one outcome. bytes: of their operands, summed. reason: why jax.lax's own collectives run
    them; "" where Tandem does."""

    op: str
    calls: int
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.op:22} {self.calls:6} calls {self.bytes:15} bytes"


class Report(_call_report.CallReport[ReportRow]):
    """The counts of traces since the process began; a compiled call may run many times. str() is a table."""

    counted = "traced calls of tandem.jax"


_lock = threading.Lock()
_calls: Counter[tuple[str, str]] = Counter()
_bytes: Counter[tuple[str, str]] = Counter()


def count(op: str, size: int, reason: str) -> None:
    """Notes a traced call, and why Tandem does not run it. The first process warns once of each reason."""
    with _lock:
        first = bool(reason) and not _calls[op, reason]
        _calls[op, reason] += 1
        _bytes[op, reason] += size
    if first and jax.process_index() == 0:
        warnings.warn(f"tandem.jax: {op} runs by jax.lax: {reason}", RuntimeWarning, stacklevel=4)


def report() -> Report:
    """Which calls Tandem runs in the programs that this process has traced, and why not the others."""
    with _lock:
        return Report([ReportRow(op, calls, _bytes[op, reason], reason) for (op, reason), calls in sorted(_calls.items())])


if _call_report.wanted_at_exit():
    atexit.register(lambda: _call_report.write(report()))
