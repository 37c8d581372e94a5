"""Memory that a launch is bound to lives until the launch has ended, also where the program has dropped it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from . import _c, _endings, errors

__all__ = ["InFlight"]

MANY = 32  # handles that are kept before a launch looks whether earlier ones have ended


class InFlight:
    """The memory of one plan's launches that may not have ended yet."""

    def __init__(self, plan: _c.Handle) -> None:
        self._plan, self._process = plan, os.getpid()
        self._used: set[_c.Handle] = set()
        self._lock = threading.Lock()

    def add(self, used: Iterable[_c.Handle]) -> None:
        """Keeps what a launch uses that has just been enqueued."""
        with self._lock:
            self._used.update(used)

    @contextlib.contextmanager
    def ending(self) -> Iterator[Callable[[], None]]:
        """Around a look at the launches so far, which calls the result if all of them have ended."""
        with self._lock:
            before, self._used = self._used, set()
        try:
            yield before.clear
        finally:
            self.add(before)

    def failure_of_ended(self, done: Callable[[], bool]) -> errors.TandemError | None:
        """Lets go of much that is kept, if the launches have ended. The failure that the look has met."""
        if len(self._used) >= MANY:
            try:
                done()
            except errors.TandemError as error:
                return error
        return None

    def __del__(self) -> None:
        if not self._used or not self._plan.value:
            return
        if _endings.finalizing():  # Thread.start() waits for ever for a thread that never runs (Python 3.11)
            for handle in (self._plan, *self._used):
                handle.forget()
            return
        if os.getpid() != self._process:
            return
        # Nobody waits for these launches any more, and a garbage collection must not.
        threading.Thread(target=_wait, args=(self._plan, self._used), daemon=True).start()


def _wait(plan: _c.Handle, used: set[_c.Handle]) -> None:
    """Keeps both until the plan's launches have ended."""
    library = _c.library()
    with contextlib.suppress(errors.TandemError):  # whose failure it is, nobody asks any more
        library.wait_in_slices(None, lambda wait: library.plan_wait(plan.value, wait))
    used.clear()
