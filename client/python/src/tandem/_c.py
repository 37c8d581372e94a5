"""The C interface (tandem/tandem.h) by ctypes. All that depends on the layout of the library's structures stands here."""

from __future__ import annotations

import _thread
import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import _endings, errors
from .enums import Code

ABI_VERSION = 3
YEAR_MS = 365 * 24 * 3600 * 1000  # the longest deadline
MAX_RANKS = 8
SLICE_MS = 200  # the longest wait in the library where signals are to be seen meanwhile
_CANCELLED_WITHIN = 5.0  # seconds

Pointer = ctypes.c_void_p
_int, _u32, _u64, _i64 = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
_size, _text = ctypes.c_size_t, ctypes.c_char_p
_extents = ctypes.POINTER(ctypes.c_int64)
_out = ctypes.POINTER(Pointer)


class JoinOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("job_key", _text),
        ("job_key_bytes", _size),
        ("name", _text),
        ("world_size", _int),
        ("rank", _int),
        ("gpu_uuid", _text),
        ("deadline_ms", _i64),
        ("launch_deadline_ms", _i64),
        ("option_names", ctypes.POINTER(_text)),
        ("option_values", ctypes.POINTER(_text)),
        ("option_count", _size),
        ("on_slow_placement", _int),
        ("reserved", _int),
    ]


class Operand(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("role", _int),
        ("dtype", _int),
        ("shape", _extents),
        ("strides", _extents),
        ("dims", _size),
        ("symmetric", _int),
        ("alias_of", _int),
    ]


class Transfer(ctypes.Structure):
    _fields_ = [("send", _int), ("peer", _int), ("slot", _int)]


class Request(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("op", _int),
        ("operands", ctypes.POINTER(Operand)),
        ("operand_count", _size),
        ("dim", _int),
        ("reduce_op", _int),
        ("root", _int),
        ("wire", _int),
        ("fast_accumulation", _int),
        ("low_contention", _int),
        ("chunk_pivot", _int),
        ("transfers", ctypes.POINTER(Transfer)),
        ("transfer_count", _size),
        ("algorithm", _int),
        ("steps", _int),
        ("lanes", _int),
        ("on_unfused", _int),
        ("restartable", _int),
        ("placement", _int),
        ("autotune", _int),
        ("norm_epsilon", ctypes.c_float),
        ("max_rows", _i64),
        ("determinism", _int),
        ("rounding", _int),
    ]


class LaunchOptions(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("deadline_ms", _i64), ("tag", _text), ("rows", _i64)]


class Binding(ctypes.Structure):
    _fields_ = [("memory", Pointer), ("offset", _u64), ("pointer", Pointer)]


class MemoryUsage(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("symmetric_bytes", _u64),
        ("workspace_bytes", _u64),
        ("signal_bytes", _u64),
        ("segment_bytes", _u64),
        ("peer_bytes", _u64),
        ("registered_bytes", _u64),
        ("imported_bytes", _u64),
        ("host_bytes", _u64),
    ]


EventCallback = ctypes.CFUNCTYPE(None, Pointer, _int, _u64, _int, Pointer)
_bindings = ctypes.POINTER(Binding)
_options = ctypes.POINTER(LaunchOptions)

