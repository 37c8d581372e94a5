"""What became of the collectives that this process called through torch.distributed."""

from __future__ import annotations

from typing import NamedTuple

from . import _distributed

__all__ = ["Report", "ReportRow", "report"]


class ReportRow(NamedTuple):
    """Calls of one collective with one outcome. bytes: of the larger of input and output, summed. reason: why the process
    group's own backend has run them; "" where Tandem has."""

    op: str
    calls: int
    bytes: int
    reason: str


class Report(NamedTuple):
    """The counts since the process began. str() is a table."""

    rows: list[ReportRow]

    @property
    def seen(self) -> int:
        """Collectives that were called while install() was in force."""
        return sum(row.calls for row in self.rows)

    @property
    def taken(self) -> int:
        """Those that Tandem has run."""
        return sum(row.calls for row in self.rows if not row.reason)

    def __str__(self) -> str:
        lines = [f"Tandem has run {self.taken} of {self.seen} collectives of torch.distributed"]
        for row in self.rows:
            lines.append(f"  {row.op:15} {row.calls:9} calls {row.bytes:15} bytes  {row.reason or 'by Tandem'}")
        return "\n".join(lines)


def report() -> Report:
    """Which collectives of torch.distributed Tandem has run, and why not the others."""
    return Report([ReportRow(*row) for row in _distributed.tallies()])
