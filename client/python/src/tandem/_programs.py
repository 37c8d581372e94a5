"""The programs that the wheel carries, as console scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import _c, _places

# Each says where tandemd's files lie, or that it does not serve.
_SAY_WHERE = (
    "--runtime-dir",
    "--state-dir",
    "--embedded",
    "--config",
    "--check-config",
    "--print-config",
    "--print-default-config",
    "--help",
    "-h",
    "--version",
)


def _run(name: str, *given: str, env: dict[str, str] | None = None) -> NoReturn:
    path = _c.bundle_folder() / "bin" / name
    if not path.exists():
        sys.exit(f"{name}: this installation of Tandem has no {path}; use the programs of your build folder")
    os.execve(path, [name, *given, *sys.argv[1:]], {**os.environ, **(env or {})})


def own_folders(arguments: Sequence[str]) -> list[str]:
    """The options with which tandemd runs without root, in a folder of the user's own; none where the arguments or root say where.

    SystemExit where another user has made that folder.
    """
    if os.getuid() == 0 or any(argument.split("=")[0] in _SAY_WHERE for argument in arguments):
        return []
    folder = _places.user_folders()[0]
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _places.is_ours(folder):
        sys.exit(f"tandemd: {folder} is not yours: give --runtime-dir and --state-dir")
    options = ["--runtime-dir", str(folder / "run"), "--state-dir", str(folder / "state")]
    if not any(argument.split("=")[0] == "--socket-group" for argument in arguments):
        options += ["--socket-group", ""]
    return options


def tandemd() -> NoReturn:
    """The node's daemon. Without root, and without a word where, it serves its user from a folder of the user's own."""
    _run("tandemd", *own_folders(sys.argv[1:]))


def engine() -> NoReturn:
    """The engine of one GPU; started by tandemd."""
    _run("tandem-engine")


def tandemctl() -> NoReturn:
    """The operator's tool, for the daemon that the package's clients find."""
    _run("tandemctl", env={"TANDEM_RUNTIME_DIR": _places.runtime_dir()})
