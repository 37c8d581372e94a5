"""Holds for torch's CUDA graphs, so that their replays run ahead of the GPU.

A graph that keeps its launches itself does so by a user object. CUDA enqueues no replay of such a graph before the replay before it
has ended. So `torch.cuda.CUDAGraph` keeps them: from its capture's begin to its reset or its end. Captures by other code keep their
launches in the graph.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from .. import _c, errors

__all__ = ["install"]

_HOLD = "_tandem_hold"
# Holds of graphs whose CUDA handle the program has asked for. They stay, since the use of a handle has no known end.
_handed_out: list[_c.Handle] = []


def _begin() -> _c.Handle | None:
    """A hold for the capture of the current stream."""
    library, hold = _c.library(), _c.Pointer()
    try:
        library.raise_status(library.capture_hold_begin(torch.cuda.current_stream().cuda_stream, ctypes.byref(hold)))
    except errors.TandemError:
        return None  # the graph keeps its launches
    return _c.Handle(hold.value, library.capture_hold_free)


def _wrap(name: str, after: Callable[[Any], None]) -> None:
    """Calls `after` with the graph behind each call of the method."""
    method = getattr(torch.cuda.CUDAGraph, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def wrapper(self: Any, *given: Any, **named: Any) -> Any:
        result = method(self, *given, **named)
        after(self)
        return result

    setattr(torch.cuda.CUDAGraph, name, wrapper)


def _held(graph: Any) -> None:
    setattr(graph, _HOLD, _begin())


def _dropped(graph: Any) -> None:
    graph.__dict__.pop(_HOLD, None)


def _handed(graph: Any) -> None:
    hold = graph.__dict__.get(_HOLD)
    if hold is not None and hold not in _handed_out:
        _handed_out.append(hold)


@functools.cache
def install() -> None:
    """Gives graphs of captures that begin from now on a hold. Once a process; later calls do nothing."""
    _wrap("capture_begin", _held)
    _wrap("reset", _dropped)
    _wrap("raw_cuda_graph", _handed)
    _wrap("raw_cuda_graph_exec", _handed)
