"""How this process ends. What runs then waits for no other rank longer than it must."""

from __future__ import annotations

import sys

__all__ = ["failed", "finalizing"]


def finalizing() -> bool:
    """Whether the interpreter is taken down; atexit's functions have run before. No thread begins any more, and no other thread
    runs Python."""
    return sys.is_finalizing()


def failed() -> bool:
    """Whether the program has ended by an exception, which Python has shown. atexit's functions ask."""
    return getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None
