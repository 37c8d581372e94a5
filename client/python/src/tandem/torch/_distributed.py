"""libtandem_c10d_MAJOR_MINOR.so by ctypes: the collectives of torch.distributed (client/torch/distributed/torch_distributed.h).

It uses torch's C++ interface, so each version of torch has a library of its own. Knows nothing of the rest of this package.
"""

from __future__ import annotations

import ctypes
import logging
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from .. import _c

_log = logging.getLogger("tandem.torch")

VERSION = 1


class Decline(IntEnum):
    """Which calls of torch.distributed go to the process group's own backend: this one, all of its kind, or the group's."""

    ONCE = 1
    KIND = 2
    GROUP = 3


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "version": (ctypes.c_int, []),
    "install": (ctypes.c_int, []),
    "uninstall": (None, []),
    "decline": (ctypes.c_int, [ctypes.c_int, ctypes.c_char_p]),
    "inside": (ctypes.c_int, []),
    "tallies": (ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]),
}


class Library:
    """The library with typed functions: `library.install` is `tandem_c10d_install`."""

    def __init__(self, path: str) -> None:
        handle = ctypes.CDLL(path)
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(handle, "tandem_c10d_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        if self.version() != VERSION:
            raise OSError(f"{path} has version {self.version()} of its functions, this package needs {VERSION}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"tandem_c10d_{name} is not declared in {__name__}")


library: Library | None = None


def file_name() -> str:
    """The library's name for the torch of this process."""
    major, minor = torch.__version__.split(".")[:2]
    return f"libtandem_c10d_{major}_{minor}.so"


def load() -> Library | None:
    """Loads the library on first use. None: there is none for this torch, and the log says so."""
    global library
    if library is not None:
        return library
    path = Path(_c.library_path()).with_name(file_name())
    try:
        library = Library(str(path))
    except OSError as error:
        _log.warning("collectives of torch.distributed stay with their backends: torch %s needs %s", torch.__version__, error)
    return library


def decline(how: Decline, reason: str) -> bool:
    """Leaves the call of torch.distributed that this thread is in to its backend. False: the thread is in none."""
    return library is not None and bool(library.decline(how, reason.encode()))


def inside() -> bool:
    """Whether this thread is in a call of torch.distributed."""
    return library is not None and bool(library.inside())


def tallies() -> list[tuple[str, int, int, str]]:
    """(op, calls, bytes, reason) of the collectives called; the reason is empty where Tandem has run them."""
    if library is None:
        return []
    size = library.tallies(None, 0)
    text = ctypes.create_string_buffer(size + 4096)
    size = min(library.tallies(text, len(text)), len(text))
    rows = [line.split("\t") for line in text.raw[:size].decode(errors="replace").splitlines()]
    return [(op, int(calls), int(count), reason) for op, calls, count, reason in rows]
