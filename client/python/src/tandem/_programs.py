"""The programs that the wheel carries, as console scripts."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from . import _c


def _run(name: str) -> NoReturn:
    path = _c.bundle_folder() / "bin" / name
    if not path.exists():
        sys.exit(f"{name}: this installation of Tandem has no {path}; use the programs of your build folder")
    os.execv(path, [name, *sys.argv[1:]])


def tandemd() -> NoReturn:
    """The node's daemon."""
    _run("tandemd")


def engine() -> NoReturn:
    """The engine of one GPU; started by tandemd."""
    _run("tandem-engine")


def tandemctl() -> NoReturn:
    """The operator's tool."""
    _run("tandemctl")
