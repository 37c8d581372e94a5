"""Calls of ops that are made for their family alone, and launch nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["Ended", "asked_rows", "preparing"]


class Ended(Exception):
    """Leaves the op, which touches no tensor any more. served: whether a family serves such calls."""

    def __init__(self, served: bool) -> None:
        self.served = served


class _Thread(threading.local):
    rows = 0


_thread = _Thread()


def asked_rows() -> int:
    """The rows that the family of this thread's call is to serve; 0: the call is to run."""
    return _thread.rows


@contextlib.contextmanager
def preparing(rows: int) -> Iterator[None]:
    """Python's kernels of this thread end by Ended."""
    outer, _thread.rows = _thread.rows, rows
    try:
        yield
    finally:
        _thread.rows = outer