# name: (result, arguments). A result of None is `void`; STATUS is a tandem_status*, which `call` turns into an exception.
STATUS = Pointer
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "abi_version": (_int, []),
    "version": (_text, []),
    "protocol_version": (_int, []),
    "status_code": (_int, [Pointer]),
    "status_message": (_text, [Pointer]),
    "status_reason": (_text, [Pointer]),
    "status_who": (_text, [Pointer]),
    "status_field": (_text, [Pointer]),
    "status_started": (_int, [Pointer]),
    "status_ranks": (_size, [Pointer, ctypes.POINTER(_int), _size]),
    "status_pid": (_i64, [Pointer]),
    "status_limit": (_i64, [Pointer]),
    "status_usage": (_i64, [Pointer]),
    "status_free": (None, [Pointer]),
    "connect": (STATUS, [_text, _text, _i64, _out]),
    "client_free": (None, [Pointer]),
    "client_session_id": (_u64, [Pointer]),
    "client_backend": (_text, [Pointer]),
    "client_daemon_version": (_text, [Pointer]),
    "client_gpu_count": (_int, [Pointer]),
    "client_gpu_uuid": (_text, [Pointer, _int]),
    "cuda_device_uuid": (STATUS, [_int, _text, _size]),
    "client_check": (STATUS, [Pointer]),
    "client_detach": (STATUS, [Pointer]),
    "client_on_event": (None, [Pointer, EventCallback, Pointer]),
    "join_options_init": (None, [ctypes.POINTER(JoinOptions), _size]),
    "join_group": (STATUS, [Pointer, ctypes.POINTER(JoinOptions), _out]),
    "group_free": (None, [Pointer]),
    "group_id": (_u64, [Pointer]),
    "group_rank": (_int, [Pointer]),
    "group_world_size": (_int, [Pointer]),
    "group_incarnation": (_u64, [Pointer]),
    "group_gpu_uuid": (_text, [Pointer]),
    "group_topology_class": (_text, [Pointer]),
    "group_links": (_int, [Pointer, _int, _int]),
    "group_leave": (STATUS, [Pointer, _i64]),
    "group_renew": (STATUS, [Pointer, _i64]),
    "group_suspend": (STATUS, [Pointer, _int, _i64]),
    "group_resume": (STATUS, [Pointer, _i64]),
    "client_suspend": (STATUS, [Pointer, _int, _i64]),
    "client_resume": (STATUS, [Pointer, _i64]),
    "client_suspend_asked": (STATUS, [Pointer, _i64, ctypes.POINTER(_int)]),
    "client_suspend_as_asked": (STATUS, [Pointer, _int, ctypes.POINTER(_int)]),
    "client_begin_checkpoint": (STATUS, [Pointer, _i64]),
    "client_end_checkpoint": (STATUS, [Pointer, _i64]),
    "allocate": (STATUS, [Pointer, _extents, _size, _int, _text, _i64, _out]),
    "empty": (STATUS, [Pointer, _extents, _size, _int, _text, _text, ctypes.POINTER(_u64)]),
    "rendezvous": (STATUS, [Pointer, _u64, Pointer, _i64, _out]),
    "free_tensor": (STATUS, [Pointer, _u64]),
    "register_fd": (STATUS, [Pointer, _int, _size, _text, _out]),
    "allocate_registered": (STATUS, [Pointer, _size, _text, _out]),
    "register_cuda": (STATUS, [Pointer, Pointer, _size, _out]),
    "memory_free": (None, [Pointer]),
    "dlpack_delete": (None, [Pointer]),
    "memory_data": (Pointer, [Pointer]),
    "memory_bytes": (_size, [Pointer]),
    "memory_registration_id": (_u64, [Pointer]),
    "memory_usage_init": (None, [ctypes.POINTER(MemoryUsage), _size]),
    "client_memory": (STATUS, [Pointer, ctypes.POINTER(MemoryUsage)]),
    "group_memory": (STATUS, [Pointer, ctypes.POINTER(MemoryUsage)]),
    "tensor_get_buffer": (STATUS, [Pointer, _int, _extents, _size, _int, _size, _out]),
    "tensor_signal_pad": (STATUS, [Pointer, _int, _out, ctypes.POINTER(_size)]),
    "tensor_channels": (_int, [Pointer]),
    "tensor_put_signal": (STATUS, [Pointer, _int, _int, _i64]),
    "tensor_wait_signal": (STATUS, [Pointer, _int, _int, _i64]),
    "tensor_barrier": (STATUS, [Pointer, _int, _i64]),
    "tensor_memset32": (STATUS, [Pointer, Pointer, _int, _size, _u32, _size]),
    "tensor_memset32_cuda": (STATUS, [Pointer, Pointer, _int, _size, _u32, _size]),
    "operand_init": (None, [ctypes.POINTER(Operand), _size]),
    "request_init": (None, [ctypes.POINTER(Request), _size]),
    "prepare": (STATUS, [Pointer, _text, ctypes.POINTER(Request), _i64, _out]),
    "preview_plan": (STATUS, [Pointer, ctypes.POINTER(Request), _out]),
    "preview_free": (None, [Pointer]),
    "preview_json": (_text, [Pointer]),
    "plan_free": (None, [Pointer]),
    "plan_id": (_u64, [Pointer]),
    "plan_explanation": (_text, [Pointer]),
    "plan_json": (_text, [Pointer]),
    "plan_slots": (_size, [Pointer]),
    "plan_slot_bytes": (_u64, [Pointer, _size]),
    "launch_options_init": (None, [ctypes.POINTER(LaunchOptions), _size]),
    "launch_with_options": (STATUS, [Pointer, Pointer, _bindings, _size, _options]),
    "launch_cuda_with_options": (STATUS, [Pointer, Pointer, _bindings, _size, _options]),
    "launch_cuda_pointers_with_options": (STATUS, [Pointer, Pointer, ctypes.POINTER(Pointer), _size, _options]),
    "plan_wait": (STATUS, [Pointer, _i64]),
    "plan_query": (STATUS, [Pointer, ctypes.POINTER(_int)]),
    "plan_release": (STATUS, [Pointer]),
    "stream_create": (STATUS, [_out]),
    "stream_free": (None, [Pointer]),
    "stream_synchronize": (STATUS, [Pointer, _i64]),
    "stream_begin_capture": (STATUS, [Pointer]),
    "stream_end_capture": (STATUS, [Pointer, _out]),
    "graph_launch": (STATUS, [Pointer, Pointer]),
    "graph_free": (None, [Pointer]),
    "capture_hold_begin": (STATUS, [Pointer, _out]),
    "capture_hold_free": (None, [Pointer]),
    "cancellation_create": (STATUS, [_out]),
    "cancellation_free": (None, [Pointer]),
    "cancellation_use": (None, [Pointer]),
    "cancellation_cancel": (None, [Pointer]),
}


