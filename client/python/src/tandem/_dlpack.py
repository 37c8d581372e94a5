"""DLPack capsules over memory that a Python object keeps alive."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _c
from .enums import DType

# (kind, bits) of dlpack.h.
_TYPES = {
    DType.f32: (2, 32),
    DType.f16: (2, 16),
    DType.bf16: (4, 16),
    DType.f8e4m3: (10, 8),
    DType.f8e5m2: (12, 8),
    DType.i32: (0, 32),
    DType.i64: (0, 64),
    DType.u8: (1, 8),
}
CPU, CUDA = 1, 2


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Owner(ctypes.Structure):
    """tandem_dlpack_owner. The library's deleter runs no Python: a consumer may call it where an exception is under way."""

    _fields_ = [
        (name, ctypes.c_void_p) for name in ("object", "release", "is_running", "enter", "leave", "set_aside", "bring_back")
    ]


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


_PYTHON = [
    _address(getattr(ctypes.pythonapi, name))
    for name in ("Py_DecRef", "Py_IsInitialized", "PyGILState_Ensure", "PyGILState_Release", "PyErr_Fetch", "PyErr_Restore")
]
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _drop_capsule(capsule: int) -> None:
    # A capsule that no consumer has taken up still has its first name.
    if ctypes.pythonapi.PyCapsule_IsValid(capsule, b"dltensor"):
        _c.library().dlpack_delete(_pointer_of(capsule, b"dltensor"))


_drop_callback = _Callback(_drop_capsule)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
ctypes.pythonapi.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


def capsule(address: int, shape: Sequence[int], dtype: DType, device: tuple[int, int], keep: Any) -> Any:
    """A "dltensor" capsule of contiguous memory. `keep` lives until the consumer's last view of it has gone."""
    dims = ctypes.c_int64 * max(1, len(shape))
    steps = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        steps[i] = steps[i + 1] * shape[i + 1]
    extents, strides = dims(*shape), dims(*steps)
    code, bits = _TYPES[dtype]
    held: list[Any] = [extents, strides, keep]  # what the deleter lets go
    owner = _Owner(id(held), *_PYTHON)
    managed = _Managed(
        _Tensor(address, *device, len(shape), code, bits, 1, extents, strides, 0),
        ctypes.addressof(owner),
        _address(_c.library().dlpack_delete),
    )
    held += [owner, managed]
    made = _new(ctypes.addressof(managed), b"dltensor", ctypes.cast(_drop_callback, ctypes.c_void_p))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    return made
