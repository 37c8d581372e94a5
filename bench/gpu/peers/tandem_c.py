"""Tandem's C interface (tandem/tandem.h) by ctypes, for torch tensors on CUDA streams."""

import ctypes
import json
import math
import os

import torch

OPS = {
    "all_reduce": 1,
    "all_gather": 2,
    "reduce_scatter": 3,
    "all_gather_matmul": 4,
    "matmul_reduce_scatter": 5,
    "matmul_all_reduce": 6,
    "barrier": 11,
    "empty": 13,
}
ALGORITHMS = {
    "auto": 0,
    "one_shot": 1,
    "two_shot": 2,
    "low_latency": 4,
    "nccl": 5,
    "copy_engine": 6,
    "sm": 7,
    "unfused": 8,
    "pipeline": 9,
    "ring": 10,
    "tiled_two_shot": 11,
    "fused": 12,
}
ROLES = {
    "input": 1,
    "output": 2,
    "a": 3,
    "b": 4,
    "c": 5,
    "scale_a": 7,
    "scale_b": 8,
    "norm_weight": 12,
    "residual": 13,
    "residual_output": 14,
}
DTYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
    torch.uint8: 7,
}
LAUNCH_DEADLINE_MS = 10000
Pointer = ctypes.c_void_p


class JoinOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("job_key", ctypes.c_char_p),
        ("job_key_bytes", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("world_size", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("gpu_uuid", ctypes.c_char_p),
        ("deadline_ms", ctypes.c_int64),
        ("launch_deadline_ms", ctypes.c_int64),
        ("option_names", Pointer),
        ("option_values", Pointer),
        ("option_count", ctypes.c_size_t),
        ("on_slow_placement", ctypes.c_int),
        ("reserved", ctypes.c_int),
    ]


class Operand(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("role", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("dims", ctypes.c_size_t),
        ("symmetric", ctypes.c_int),
        ("alias_of", ctypes.c_int),
    ]


class Request(ctypes.Structure):
    _fields_ = (
        [
            ("struct_size", ctypes.c_size_t),
            ("op", ctypes.c_int),
            ("operands", ctypes.POINTER(Operand)),
            ("operand_count", ctypes.c_size_t),
        ]
        + [
            (name, ctypes.c_int)
            for name in ("dim", "reduce_op", "root", "wire", "fast_accumulation", "low_contention", "chunk_pivot")
        ]
        + [("transfers", Pointer), ("transfer_count", ctypes.c_size_t)]
        + [
            (name, ctypes.c_int)
            for name in ("algorithm", "steps", "lanes", "on_unfused", "restartable", "placement", "autotune")
        ]
        + [("norm_epsilon", ctypes.c_float)]
    )


class Binding(ctypes.Structure):
    _fields_ = [("memory", Pointer), ("offset", ctypes.c_uint64), ("pointer", Pointer)]


class TandemError(RuntimeError):
    pass


class Library:
    def __init__(self, path=None):
        self.c = ctypes.CDLL(path or os.environ["TANDEM_LIBRARY"])
        for name in (
            "tandem_status_message",
            "tandem_plan_json",
            "tandem_plan_reason",
            "tandem_plan_summary",
            "tandem_client_backend",
        ):
            getattr(self.c, name).restype = ctypes.c_char_p
            getattr(self.c, name).argtypes = [Pointer]
        for name in (
            "tandem_status_free",
            "tandem_client_free",
            "tandem_group_free",
            "tandem_plan_free",
            "tandem_memory_free",
        ):
            getattr(self.c, name).restype = None
            getattr(self.c, name).argtypes = [Pointer]
        self.c.tandem_memory_data.restype = Pointer
        self.c.tandem_memory_data.argtypes = [Pointer]

    def init(self, name, struct):
        function = getattr(self.c, f"tandem_{name}_init")
        function.restype, function.argtypes = None, [Pointer, ctypes.c_size_t]
        function(ctypes.byref(struct), ctypes.sizeof(struct))

    def call(self, name, *arguments):
        function = getattr(self.c, name)
        function.restype = Pointer
        status = function(*arguments)
        if status:
            message = f"{name}: {self.c.tandem_status_message(status).decode(errors='replace')}"
            self.c.tandem_status_free(status)
            raise TandemError(message)


class Memory:
    """A torch tensor of this process's, registered."""

    symmetric = 0

    def __init__(self, client, tensor):
        self.library, self.handle = client.library, Pointer()
        self.tensor = tensor  # kept as long as it is registered
        span = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride())) + 1
        self.library.call(
            "tandem_register_cuda",
            client.handle,
            Pointer(tensor.data_ptr()),
            ctypes.c_size_t(span * tensor.dtype.itemsize),
            ctypes.byref(self.handle),
        )

    def close(self):
        self.library.c.tandem_memory_free(self.handle)
        self.tensor = None


class PlainMemory:
    """A torch tensor of this process's as it is: client-placed launches take addresses."""

    symmetric, handle = 0, None

    def __init__(self, tensor):
        self.tensor = tensor

    def close(self):
        self.tensor = None