class Library:
    """libtandem.so with typed functions: `library.connect` is `tandem_connect`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = ctypes.CDLL(path)
        for name, (result, arguments) in _PROTOTYPES.items():
            try:
                function = getattr(self._handle, "tandem_" + name)
            except AttributeError:
                raise ImportError(f"{path} has no tandem_{name}: it is older than this package") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        found = self.abi_version()
        if found != ABI_VERSION:
            raise ImportError(f"{path} has version {found} of the C interface, this package needs {ABI_VERSION}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"tandem_{name} is not declared in {__name__}")

    def raise_status(self, status: int) -> None:
        """Raises the exception for a tandem_status* and frees it; returns for NULL."""
        if status:
            raise self.take(status)

    def wait(self, function: Any, *arguments: Any, made: Callable[[], None] | None = None) -> None:
        """A call that waits for other ranks; raises the exception for its status. On the main thread an exception of a signal's
        handler ends it at once. The rank may then make it again, unless it has succeeded nevertheless: then `made` is called
        before the exception is raised."""
        if threading.current_thread() is not threading.main_thread():
            self.raise_status(function(*arguments))
            return
        call = _Call(self, function, arguments)
        error = call.run()
        if error is None:
            self.raise_status(call.status)
            return
        if call.status:
            self.status_free(call.status)
        elif made is not None:
            made()
        raise error

    def wait_within(self, seconds: float, function: Any, *arguments: Any) -> None:
        """A call that waits for other ranks, and is cancelled after so many seconds; raises the exception for its status."""
        cancellation = Pointer()
        self.raise_status(self.cancellation_create(ctypes.byref(cancellation)))
        timer = threading.Timer(seconds, self.cancellation_cancel, (cancellation,))
        timer.daemon = True
        timer.start()
        self.cancellation_use(cancellation)
        try:
            self.raise_status(function(*arguments))
        finally:
            self.cancellation_use(None)
            timer.cancel()
            timer.join()
            self.cancellation_free(cancellation)

    def wait_in_slices(self, timeout: float | None, call: Callable[[int], int], own: str = "NOT_ENDED") -> None:
        """`call(deadline_ms)`, which waits and can be made again, until it ends otherwise than by its own deadline, or the timeout
        is over. Python sees signals between the calls. own: the reason of a call that its own deadline ends."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        left = milliseconds(timeout)
        while True:
            status = call(min(left, SLICE_MS))
            left = max(1, min(YEAR_MS, math.ceil(1000 * min(end - time.monotonic(), YEAR_MS / 1000))))
            if not status:
                return
            slice_over = self.status_code(status) == Code.DEADLINE_EXCEEDED and self.status_reason(status) == own.encode()
            if not slice_over or time.monotonic() >= end:
                self.raise_status(status)
            self.status_free(status)

    def take(self, status: int, *, free: bool = True) -> errors.TandemError:
        """The exception for a tandem_status* that is not NULL."""
        texts = (self.status_message, self.status_reason, self.status_who, self.status_field)
        message, reason, who, field = ((text(status) or b"").decode(errors="replace") for text in texts)
        code, started, pid = self.status_code(status), self.status_started(status), self.status_pid(status)
        numbers = (_int * MAX_RANKS)()
        ranks = tuple(numbers[: self.status_ranks(status, numbers, MAX_RANKS)])
        limit, usage = self.status_limit(status), self.status_usage(status)
        if free:
            self.status_free(status)
        return errors.make(
            code,
            message,
            reason=reason,
            who=who,
            field=field,
            ranks=ranks,
            pid=pid or None,
            started=None if started < 0 else bool(started),
            limit=limit,
            usage=usage,
        )


