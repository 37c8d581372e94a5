"""Streams and graphs of the host backend."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from types import TracebackType

from . import _c

__all__ = ["Graph", "Stream"]


class Stream:
    """An in-order queue of work for an emulated GPU: the host backend's counterpart of a CUDA stream."""

    def __init__(self) -> None:
        library, handle = _c.library(), _c.Pointer()
        library.raise_status(library.stream_create(ctypes.byref(handle)))
        self._handle = _c.Handle(handle.value, library.stream_free)
        self._captured: set[_c.Handle] | None = None  # memory of the launches of a capture

    def _use(self, used: Iterable[_c.Handle]) -> None:
        if self._captured is not None:
            self._captured.update(used)

    def _open(self) -> int:
        if not self._handle.value:
            raise ValueError("this stream has been closed")
        return self._handle.value

    def synchronize(self, timeout: float | None = 600) -> None:
        """Waits for all work that was enqueued so far. DeadlineExceeded after `timeout` seconds."""
        library = _c.library()
        library.wait_in_slices(timeout, lambda wait: library.stream_synchronize(self._open(), wait))

    def begin_capture(self) -> None:
        """From here to end_capture() the stream's calls are recorded and nothing runs."""
        library = _c.library()
        library.raise_status(library.stream_begin_capture(self._open()))
        self._captured = set()

    def end_capture(self) -> Graph:
        """The executable graph of what was recorded."""
        library, graph = _c.library(), _c.Pointer()
        captured, self._captured = self._captured, None
        library.raise_status(library.stream_end_capture(self._open(), ctypes.byref(graph)))
        return Graph(graph.value or 0, captured or ())

    def close(self) -> None:
        """Frees the stream without waiting for its work, which runs on."""
        self._handle.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Graph:
    """Launches that were captured from a host stream; replayed any number of times."""

    def __init__(self, handle: int, used: Iterable[_c.Handle] = ()) -> None:
        self._used = used  # the launches' memory
        self._handle = _c.Handle(handle, _c.library().graph_free)

    def launch(self, stream: Stream) -> None:
        """Enqueues one replay."""
        library = _c.library()
        if not self._handle.value:
            raise ValueError("this graph has been closed")
        library.raise_status(library.graph_launch(self._handle.value, stream._open()))

    def close(self) -> None:
        """Frees the graph; a replay that is under way ends first."""
        self._handle.close()
        self._used = ()

    def __del__(self) -> None:
        self.close()