class DeviceBytes:
    """Memory at a device address, as torch.as_tensor takes it."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


class SymmetricTensor:
    """A symmetric tensor of the group, which all ranks make together; `tensor` is this rank's part of it."""

    symmetric = 1

    def __init__(self, group, shape, dtype):
        self.library, self.handle = group.library, Pointer()
        extents = (ctypes.c_int64 * len(shape))(*shape)
        self.library.call(
            "tandem_allocate",
            group.handle,
            extents,
            ctypes.c_size_t(len(shape)),
            DTYPES[dtype],
            None,
            ctypes.c_int64(60000),
            ctypes.byref(self.handle),
        )
        address = self.library.c.tandem_memory_data(self.handle)
        whole = torch.as_tensor(DeviceBytes(address, math.prod(shape) * dtype.itemsize), device="cuda")
        self.tensor = whole.view(dtype).view(*shape)

    def close(self):
        self.tensor = None
        self.library.c.tandem_memory_free(self.handle)


class Plan:
    """A prepared request; `launch` binds one Memory a slot."""

    def __init__(self, group, key, op, operands, algorithm="auto", **attributes):
        """`operands`: (role, memory) pairs; the plan takes their tensors' shapes, strides and types."""
        self.library, self.handle = group.library, Pointer()
        request = Request()
        self.library.init("request", request)
        array = (Operand * max(1, len(operands)))()
        for slot, (role, memory) in zip(array, operands):
            self.library.init("operand", slot)
            tensor, slot.symmetric = memory.tensor, memory.symmetric
            extents = ctypes.c_int64 * max(1, tensor.dim())
            slot.role, slot.dtype, slot.dims = ROLES[role], DTYPES[tensor.dtype], tensor.dim()
            slot.shape, slot.strides = extents(*tensor.shape), extents(*tensor.stride())
        request.op, request.operands, request.operand_count = OPS[op], array, len(operands)
        request.algorithm = ALGORITHMS[algorithm]
        for name, value in attributes.items():
            setattr(request, name, value)
        self.library.call(
            "tandem_prepare",
            group.handle,
            key.encode(),
            ctypes.byref(request),
            ctypes.c_int64(60000),
            ctypes.byref(self.handle),
        )
        self.launch_cuda = self.library.c.tandem_launch_cuda
        self.launch_cuda.restype = Pointer
        self.launch_cuda.argtypes = [Pointer, Pointer, Pointer, ctypes.c_size_t, ctypes.c_int64, Pointer]

    def info(self):
        return json.loads(self.library.c.tandem_plan_json(self.handle))

    @staticmethod
    def bind(memories):
        """Bindings for `launch`, made once: launching allocates nothing."""
        return (Binding * max(1, len(memories)))(
            *[Binding(memory.handle, 0, None if memory.handle else memory.tensor.data_ptr()) for memory in memories]
        )

    def launch(self, bindings, count):
        status = self.launch_cuda(
            self.handle, torch.cuda.current_stream().cuda_stream, bindings, count, LAUNCH_DEADLINE_MS, None
        )
        if status:
            message = self.library.c.tandem_status_message(status).decode(errors="replace")
            self.library.c.tandem_status_free(status)
            raise TandemError("tandem_launch_cuda: " + message)

    def wait(self):
        self.library.call("tandem_plan_wait", self.handle, ctypes.c_int64(LAUNCH_DEADLINE_MS))

    def close(self):
        self.library.call("tandem_plan_release", self.handle)
        self.library.c.tandem_plan_free(self.handle)


class Group:
    def __init__(self, client, name, rank, world, uuid, job_key, settings=()):
        """`settings`: the group's options, (name, value) pairs."""
        self.library, self.client, self.handle = client.library, client, Pointer()
        key = job_key.encode()
        options = JoinOptions()
        self.library.init("join_options", options)
        options.job_key, options.job_key_bytes, options.name, options.gpu_uuid = (
            key,
            len(key),
            name.encode(),
            uuid.encode(),
        )
        options.world_size, options.rank = world, rank
        texts = ctypes.c_char_p * max(1, len(settings))
        names = texts(*[setting[0].encode() for setting in settings])
        values = texts(*[setting[1].encode() for setting in settings])
        options.option_names = ctypes.cast(names, Pointer)
        options.option_values = ctypes.cast(values, Pointer)
        options.option_count = len(settings)
        options.deadline_ms, options.launch_deadline_ms = 60000, LAUNCH_DEADLINE_MS
        self.library.call("tandem_join_group", client.handle, ctypes.byref(options), ctypes.byref(self.handle))

    def leave(self):
        self.library.call("tandem_group_leave", self.handle, ctypes.c_int64(30000))
        self.library.c.tandem_group_free(self.handle)


class Client:
    def __init__(self, runtime_dir, name="bench"):
        self.library, self.handle = Library(), Pointer()
        self.library.call(
            "tandem_connect", runtime_dir.encode(), name.encode(), ctypes.c_int64(20000), ctypes.byref(self.handle)
        )

    def device_uuid(self, ordinal):
        uuid = ctypes.create_string_buffer(96)
        self.library.call("tandem_cuda_device_uuid", ordinal, uuid, ctypes.c_size_t(len(uuid)))
        return uuid.value.decode()

    def close(self):
        self.library.call("tandem_client_detach", self.handle)
        self.library.c.tandem_client_free(self.handle)