class _Call:
    """A call on a separate thread, so that the calling thread hears signals meanwhile."""

    def __init__(self, library: Library, function: Any, arguments: tuple[Any, ...]) -> None:
        self.status = 0
        self._library, self._function, self._arguments = library, function, arguments
        self._cancellation = Pointer()
        self._begun, self._done, self._given_up = False, False, False
        self._ended = threading.Lock()

    def _work(self) -> None:
        self._begun = True
        if self._given_up:
            return
        try:
            self._library.cancellation_use(self._cancellation)
            self.status = self._function(*self._arguments) or 0
            self._library.cancellation_use(None)
        finally:
            self._done = True  # an exception may come when the lock is taken, and before that is known
            self._ended.release()

    def run(self) -> BaseException | None:
        """Makes the call. Returns the exception that has broken off the wait for it; the call has ended all the same."""
        self._library.raise_status(self._library.cancellation_create(ctypes.byref(self._cancellation)))
        first: BaseException | None = None
        started = False
        self._ended.acquire()
        while True:
            try:
                if not started:
                    started = True
                    self._start()
                while not self._done:
                    there = self._ended.acquire(timeout=-1 if first is None else _CANCELLED_WITHIN)
                    if not there and not self._begun:  # the exception came before the thread
                        self._given_up = True
                        break
                break
            except BaseException as error:
                first = first or error
                self._library.cancellation_cancel(self._cancellation)
        return first

    def __del__(self) -> None:
        self._library.cancellation_free(self._cancellation)

    def _start(self) -> None:
        if _endings.finalizing():  # Python 3.11 starts a thread that never runs
            self._work()
            return
        try:
            _thread.start_new_thread(self._work, ())
        except RuntimeError:  # no more threads: the signal waits
            self._work()


def bundle_folder() -> Path:
    """Where the wheel has its programs and libraries; of an editable installation apart from the sources."""
    folders = [Path(folder) / "_bundle" for folder in sys.modules[__package__].__path__]
    return next((folder for folder in folders if folder.exists()), folders[0])


def library_path() -> str:
    """$TANDEM_LIBRARY, else the library of the wheel, else the system's libtandem.so.0."""
    named = os.environ.get("TANDEM_LIBRARY", "")
    if named:
        path = Path(named)
        return str(path / "libtandem.so" if path.is_dir() else path)
    own = bundle_folder() / "lib" / "libtandem.so"
    return str(own) if own.exists() else "libtandem.so.0"


_library: Library | None = None
_library_lock = threading.Lock()


def library() -> Library:
    """The library, loaded on first use. ImportError names what was tried."""
    global _library
    if _library is None:
        with _library_lock:
            if _library is None:
                path = library_path()
                try:
                    _library = Library(path)
                except OSError as error:
                    raise ImportError(
                        f"cannot load Tandem's client library {path}: {error}. Install Tandem's wheel, or set TANDEM_LIBRARY to "
                        "libtandem.so or the folder with it (build/.../lib)"
                    ) from error
    return _library


class Handle:
    """Owns one handle of the C interface and frees it once: by close(), or when nobody holds it any more."""

    __slots__ = ("_free", "value")

    def __init__(self, value: int | None, free: Any) -> None:
        self.value, self._free = value, free

    def close(self) -> None:
        value, self.value = self.value, None
        if value:
            self._free(value)

    def forget(self) -> None:
        """Leaves what it stands for to the end of the process."""
        self.value = None

    def __del__(self) -> None:
        self.close()


def milliseconds(seconds: float | None, otherwise: int = YEAR_MS) -> int:
    """A deadline in the C interface's unit, where 0 is the default and a negative one does not wait. None is `otherwise`."""
    if seconds is None:
        return otherwise
    if not seconds >= 0:
        raise ValueError(f"a deadline is at least 0 seconds, not {seconds}")
    if seconds == 0:
        return -1
    return YEAR_MS if seconds == math.inf else min(YEAR_MS, math.ceil(seconds * 1000))


def utf8(field: str, value: str) -> bytes:
    """The bytes of a text. InvalidArgument names the field whose text has a lone surrogate."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgument(f"{field} is not UTF-8", reason="BAD_FIELD", field=field) from None


def text(field: str, value: str) -> bytes:
    """A text of the C interface, which ends at a NUL: InvalidArgument names the field that has one, or is not UTF-8."""
    encoded = utf8(field, value)
    if b"\0" in encoded:
        raise errors.InvalidArgument(f"{field} must not contain control characters", reason="BAD_FIELD", field=field)
    return encoded


def optional_text(field: str, value: str | None) -> bytes | None:
    """The same, where None is the default."""
    return None if value is None else text(field, value)


def extents(numbers: Sequence[int]) -> Any:
    """An int64_t array."""
    return (ctypes.c_int64 * len(numbers))(*numbers)
