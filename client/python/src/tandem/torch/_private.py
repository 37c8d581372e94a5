"""All that Tandem uses of PyTorch's private interfaces (2.11 to 2.15), in one place."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._library import _out_variant
from torch.distributed import distributed_c10d

_c10d: Any = distributed_c10d
_log = logging.getLogger("tandem.torch")


def group_size(group_name: str) -> int:
    """Ranks of a process group, also of one that a fake tensor program names."""
    return int(_c10d._get_group_size_by_name(group_name))


def resolve(group: Any) -> Any:
    """The process group with this name; a process group itself; for None the default one."""
    if group is None:
        return _c10d._get_default_group()
    return _c10d._resolve_process_group(group) if isinstance(group, str) else group


class _Registration(tuple):  # type: ignore[type-arg]
    """An object that torch keeps until a process group is destroyed, and a function to call then."""

    function: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.function is not None:
            self.function()


def on_end(process_group: Any, function: Callable[[], None]) -> bool:
    """Calls the function, which must not raise, when the process group is destroyed, before its name is used again; earlier if a
    later call gives another one. False if torch keeps no record of the group."""
    records = _c10d._world.pg_map
    if process_group not in records:
        return False
    record = _Registration(records[process_group])
    record.function = function
    records[process_group] = record
    return True


def trace_inner_gathers() -> None:
    """Lets torch.compile trace functional gathers along an inner dimension. torch 2.11 ends the graph there, and such a gather runs
    eagerly. Eager calls stay torch's."""
    from torch.distributed import _functional_collectives

    functional: Any = _functional_collectives
    rearranged: Any = getattr(functional, "_maybe_view_chunk_cat", None)
    if rearranged is None or hasattr(rearranged, "of_tandem"):
        return

    def traced(whole: torch.Tensor, group_size: int, gather_dim: int) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return torch.cat(torch.chunk(whole, group_size, dim=0), dim=gather_dim)
        return rearranged(whole, group_size, gather_dim)  # type: ignore[no-any-return]

    traced.of_tandem = True  # type: ignore[attr-defined]
    functional._maybe_view_chunk_cat = traced


# Extents behind the first of an exchange without splits, as torch.compile traces it here: no other tensor has them.
EVEN = (1, 1, 1)


def trace_even_exchanges() -> None:
    """Lets the compile pass know exchanges without splits. torch writes splits to each graph, where equal ones of one rank may be
    unequal on another. The traced exchange is of a row for each rank, with EVEN behind it. Eager calls stay torch's."""
    from torch.distributed import _functional_collectives

    functional: Any = _functional_collectives
    for name in ("all_to_all_single", "all_to_all_single_autograd"):
        exchange: Any = getattr(functional, name)
        if not hasattr(exchange, "of_tandem"):
            setattr(functional, name, _traced_even(exchange, functional))


