"""libtandem_torch.so by ctypes: the kernels of torch.ops.tandem in C++ (client/torch/torch_ops.h).

A kernel finds the call's plan in a table and launches it without Python. Calls that the table does not have come to the
Python kernels of this package, under hidden ops; these add what they have prepared to the table. A kernel's failure reaches Python
as RuntimeError: whoever calls the ops from Python gets the exception that was meant, since `guarded` puts it in its place.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from .. import _c, errors
from ._op_table import OPS
from ._prepared import DTYPES, Prepared, Slot
from ._private import any_autocast, any_requires_grad, below_autograd, forward_level, is_traced, refuse_tangents

_log = logging.getLogger("tandem.torch")

VERSION = 8
_ARGUMENT, _RESULT = 0, 1
_NEVER, _ELSEWHERE, _SYMMETRIC = 0, 1, 2

_u64, _int = ctypes.c_uint64, ctypes.c_int
# In the order of tandem_torch_functions.
_LAUNCHES = ("launch_with_options", "launch_cuda_pointers_with_options")
_FUNCTIONS = (*_LAUNCHES, "plan_wait", "status_code", "status_message", "status_reason", "status_free")


class _Functions(ctypes.Structure):
    _fields_ = [(name, _c.Pointer) for name in _FUNCTIONS]


class _Slot(ctypes.Structure):
    _fields_ = [("source", _int), ("index", _int), ("written", _int), ("symmetric", _int), ("bytes", _u64), ("offset", _u64)]


class _Result(ctypes.Structure):
    _fields_ = [("dtype", _int), ("dims", _int), ("shape", ctypes.POINTER(ctypes.c_int64)), ("rows", _int)]


class _Rows(ctypes.Structure):
    _fields_ = [
        ("most", ctypes.c_int64),
        ("least", ctypes.c_int64),
        ("unit", ctypes.c_int64),
        ("argument", _int),
        ("arguments", ctypes.c_uint32),
    ]


class _Plan(ctypes.Structure):
    _fields_ = [
        ("plan", _c.Pointer),
        ("stream", _c.Pointer),
        ("deadline_ms", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("slot_count", ctypes.c_size_t),
        ("slots", ctypes.POINTER(_Slot)),
        ("result_count", ctypes.c_size_t),
        ("results", ctypes.POINTER(_Result)),
        ("staging_bytes", _u64),
        ("family", _Rows),
    ]


class Counts(ctypes.Structure):
    """launched: calls that ran without Python's kernels. handed_on: calls that these have run. library_ns: the time in
    libtandem.so, as far as it was measured."""

    _fields_ = [("launched", _u64), ("handed_on", _u64), ("library_ns", _u64)]


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "version": (_int, []),
    "use": (None, [ctypes.POINTER(_Functions)]),
    "open_group": (_u64, [ctypes.c_char_p]),
    "hide_group": (None, [_u64]),
    "close_group": (None, [_u64]),
    "set_staging": (None, [_u64, _c.Pointer, _c.Pointer, ctypes.c_size_t]),
    "staging": (_c.Pointer, [_u64]),
    "add_symmetric": (_int, [_u64, _c.Pointer, ctypes.c_size_t]),
    "remove_symmetric": (None, [_u64, _c.Pointer]),
    "add_arena": (_int, [_int, _c.Pointer, ctypes.c_size_t]),
    "pool_allocate": (_c.Pointer, [ctypes.c_size_t, _int, _c.Pointer]),
    "pool_free": (None, [_c.Pointer, ctypes.c_size_t, _int, _c.Pointer]),
    "add_plan": (_u64, [_u64, ctypes.POINTER(_Plan)]),
    "add_call": (None, [_u64, _u64]),
    "remove_plan": (None, [_u64, _u64]),
    "tick": (_u64, [_u64]),
    "last_use": (_u64, [_u64, _u64]),
    "fail": (None, [ctypes.c_char_p]),
    "take_failure": (_int, [ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(_c.Pointer)]),
    "read_counts": (None, [ctypes.POINTER(Counts)]),
    "measure": (None, [_int]),
}


class Kernels:
    """libtandem_torch.so with typed functions: `kernels.tick` is `tandem_torch_tick`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = ctypes.CDLL(path)
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self._handle, "tandem_torch_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        found = self.version()
        if found != VERSION:
            raise ImportError(f"{path} has version {found} of the kernels' functions, this package needs {VERSION}")
        self._use({name: getattr(_c.library(), name) for name in _FUNCTIONS})

    def _use(self, functions: dict[str, Any]) -> None:
        self.use(ctypes.byref(_Functions(**{name: ctypes.cast(each, _c.Pointer) for name, each in functions.items()})))

    def launch_nothing(self) -> None:
        """For measuring: from here on launches and waits return at once, and results are not set."""
        nothing = self.last_use  # of group 0 it returns 0, a status of OK
        functions = {name: getattr(_c.library(), name) for name in _FUNCTIONS}
        self._use(functions | dict.fromkeys((*_LAUNCHES, "plan_wait"), nothing))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"tandem_torch_{name} is not declared in {__name__}")


