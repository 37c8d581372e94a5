"""libtandem_c10d_MAJOR_MINOR.so by ctypes: the collectives of torch.distributed (client/torch/distributed/torch_distributed.h).

It uses torch's C++ interface, so each version of torch has a library of its own.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from .. import _c
from . import _native
from ._private import around_coalescing, around_failures

_log = logging.getLogger("tandem.torch")

VERSION = 2


class Decline(IntEnum):
    """Which calls of torch.distributed go to the process group's own backend: this one, all of its kind, or the group's."""

    ONCE = 1
    KIND = 2
    GROUP = 3


# int takes(const char* group, int on_cpu)
_Takes = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "version": (ctypes.c_int, []),
    "install": (ctypes.c_int, [_Takes]),
    "uninstall": (None, []),
    "decline": (ctypes.c_int, [ctypes.c_int, ctypes.c_char_p]),
    "coalescing": (None, [ctypes.c_int]),
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
unavailable = ""  # why the library could not be loaded; "": it is, or has not been asked for


def _torch_version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def file_name() -> str:
    """The library's name for the torch of this process."""
    major, minor = _torch_version()
    return f"libtandem_c10d_{major}_{minor}.so"


def _why_missing(path: Path) -> str:
    """Why there is no library for this torch, and what helps."""
    major, minor = _torch_version()
    # The system's own library has no folder here: the loader looks for it.
    others = path.parent.glob("libtandem_c10d_*.so") if len(path.parts) > 1 else ()
    names = (re.fullmatch(r"libtandem_c10d_(\d+)_(\d+)\.so", other.name) for other in others)
    served = sorted((int(found[1]), int(found[2])) for found in names if found)
    has = "; its eager collectives are for torch " + ", ".join(f"{one}.{other}" for one, other in served) if served else ""
    cure = "install one of these, or a Tandem" if served else "install a Tandem"
    return f"this Tandem has no {path.name} for torch {torch.__version__}{has}: {cure} that is built for torch {major}.{minor}"


def load() -> Library | None:
    """Loads the library on first use. None: there is none for this torch, and the log and `unavailable` say so."""
    global library, unavailable
    if library is not None:
        return library
    path = Path(_c.library_path()).with_name(file_name())
    try:
        library, unavailable = Library(str(path)), ""
    except OSError as error:
        unavailable = f"torch {torch.__version__} needs {error}" if path.exists() else _why_missing(path)
        _log.warning("collectives of torch.distributed stay with their backends: %s", unavailable)
    return library


_all_groups = False  # install() is in force
_takes: Any = None  # which groups have the backend "tandem"; None: none has been made


def _take() -> None:
    assert library is not None
    if not _all_groups and _takes is None:
        library.uninstall()
        return
    if not library.install(_Takes() if _all_groups else _takes):
        raise RuntimeError("torch refuses kernels for torch.ops.c10d")
    around_coalescing(library.coalescing)
    around_failures(_native.raise_interrupt)


def take_all(on: bool) -> None:
    """Takes the collectives of all groups from now on, or of those alone that have the backend "tandem"."""
    global _all_groups
    if on:
        load()
    if library is not None:
        _all_groups = on
        _take()


def take_backend(takes: Callable[[str, bool], bool]) -> None:
    """Takes the collectives of groups that have the backend "tandem". takes(group's name, on the CPU): whether one has it."""
    global _takes
    if load() is None or _takes is not None:
        return

    def asked(name: bytes, on_cpu: int) -> int:
        try:
            return int(takes(name.decode(), bool(on_cpu)))
        except Exception:  # a group that torch does not know
            return 0

    _takes = _Takes(asked)  # kept: the library has it from now on
    _take()


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