def _traced_even(exchange: Any, functional: Any) -> Any:
    @functools.wraps(exchange)
    def traced(self: torch.Tensor, output_split_sizes: Any, input_split_sizes: Any, group: Any, tag: str = "") -> torch.Tensor:
        if output_split_sizes is not None or input_split_sizes is not None or not torch.compiler.is_compiling():
            return exchange(self, output_split_sizes, input_split_sizes, group, tag)  # type: ignore[no-any-return]
        world = _c10d._get_group_size_by_name(functional._resolve_group_name(group, tag))
        rows = self.reshape(world, *EVEN, self.shape[0] // world, *self.shape[1:])
        return exchange(rows, [1] * world, [1] * world, group, tag).reshape(self.shape)  # type: ignore[no-any-return]

    traced.of_tandem = True  # type: ignore[attr-defined]
    return traced


def tracing_context() -> Any:
    """torch.compile's context of the frame that it compiles now, or None. A backward has its forward's."""
    return torch._guards.TracingContext.try_get()


def dtensor_inputs(context: Any) -> list[Any]:
    """The DTensors among the inputs of the frame, without their elements, in the program's order. None while a backward is
    compiled."""
    from torch.distributed.tensor import DTensor

    return [one for one in list(context.tensor_to_context) if isinstance(one, DTensor)]


def input_number(node: Any) -> int | None:
    """The number of the program's input whose local tensor the node is; None if it is no DTensor's."""
    inner = node.meta.get("desc") if node.op == "placeholder" else None
    number = getattr(getattr(inner, "base", None), "idx", None)
    return number if getattr(inner, "attr", "") == "_local_tensor" else None


def call_of(operation: Any) -> Callable[..., Any]:
    """The function that an op or an overload calls."""
    return operation._op  # type: ignore[no-any-return]


def set_call(operation: Any, function: Callable[..., Any]) -> None:
    """Puts the function in its place. To be called before the op is used: the op's hash is the function's."""
    before = call_of(operation)
    function.__module__, function.__name__ = before.__module__, before.__name__
    operation._op = function


def global_ranks(process_group: Any) -> list[int]:
    """The numbers of the group's ranks among all processes; their own where torch does not know them."""
    ranks = _c10d._world.pg_group_ranks.get(process_group)
    return list(range(process_group.size())) if ranks is None else sorted(ranks, key=ranks.__getitem__)


def around_coalescing(tell: Callable[[int], None]) -> None:
    """Calls tell(1) when a thread's collectives begin to be coalesced by their backend, and tell(0) at the end. A backend that was
    promised calls, and gets none, has no work to wait for. A second call does nothing."""
    group: Any = dist.ProcessGroup
    begin, end = group._start_coalescing, group._end_coalescing
    if hasattr(begin, "of_tandem"):
        return

    def begin_and_tell(self: Any, device: torch.device) -> None:
        begin(self, device)
        tell(1)

    def end_and_tell(self: Any, device: torch.device) -> Any:
        tell(0)
        return end(self, device)

    begin_and_tell.of_tandem = True  # type: ignore[attr-defined]
    group._start_coalescing, group._end_coalescing = begin_and_tell, end_and_tell


def around_failures(tell: Callable[[BaseException | None], None]) -> None:
    """Calls tell(error) when one of dist.*'s collectives has raised; what it raises itself takes the error's place. A second call
    does nothing."""
    from torch.distributed import c10d_logger

    logger: Any = c10d_logger
    describe = getattr(logger, "_get_msg_dict", None)
    if describe is None or hasattr(describe, "of_tandem"):
        return

    def tell_and_describe(*given: Any, **named: Any) -> Any:
        tell(sys.exc_info()[1])
        return describe(*given, **named)

    tell_and_describe.of_tandem = True  # type: ignore[attr-defined]
    logger._get_msg_dict = tell_and_describe


def split_source(global_ranks: list[int]) -> tuple[Any, int] | None:
    """The NCCL backend that a new group with these ranks is split from, and the number of its part. None: it is made anew.

    torch splits every group from the default one where that has a device, and calls its ranks outside the new group for it."""
    if not _c10d.is_initialized() or not _c10d._get_default_group().bound_device_id:
        return None
    source = _c10d._get_split_source(_c10d._get_default_group())
    return None if source is None else (source, _c10d._process_group_color(global_ranks))


def process_groups() -> list[Any]:
    """The process groups of this process."""
    return list(_c10d._world.pg_map)


def store_of(process_group: Any) -> Any:
    """The key-value store that the process group was made over."""
    return _c10d._get_process_group_store(process_group)


def job_store(process_group: Any) -> Any:
    """The store of all processes; the group's own where it is no subgroup of any."""
    return _c10d._get_default_store() if _c10d.is_initialized() else store_of(process_group)


def set_default_backend(process_group: Any) -> None:
    """Lets the process group find its default backend: torch 2.11 sets none where one device of several has a custom one."""
    process_group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


def backends_of(process_group: Any) -> str:
    """The names of the process group's backends, with the types of devices: "cpu:gloo,cuda:nccl"."""
    return str(_c10d._world.pg_backend_config.get(process_group) or backend_of(process_group))


def backend_of(process_group: Any) -> str:
    """The name of the process group's backend."""
    return str(_c10d.get_backend(process_group))


def raw_stream(device: int) -> int:
    """The cudaStream_t that is current on a device."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def new_library(namespace: str, kind: str) -> Any:
    """torch.library.Library."""
    library: Any = torch.library.Library
    return library(namespace, kind)


def buckets_collectives(kind: str) -> bool:
    """Whether Inductor is set to make one collective of several, or to move them beside other work: "all_gather", "all_to_all" or
    "reduce_scatter"."""
    from torch._inductor import config

    given: Any = config
    schedule = getattr(given, "aten_distributed_optimizations", None)
    buckets = getattr(given, f"bucket_{kind}s_fx", "none") != "none"
    return buckets or bool(getattr(schedule, "enable_overlap_scheduling", False))


def inductor_counters() -> Any:
    """Inductor's counters by name: a Counter. A graph that Inductor loads from its cache raises them as its compilation has."""
    from torch._dynamo.utils import counters

    return counters["inductor"]


def on_compile_end(function: Callable[[], None]) -> None:
    """Calls the function at the end of every compilation, also of one that finds its graph in a cache, until torch._dynamo.reset().
    What it raises ends the compilation. A second call with the same function does nothing."""
    from torch._dynamo.callback import callback_handler

    if not any(getattr(one, "function", None) == function for one in callback_handler.end_callbacks):
        callback_handler.register_end_callback(_AtEnd(function))


class _AtEnd:
    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def __call__(self, compilation: object) -> None:
        try:
            self.function()
        except Exception as error:
            from torch._dynamo.callback import callback_handler

            # torch counts the compilations that have not ended, and would count this one for ever.
            handler: Any = callback_handler
            count = f"_{type(handler).__name__}__pending_callbacks_counter"
            if not isinstance(getattr(handler, count, None), int):
                _log.error("%s", error)
                return
            setattr(handler, count, getattr(handler, count) - 1)
            raise _for_dynamo(error) from None


def _for_dynamo(error: Exception) -> Exception:
    """The error as one that torch.compile hands on as it is, and does not call its own defect."""
    from torch._dynamo.exc import ShortenTraceback

    passed: Any = error
    passed.__class__ = type(type(error).__name__, (type(error), ShortenTraceback), {"__module__": type(error).__module__})
    passed.first_useful_frame = None
    return error


# below_autograd(): while the object lives, ops of this thread go past the Autograd keys; it is a context manager, too.
below_autograd: Callable[[], Any] = torch._C._AutoDispatchBelowAutograd
# Whether one of the arguments, or a tensor in a list among them, requires a gradient.
any_requires_grad: Callable[..., bool] = torch._C._any_requires_grad


# below_autocast(): while the object lives, torch.autocast does nothing in this thread; it is a context manager, too.
below_autocast: Callable[[], Any] = torch._C._DisableAutocast
any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


# Its _current_level is 0 or more inside torch.autograd.forward_ad.dual_level(), and inside torch.func.jvp.
forward_level: Any = torch.autograd.forward_ad


def refuse_tangents(name: str, arguments: Sequence[Any]) -> None:
    """Raises where an argument has a tangent of forward-mode gradients, which the result would not have."""
    tensors = [one for value in arguments for one in (value if isinstance(value, (list, tuple)) else (value,))]
    if any(isinstance(one, torch.Tensor) and forward_level.unpack_dual(one).tangent is not None for one in tensors):
        raise NotImplementedError(f"tandem::{name or '…'} has no forward-mode gradients: use those of the backward")


register_out_variant: Any = getattr(_out_variant, "register_out_variant", None)


def plan_output(functional: Any, out: Any) -> None:
    """Lets Inductor plan the result of a functional op by the overload that writes it, where torch knows how (2.15, not 2.11).
    torch.Tag.out does so for overloads that return what they write."""
    if register_out_variant is not None:
        register_out_variant(functional, out)


_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_functorch: Any = torch._C._functorch


def is_traced() -> bool:
    """Whether a mode or a transform sees the ops of this thread, so that all their keys count."""
    return _modes() != 0 or _functorch.peek_interpreter_stack() is not None


def apply_of(function: Any) -> Callable[..., Any]:
    """torch.autograd.Function.apply of a class, without what that does for transforms."""
    return super(torch.autograd.Function, function).apply  # type: ignore[no-any-return]