def _path() -> str | None:
    """Beside the client library, where the wheel and build folders have it."""
    library = Path(_c.library_path())
    beside = library.with_name("libtandem_torch.so")
    if library.parent != Path() and not beside.exists():
        return None
    return str(beside)


def _load() -> Kernels | None:
    if os.environ.get("TANDEM_TORCH_KERNELS", "") == "python":
        return None
    path = _path()
    try:
        if path is not None:
            return Kernels(path)
        why = "it is not beside libtandem.so"
    except OSError as error:  # no such file on the library path
        why = str(error)
    _log.warning("no libtandem_torch.so, so the ops run in Python, which takes longer a call: %s", why)
    return None


kernels: Kernels | None = _load()


def counts() -> Counts:
    """Counts of the kernels' work in this process; zeros where Python's kernels serve alone."""
    read = Counts()
    if kernels is not None:
        kernels.read_counts(ctypes.byref(read))
    return read


class _Thread(threading.local):
    """tensors: of the call that a hidden op of this thread runs. returns: whether that op has results. failure: what a hidden op
    has raised."""

    tensors: list[torch.Tensor] | None = None
    returns = False
    failure: BaseException | None = None


_thread = _Thread()


def _tensors_of(values: Iterator[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_of(iter(value))


def hidden(kernel: Callable[..., Any], nothing: Callable[[], Any]) -> Callable[..., Any]:
    """The kernel as one that C++ calls: it never raises, but keeps the failure for `guarded` and returns `nothing`."""
    assert kernels is not None
    fail, returns = kernels.fail, nothing() is not None

    def run(*given: Any, **named: Any) -> Any:
        outer = _thread.tensors, _thread.returns
        try:
            _thread.returns = returns
            _thread.tensors = list(_tensors_of(iter((*given, *named.values()))))
            result = kernel(*given, **named)
            if isinstance(result, tuple):  # the gathered A and the products come in one list, A last if at all
                whole, products = result
                return products if whole is None else [*products, whole]
            return result
        except BaseException as error:
            _thread.failure = error
            fail(f"{type(error).__name__}: {error}".encode(errors="backslashreplace"))
            return nothing()
        finally:
            _thread.tensors, _thread.returns = outer

    return run


# Adds to a failure which processes its ranks are, of the group with this name; _groups.py sets it.
name_ranks: Callable[[errors.TandemError, str], None] | None = None


def _raise_meant(error: RuntimeError, given: Iterable[Any]) -> NoReturn:
    """Raises the exception that a kernel's RuntimeError stands for, or this one. given: the call's arguments."""
    assert kernels is not None
    text, status = ctypes.c_char_p(), _c.Pointer()
    if kernels.take_failure(ctypes.byref(text), ctypes.byref(status)):
        meant, _thread.failure = _thread.failure, None
        if status.value:
            meant = _c.library().take(status.value)
        # A failure that a caller in C++ has dropped is not this one.
        if meant is not None and (text.value or b"").decode(errors="replace") in str(error):
            if isinstance(meant, errors.TandemError) and name_ranks is not None:
                for one in given:
                    if isinstance(one, str):
                        name_ranks(meant, one)
            raise meant from None
    raise error


def raise_interrupt(error: BaseException | None) -> None:
    """Raises what a signal's handler has raised in the kernel whose failure `error` is: torch.distributed has made an error of it,
    which a program may take for a rank's end."""
    meant = _thread.failure
    if meant is None or isinstance(meant, Exception):
        return
    _thread.failure = None
    if f"{type(meant).__name__}: {meant}" in str(error):
        raise meant from None


# Arguments that the default overloads do not have.
_OTHER = frozenset(("out", "outs", "graph"))


# By the op's name: what records a call for the backward, sooner than the Autograd key's kernel.
recorders: dict[str, Callable[..., Any]] = {}


def guarded(operation: Callable[..., Any], with_more: Callable[..., Any] | None = None, name: str = "") -> Callable[..., Any]:
    """The op's call from Python, with the exceptions that its kernel means. It goes past the Autograd key, whose kernel is Python,
    where no gradient is recorded; where one is, to the recorder with the op's name. `with_more`: what is called instead where a
    call names an output or a graph, which other overloads take."""
    gradients, inference, need_gradients = torch.is_grad_enabled, torch.is_inference_mode_enabled, any_requires_grad
    casts, autocast, level = name in OPS and OPS[name].autocast, any_autocast, forward_level

    def call(*given: Any, **named: Any) -> Any:
        chosen = operation
        try:
            if named and with_more is not None and not _OTHER.isdisjoint(named):
                chosen = with_more
            if level._current_level >= 0:
                refuse_tangents(name, (*given, *named.values()))
            if casts and chosen is operation and autocast():  # the cast is recorded, too
                return chosen(*given, **named)
            if gradients():
                if need_gradients(*given, **named):
                    record = recorders.get(name)
                    if record is None or chosen is not operation or is_traced():
                        return chosen(*given, **named)
                    return record(*given, **named)
                if is_traced():
                    return chosen(*given, **named)
            elif inference():  # torch goes past the key by itself
                return chosen(*given, **named)
            below = below_autograd()  # in force from here to its end
            try:
                return chosen(*given, **named)
            finally:
                del below
        except RuntimeError as error:
            _raise_meant(error, (*given, *named.values()))

    return call


class Table:
    """The plans of one group that the kernels launch by themselves."""

    def __init__(self, group_name: str) -> None:
        assert kernels is not None
        self._kernels = kernels
        self.number: int = kernels.open_group(group_name.encode())

    def tick(self) -> int:
        """The group's count of calls, raised by one."""
        return int(self._kernels.tick(self.number))

    def last_use(self, prepared: Prepared) -> int:
        """The group's count at the last call that ran the plan; 0 if none has."""
        return max((int(self._kernels.last_use(self.number, number)) for number in prepared.numbers.values()), default=0)

    def set_staging(self, memory: Any) -> None:
        """Registered memory that operands on the CPU are copied to and from; for None calls come to Python. Waits for calls that
        use the memory before, unless they are of this thread."""
        if memory is None:
            self._kernels.set_staging(self.number, None, None, 0)
        else:
            self._kernels.set_staging(self.number, memory._open(), memory.data, memory.nbytes)

    def staging(self) -> int:
        """The handle of that memory; 0 if there is none. Waits likewise."""
        return self._kernels.staging(self.number) or 0

    def add(self, prepared: Prepared, slots: Sequence[Slot], stream: int | None, deadline_ms: int) -> None:
        """Lets calls like the one that this thread's hidden op runs go past Python. Does nothing if the plan's slots are others
        than that call's tensors and its results, as where rows were padded."""
        if _thread.tensors is None:
            return
        described = _describe(prepared, slots, _thread.tensors)
        if described is None:
            return
        layout, c_slots, results, family, _shapes = described
        if layout in prepared.numbers:
            self._kernels.add_call(self.number, prepared.numbers[layout])
            return
        plan = _Plan(prepared.plan._open(), stream, deadline_ms, prepared.rows, len(slots), c_slots, len(results), results)
        plan.staging_bytes = prepared.staging_bytes
        plan.family = family
        number = int(self._kernels.add_plan(self.number, ctypes.byref(plan)))
        if number:
            prepared.numbers[layout] = number
            _prepared[number] = prepared

    def remove(self, prepared: Prepared) -> None:
        """Calls run this plan no more when it returns, unless they are of this thread."""
        while prepared.numbers:
            number = prepared.numbers.popitem()[1]
            self._kernels.remove_plan(self.number, number)
            _prepared.pop(number, None)

    def add_symmetric(self, address: int, size: int) -> None:
        """The range is in a symmetric tensor of the group."""
        if not self._kernels.add_symmetric(self.number, address, size):
            raise errors.ResourceExhausted("out of memory", reason="NO_MEMORY")

    def remove_symmetric(self, address: int) -> None:
        """The range that begins there is so no more."""
        self._kernels.remove_symmetric(self.number, address)

    def hide(self) -> None:
        """Calls find this table no more: its name may be another process group's now."""
        self._kernels.hide_group(self.number)

    def close(self) -> None:
        """Forgets the table, when the calls that run its plans have ended."""
        self._kernels.close_group(self.number)


# By the plans' numbers; each Table removes its own.
_prepared: dict[int, Prepared] = {}


def wait_on(number: int) -> None:
    """Goes on with a kernel's wait for a plan."""
    prepared = _prepared.get(number)
    if prepared is None:
        return
    try:
        prepared.wait()
    except errors.TandemError:
        raise
    except BaseException:
        prepared.broken_off(prepared)
        raise


def _describe(prepared: Prepared, slots: Sequence[Slot], tensors: list[torch.Tensor]) -> tuple[Any, Any, Any, Any, Any] | None:
    """The tensor of each slot; the plan's slots, results and rows in C, and the memory that these point to. None if a slot is no
    tensor of the call."""
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    if len(numbers) != len(tensors):  # a tensor that stands twice
        return None
    _add_views(numbers, slots, tensors)
    c_slots, layout = (_Slot * max(1, len(slots)))(), []
    # The gathered A is the last of the results, and their order is that of the products. Scratch memory comes behind them.
    made = [i for i, slot in enumerate(slots) if id(slot.tensor) not in numbers]
    made.sort(key=lambda i: (slots[i].scratch, slots[i].role == "gathered_a"))
    if not _thread.returns and not all(slots[i].scratch for i in made):
        return None  # an output is copied to where it was wanted
    for i, slot in enumerate(slots):
        if i in made and not (slot.written and slot.tensor.is_contiguous()):
            return None
        source, index = (_RESULT, made.index(i)) if i in made else (_ARGUMENT, numbers[id(slot.tensor)])
        layout.append((source, index))
        # An output in place is so together with its input.
        able = prepared.can_be_symmetric(slot) or any(one.alias_of == i and prepared.can_be_symmetric(one) for one in slots)
        where = _SYMMETRIC if i in prepared.symmetric else _ELSEWHERE if able else _NEVER
        c_slots[i] = _Slot(source, index, int(slot.written), where, prepared.sizes[i], prepared.offsets[i])
    shapes = [_c.extents(slots[i].tensor.shape) for i in made]
    results = (_Result * len(made))()
    for result, shape, i in zip(results, shapes, made, strict=True):
        result.dtype, result.dims = int(DTYPES[slots[i].tensor.dtype]), len(shape)
        result.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        result.rows = int(prepared.family is not None and prepared.family.follows[i])
    return tuple(layout), c_slots, results, _rows_of(prepared, layout), shapes


def _rows_of(prepared: Prepared, layout: Sequence[tuple[int, int]]) -> _Rows:
    """How a family's plan serves other numbers of rows; of any other plan: not."""
    family = prepared.family
    if family is None or layout[0][0] != _ARGUMENT:
        return _Rows()
    following = {index for (source, index), follows in zip(layout, family.follows, strict=True) if source == _ARGUMENT and follows}
    return _Rows(family.most, family.least, family.unit, layout[0][1], sum(1 << index for index in following))


def _add_views(numbers: dict[int, int], slots: Sequence[Slot], tensors: list[torch.Tensor]) -> None:
    """The numbers also of slots that are an argument seen in another shape: a slot is bound to the same bytes. Not of one that may
    be either of two arguments: they are others in the next call."""
    found: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.numel() and tensor.is_contiguous():
            found.setdefault((tensor.data_ptr(), tensor.numel(), tensor.dtype), []).append(number)
    for tensor in (slot.tensor for slot in slots):
        if id(tensor) not in numbers and tensor.is_contiguous():
            of = found.get((tensor.data_ptr(), tensor.numel(), tensor.dtype), [])
            if len(of) == 1:
                numbers[id(tensor)] = of[0]
