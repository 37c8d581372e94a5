"""NCCL collectives on symmetric windows (ncclMemAlloc, ncclCommWindowRegister), by ctypes on the NCCL that torch loaded, or on
another one beside it.

The communicator is a separate one. All buffers are cut from one window a rank; the cuts are the same on all ranks."""

import ctypes
import os

import torch
import torch.distributed as dist
from measure import together

NCCL_TYPES = {torch.bfloat16: 9, torch.float32: 7, torch.float16: 6, torch.uint8: 1, torch.float8_e4m3fn: 1}
SUM, WINDOW_SYMMETRIC, UNIQUE_ID_BYTES = 0, 1, 128


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * UNIQUE_ID_BYTES)]


class DeviceBytes:
    """Device memory that torch can look at."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def version_text(number):
    """Of what ncclGetVersion says, from 2.9 on."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class Windows:
    """Made by all ranks together. A failure on one rank is one on all: `agree` returns whether all are well so far. `path`: of
    another library than torch's; its arms' names end with its version, `suffix`."""

    def __init__(self, rank, world, device, size, agree=lambda good: good, path=None):
        self.used, self.suffix = 0, ""
        together(agree, self.load, path)
        unique = UniqueId()
        together(agree, lambda: rank or self.call("ncclGetUniqueId", ctypes.byref(unique)))
        holder = [bytes(unique.internal)]
        dist.broadcast_object_list(holder, src=0)
        ctypes.memmove(ctypes.byref(unique), holder[0], UNIQUE_ID_BYTES)
        self.communicator, base, self.window = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        room = ctypes.c_size_t(size)
        together(agree, self.call, "ncclCommInitRank", ctypes.byref(self.communicator), world, unique, rank)
        together(agree, self.call, "ncclMemAlloc", ctypes.byref(base), room)
        together(
            agree,
            self.call,
            "ncclCommWindowRegister",
            self.communicator,
            base,
            room,
            ctypes.byref(self.window),
            WINDOW_SYMMETRIC,
        )
        self.memory = torch.as_tensor(DeviceBytes(base.value, size), device=device)

    def load(self, path):
        # Two libraries have the same names: each must find its own, and nobody else this one's.
        self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_DEEPBIND) if path else ctypes.CDLL("libnccl.so.2")
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        self.library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        self.version = version_text(number.value)
        if path:
            self.suffix = f" {self.version}"

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {self.library.ncclGetErrorString(result).decode()}")

    def reset(self):
        """Gives all buffers back: what was cut before must not be used any more."""
        self.used = 0

    def empty(self, *shape, dtype=torch.bfloat16):
        count = 1
        for extent in shape:
            count *= extent
        size = count * dtype.itemsize
        if self.used + size > self.memory.numel():
            raise RuntimeError(f"the window has no {size} bytes left")
        buffer = self.memory[self.used : self.used + size].view(dtype).view(*shape)
        self.used += (size + 4095) // 4096 * 4096
        return buffer

    @staticmethod
    def stream():
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    @staticmethod
    def address(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    def all_gather(self, out, shard):
        self.call(
            "ncclAllGather",
            self.address(shard),
            self.address(out),
            ctypes.c_size_t(shard.numel()),
            NCCL_TYPES[shard.dtype],
            self.communicator,
            self.stream(),
        )

    def reduce_scatter(self, out, full):
        self.call(
            "ncclReduceScatter",
            self.address(full),
            self.address(out),
            ctypes.c_size_t(out.numel()),
            NCCL_TYPES[out.dtype],
            SUM,
            self.communicator,
            self.stream(),
        )

    def all_reduce(self, out, full):
        self.call(
            "ncclAllReduce",
            self.address(full),
            self.address(out),
            ctypes.c_size_t(full.numel()),
            NCCL_TYPES[full.dtype],
            SUM,
            self.communicator,
            self.stream(),
        )
