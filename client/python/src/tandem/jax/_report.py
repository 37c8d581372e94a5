"""What became of the calls that this process has traced."""

from __future__ import annotations

import warnings

import jax

from .._call_report import CallReport, OpRow as ReportRow, Tally

__all__ = ["Report", "ReportRow", "count", "report"]


class Report(CallReport[ReportRow]):
    """The counts of traces since the process began, and the bytes of their operands. A compiled call may run many times. Where a
    row has a reason, jax.lax's own collectives run the calls. str() is a table."""

    counted = "traced calls of tandem.jax"


_calls = Tally(Report, ReportRow, sized=True)


def count(op: str, size: int, reason: str) -> None:
    """Notes a traced call, and why Tandem does not run it. The first process warns once of each reason."""
    if _calls.count(op, reason, size=size) and reason and jax.process_index() == 0:
        warnings.warn(f"tandem.jax: {op} runs by jax.lax: {reason}", RuntimeWarning, stacklevel=4)


def report() -> Report:
    """Which calls Tandem runs in the programs that this process has traced, and why not the others."""
    return _calls.report()
