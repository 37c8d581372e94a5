"""A session with the node's daemon, without what is made in it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from . import _c, errors
from ._usage import MemoryUsage, read_usage
from .enums import EventKind
from .streams import Stream

__all__ = ["Event", "Session", "cuda_device_uuid"]

_LAUNCHES_END_WITHIN = 1.0  # seconds; of a program that has failed


@dataclass(frozen=True)
class Event:
    """Something that happened to the session, its groups or the daemon. `error` is None where nothing failed."""

    kind: EventKind
    group_id: int
    rank: int
    error: errors.TandemError | None


class Session:
    """What groups, memory and plans need of the client that they came from."""

    def __init__(self, handle: int) -> None:
        library = _c.library()
        self._handle = _c.Handle(handle, library.client_free)
        self._callback: object = None
        self._stream: Stream | None = None
        self._lock = threading.Lock()
        self._ordinals: dict[str, int] = {}
        self.session_id: int = library.client_session_id(handle)
        self.backend: str = library.client_backend(handle).decode()
        self.daemon_version: str = library.client_daemon_version(handle).decode()
        self.gpus: tuple[str, ...] = tuple(
            library.client_gpu_uuid(handle, index).decode() for index in range(library.client_gpu_count(handle))
        )

    def _open(self) -> int:
        if not self._handle.value:
            raise ValueError("this client has been closed")
        return self._handle.value

    def check(self) -> None:
        """Returns if the daemon is reachable and the session lives; else raises why not."""
        library = _c.library()
        library.raise_status(library.client_check(self._open()))

    def used_memory(self) -> MemoryUsage:
        """What this process holds of the client's memory: for all its groups and for none. Asks no daemon.

        A segment that groups share counts once, so that this may be less than the groups' sum."""
        return read_usage(_c.library().client_memory, self._open())

    def on_event(self, callback: Callable[[Event], None] | None) -> None:
        """Calls `callback` from a thread of the library, one event at a time. It must not block. None: no callback."""
        library = _c.library()

        def forward(_user: int, kind: int, group_id: int, rank: int, status: int) -> None:
            if callback is not None and kind in EventKind._value2member_map_:  # a newer library has more
                error = library.take(status, free=False) if status else None
                callback(Event(EventKind(kind), group_id, rank, error))

        function = _c.EventCallback() if callback is None else _c.EventCallback(forward)
        library.client_on_event(self._open(), function, None)
        self._callback = function  # the former one lives until here
        if callback is not None:
            _listening[self] = os.getpid()

    def suspend(self, keep: bool = False, deadline: float | None = 30) -> None:
        """Suspends all groups of the client, as Group.suspend() each. Nothing where all sleep.

        All ranks of all groups call it, whatever groups each of them has, and it waits for them. deadline: seconds for all groups
        together. An error is that of the first group that does not sleep, and names it. The groups that this call has put to sleep
        are woken up, which takes as long as the deadline again at most; one sleeps on, and is named, where a rank of it has
        suspended all of its own groups. Then all ranks call resume().
        """
        library = _c.library()
        library.wait(library.client_suspend, self._open(), int(keep), _c.milliseconds(deadline))

    def resume(self, deadline: float | None = 30) -> None:
        """Resumes all groups of the client, as Group.resume() each. Nothing where all are awake.

        All ranks call it, as suspend(). An error is that of the first group that does not wake up, and names all that sleep on; the
        others are awake. The call may be made again.
        """
        library = _c.library()
        library.wait(library.client_resume, self._open(), _c.milliseconds(deadline))

    def suspend_asked(self, step: int | None = None) -> bool:
        """Whether an operator asks the job to give up its GPU memory; then call suspend_as_asked() before the step.

        Call it between two steps of the program, on every rank: a step is a part of the work that all ranks of the job begin and
        end alike. `tandemctl suspend` asks jobs all of whose processes have made the first call. step: the number of the step that
        begins, the same on all ranks, larger each time; None: the calls of this client are counted, for jobs whose processes make
        the first call at the same step. Waits for no rank.
        """
        library, asked = _c.library(), _c._int()
        library.raise_status(library.client_suspend_asked(self._open(), -1 if step is None else step, ctypes.byref(asked)))
        return bool(asked.value)

    def suspend_as_asked(self, keep: bool = True) -> bool:
        """Suspends all groups of the client where all ranks are at the agreed step, and resumes them when an operator says so.

        Before it, kernels of the program's own that use memory of the groups have ended. keep: as Group.suspend's. Returns whether
        the groups have slept: not where the agreed step comes later, or the operator has given up. RankLost: a group has broken
        meanwhile.
        """
        library, slept = _c.library(), _c._int()
        library.wait(library.client_suspend_as_asked, self._open(), int(keep), ctypes.byref(slept))
        return bool(slept.value)

    def suspend_if_asked(self, step: int | None = None, *, keep: bool = True) -> bool:
        """suspend_asked(), and then suspend_as_asked(): one line between two steps. Returns whether the groups have slept."""
        return self.suspend_asked(step) and self.suspend_as_asked(keep)

    def begin_checkpoint(self, deadline: float = 120.0) -> None:
        """Before a checkpoint of the process's memory, on the host backend: gives up the connections to the daemon.

        All groups sleep. A process that is restored from the checkpoint, or this one, takes the session back by end_checkpoint() or
        Group.resume(). In between, no handle of the client is used or dropped. Nothing the second time. FailedPrecondition: reason
        NOT_SUSPENDED, or HAS_CHANNELS for graphs with launches that engines run. Unimplemented: the CUDA backend.
        """
        library = _c.library()
        library.raise_status(library.client_begin_checkpoint(self._open(), _c.milliseconds(deadline)))

    def end_checkpoint(self, deadline: float = 120.0) -> None:
        """Takes the session back. Nothing where the process has it; may be called again after an error.

        Unavailable: no daemon answers. Unauthenticated, FailedPrecondition: the session has ended, or another process has restored
        it.
        """
        library = _c.library()
        library.raise_status(library.client_end_checkpoint(self._open(), _c.milliseconds(deadline)))

    def host_stream(self, stream: Stream | int | None = None) -> Stream:
        """`stream` if it is a host stream; for None the client's own stream. TypeError for a cudaStream_t."""
        if isinstance(stream, Stream):
            return stream
        if stream is not None:
            raise TypeError("the host backend takes a tandem.Stream, not a cudaStream_t")
        with self._lock:
            if self._stream is None:
                self._stream = Stream()
            return self._stream

    def cuda_ordinal(self, gpu_uuid: str) -> int:
        """This process's number of the CUDA device that the daemon names so; NotFound if the process does not see it."""
        gpu_uuid, _, _share = gpu_uuid.partition("#")
        if gpu_uuid not in self._ordinals:
            for ordinal in range(64):
                try:
                    self._ordinals.setdefault(cuda_device_uuid(ordinal), ordinal)
                except errors.TandemError:
                    break
        if gpu_uuid not in self._ordinals:
            raise errors.NotFound(f"this process sees no CUDA device {gpu_uuid}")
        return self._ordinals[gpu_uuid]

    def close(self) -> None:
        """Ends the session cleanly; handles raise SessionLost or Unavailable afterwards. Does nothing the second time."""
        if self._handle.value:
            library = _c.library()
            library.raise_status(library.client_detach(self._handle.value))
            self._handle.close()

    def _break_off(self) -> None:
        """The same where the program has failed: the session's launches may wait for ranks that never come, and end with it."""
        if self._handle.value:
            library = _c.library()
            with contextlib.suppress(errors.TandemError):
                library.wait_within(_LAUNCHES_END_WITHIN, library.client_detach, self._handle.value)
            self._handle.close()


# Sessions with a callback, by weak reference, and the process that has set it.
_listening: weakref.WeakKeyDictionary[Session, int] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_listening() -> None:
    """No callback comes behind this: a thread that then enters Python ends, in the middle of the library (Python 3.11)."""
    for session, process in list(_listening.items()):
        if process == os.getpid() and session._handle.value:
            session.on_event(None)


def cuda_device_uuid(ordinal: int) -> str:
    """The UUID of this process's CUDA device `ordinal`, as the daemon names it."""
    library, text = _c.library(), ctypes.create_string_buffer(96)
    library.raise_status(library.cuda_device_uuid(ordinal, text, len(text)))
    return text.value.decode()
