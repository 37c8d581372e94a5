"""Where the daemon's sockets lie: the system's daemon, or one that a user without root has started from the wheel."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

SYSTEM = "/run/tandem"
_SOCKET = "lease.sock"


def user_folders() -> list[Path]:
    """The folders that may be the user's own, the one to choose first."""
    folders = [Path(tempfile.gettempdir()) / f"tandem-{os.getuid()}"]
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(session) and os.access(session, os.W_OK | os.X_OK):
        folders.insert(0, Path(session) / "tandem")
    return folders


def is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user, and no link. In a shared place anybody may have made one of that name."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def candidates() -> list[str]:
    """Where a daemon may be, the system's first; without regard to $TANDEM_RUNTIME_DIR. Sockets there may be of a daemon that was
    killed."""
    own = [folder / "run" for folder in user_folders() if is_ours(folder)]
    return [SYSTEM, *(str(folder) for folder in own if (folder / _SOCKET).exists())]


def runtime_dir() -> str:
    """$TANDEM_RUNTIME_DIR; else the system's daemon, if there is one; else the user's own, if there is one."""
    given = os.environ.get("TANDEM_RUNTIME_DIR", "")
    if given:
        return given
    system, *own = candidates()
    return own[0] if own and not os.path.exists(os.path.join(system, _SOCKET)) else system
