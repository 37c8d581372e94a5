"""Versions of the library that this package has loaded."""

from __future__ import annotations

from typing import NamedTuple

from . import _c

__all__ = ["Version", "version"]


class Version(NamedTuple):
    """library: libtandem's, with its commit. protocol: the one it speaks with tandemd, which also speaks the one before.
    interface: of its C functions."""

    library: str
    protocol: int
    interface: int


def version() -> Version:
    """The versions of libtandem. Needs no daemon. ImportError: it cannot be loaded."""
    library = _c.library()
    return Version(library.version().decode(), library.protocol_version(), library.abi_version())
