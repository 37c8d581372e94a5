"""libtandem_jax.so by ctypes: the targets of XLA's foreign function interface (client/jax/jax_calls.h)."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import jax

from .. import _c

__all__ = ["ORDER_BYTES", "TARGET", "Calls", "HostGroup", "calls"]

VERSION = 1
TARGET = "tandem_call"  # for all platforms
ORDER_BYTES = 16
_u64, _int, _i64 = ctypes.c_uint64, ctypes.c_int, ctypes.c_int64
# In the order of tandem_jax_functions.
_FUNCTIONS = (
    "launch_with_options",
    "launch_cuda_pointers_with_options",
    "capture_hold_begin",
    "plan_wait",
    "allocate_registered",
    "memory_data",
    "memory_free",
    "stream_create",
    "stream_free",
    "status_code",
    "status_message",
    "status_reason",
    "status_free",
)


class _Functions(ctypes.Structure):
    _fields_ = [(name, _c.Pointer) for name in _FUNCTIONS]


class HostGroup(ctypes.Structure):
    """What calls of one group on the host backend need."""

    _fields_ = [
        ("client", _c.Pointer),
        ("gpu_uuid", ctypes.c_char_p),
        ("rank", _int),
        ("order", _c.Pointer),
        ("deadline_ms", _i64),
    ]


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "version": (_int, []),
    "use": (None, [ctypes.POINTER(_Functions)]),
    "open_host_group": (_u64, [ctypes.POINTER(HostGroup)]),
    "close_host_group": (None, [_u64]),
    "add_plan": (_int, [_i64, _c.Pointer, _u64]),
    "remove_plan": (None, [_i64]),
    "launches": (_u64, []),
    "site_type_id": (_c.Pointer, []),
    "site_type_info": (_c.Pointer, []),
}


class Calls:
    """libtandem_jax.so with typed functions, its targets registered with XLA: `calls.add_plan` is `tandem_jax_add_plan`."""

    def __init__(self, path: str) -> None:
        self._handle = ctypes.CDLL(path)
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self._handle, "tandem_jax_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        found = self.version()
        if found != VERSION:
            raise ImportError(f"{path} has version {found} of the calls' functions, this package needs {VERSION}")
        core = _c.library()
        functions = {name: ctypes.cast(getattr(core, name), _c.Pointer) for name in _FUNCTIONS}
        self.use(ctypes.byref(_Functions(**functions)))
        self._register()

    def _register(self) -> None:
        def capsule(function: str) -> Any:
            return jax.ffi.pycapsule(ctypes.cast(getattr(self._handle, function), _c.Pointer).value)

        jax.ffi.register_ffi_type(
            "tandem_call_site",
            {"type_id": jax.ffi.pycapsule(self.site_type_id()), "type_info": jax.ffi.pycapsule(self.site_type_info())},
            platform="cpu",
        )
        host = {"instantiate": capsule("tandem_jax_host_instantiate"), "execute": capsule("tandem_jax_host_call")}
        jax.ffi.register_ffi_target(TARGET, host, platform="cpu")
        jax.ffi.register_ffi_target(TARGET, capsule("tandem_jax_cuda_call"), platform="CUDA")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"tandem_jax_{name} is not declared in {__name__}")


_calls: Calls | None = None
_lock = threading.Lock()


def calls() -> Calls:
    """The library, loaded on first use. ImportError where it is not beside the client library."""
    global _calls
    with _lock:
        if _calls is None:
            path = Path(_c.library_path()).with_name("libtandem_jax.so")
            try:
                _calls = Calls(str(path))
            except OSError as error:
                raise ImportError(f"cannot load {path}: {error}") from None
        return _calls
