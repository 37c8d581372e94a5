"""A tandemd of one job, for nodes where none answers: started by a rank, in a private directory, ending with the job.

Directories of one user lie side by side, `job-<job>-<backend>-<number>`. In each, `alive` is locked by its tandemd from before the
program begins until its last process has ended. So who finds the lock free finds a leftover, whoever was killed and when. All
changes among the directories are made under one lock of the user's, `jobs.lock`, which is held for milliseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import _c, _places, client, errors
from .client import Client

__all__ = ["MOST_GPUS", "Start", "is_alive", "is_enabled", "obtain", "program"]

MOST_GPUS = 8  # of one tandemd
_PREFIX = "job-"
_ALIVE, _LOG, _RUN = "alive", "tandemd.log", "run"
_PAUSE = 0.02
_LONGEST_BASE = 50  # a socket's path has 107 bytes
# Of a service that runs the ranks: they are not tandemd's to notify.
_SERVICE_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")

_children: list[subprocess.Popen[bytes]] = []  # kept, so that each is waited for once it has ended


@dataclass(frozen=True)
class Start:
    """What a job's daemon is started for. job: the job's name, equal on all of its ranks. gpus: of the host backend. visible: its
    CUDA_VISIBLE_DEVICES, "" for all GPUs; None: this process's own. cpus: those of all ranks, since a rank's own may be few."""

    job: str
    backend: str
    gpus: int
    visible: str | None = None
    cpus: Collection[int] = ()

    @property
    def prefix(self) -> str:
        """How its directories' names begin."""
        return f"{_PREFIX}{self.job}-{self.backend}-"


def is_enabled() -> bool:
    """Whether the user lets ranks start a daemon."""
    return os.environ.get("TANDEM_EMBEDDED", "1") != "0"


def program() -> Path | None:
    """The tandemd of the client library that is in use: the wheel's, or the one of the build folder that $TANDEM_LIBRARY is in."""
    folder = Path(_c.library_path()).resolve().parent.parent if os.environ.get("TANDEM_LIBRARY") else _c.bundle_folder()
    path = folder / "bin" / "tandemd"
    return path if os.access(path, os.X_OK) else None


def obtain(start: Start, patience: float) -> tuple[str, Client]:
    """The runtime directory of the job's own daemon, which is started if it does not run, and a session with it.

    patience: seconds in which it must answer. Raises TandemError or OSError, with the reason.
    """
    path, end = program(), time.monotonic() + patience
    if path is None:
        raise errors.NotFound("this installation has no tandemd to start")
    base = _base()
    while True:
        with _locked(base / "jobs.lock", end):
            folder, child = _running(base, start.prefix), None
            if folder is None:
                _remove_leftovers(base)
                folder, child = _start(path, base, start)
        session = _await(folder, end)
        if session is not None:
            return str(folder / _RUN), session
        if child is not None and not is_alive(folder):
            raise errors.Unavailable(f"the job's own tandemd has ended: {_last_words(folder)}")
        if time.monotonic() >= end:
            if child is not None:
                child.kill()
            raise errors.DeadlineExceeded(f"the job's own tandemd in {folder} has not answered within {patience:g} s")


def is_alive(folder: Path) -> bool:
    """Whether a tandemd runs in the directory, or begins or ends there."""
    try:
        descriptor = os.open(folder / _ALIVE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _base() -> Path:
    """The folder of this user's directories. Temporary ones go first: systemd removes XDG_RUNTIME_DIR at the user's logout, also
    while jobs run."""
    own = f"tandem-{os.getuid()}"
    folders = [*reversed(_places.user_folders()), Path("/tmp", own), Path("/dev/shm", own)]
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
        if len(os.fsencode(folder)) <= _LONGEST_BASE and _places.is_ours(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise errors.FailedPrecondition("none of these is a writable folder of yours: " + ", ".join(map(str, folders)))


@contextlib.contextmanager
def _locked(path: Path, end: float) -> Iterator[None]:
    """Holds the lock of the file, which stays. DeadlineExceeded where another process does not release it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise errors.DeadlineExceeded(f"another process holds {path}") from None
                time.sleep(_PAUSE)
        yield
    finally:
        # Closing would not do: a child that another thread has forked meanwhile has the lock, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _running(base: Path, prefix: str) -> Path | None:
    return next((folder for folder in sorted(base.glob(prefix + "*")) if is_alive(folder)), None)


def _remove_leftovers(base: Path) -> None:
    """Removes the directories of daemons that were killed."""
    for folder in base.glob(_PREFIX + "*"):
        if _places.is_ours(folder) and not is_alive(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _start(path: Path, base: Path, start: Start) -> tuple[Path, subprocess.Popen[bytes]]:
    """Starts tandemd in a new directory."""
    folder = base / (start.prefix + secrets.token_hex(3))
    folder.mkdir(mode=0o700)
    command = [str(path), "--embedded", str(folder), "--backend", start.backend]
    if start.backend == "host":
        command += ["--emulated-gpus", str(start.gpus)]
    environment = {name: value for name, value in os.environ.items() if name not in _SERVICE_VARIABLES}
    if start.visible is not None:
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.update({"CUDA_VISIBLE_DEVICES": start.visible} if start.visible else {})
    alive = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(folder / _LOG, "ab") as log:
            # In a new session, since Ctrl-C in a terminal is for the ranks.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                pass_fds=(alive,),
                start_new_session=True,
            )
    finally:
        os.close(alive)
    if start.cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(child.pid, start.cpus)
    _children[:] = [one for one in _children if one.poll() is None] + [child]
    return folder, child


def _await(folder: Path, end: float) -> Client | None:
    """A session with the daemon that begins there. None once it has ended, or does not answer in time."""
    while True:
        try:
            return client.connect(folder / _RUN, timeout=max(0.1, end - time.monotonic()))
        except errors.Unavailable:  # it begins, or ends
            if time.monotonic() >= end or not is_alive(folder):
                return None
        time.sleep(_PAUSE)


def _last_words(folder: Path) -> str:
    try:
        lines = (folder / _LOG).read_text(errors="replace").split("\n")
    except OSError:
        return "without a log"
    return next((line for line in reversed(lines) if line.strip()), "without a word")
