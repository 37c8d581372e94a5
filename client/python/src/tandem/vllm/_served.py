"""Communicators of vLLM whose tensor-parallel collectives run by Tandem."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..torch import _config, _fallback, _groups, _suspension
from ..torch._private import new_library, process_groups
from ..torch._servers import Server, all_reduce_rms_norm, all_reduce_rms_norm_fp8
from ._counts import count

__all__ = ["groups", "is_batch_invariant", "normed_sum", "subclass"]

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem
_parallel_state: Any = importlib.import_module("vllm.distributed.parallel_state")
_server = Server("vLLM", logging.getLogger("tandem.vllm"), count)


def subclass(base: type) -> type:
    """A subclass of vLLM's class of communicators, whose groups "tp" are served."""
    more = [kind for name, kind in _OPTIONAL.items() if hasattr(base, name)]
    return type(base.__name__, (*more, _Served, base), {"__module__": f"{__package__}._communicators"})


def _of_vllm(name: str, default: Any) -> Any:
    """A variable of vLLM's; the default where this version has none of this name."""
    return getattr(importlib.import_module("vllm.envs"), name, default)


def is_batch_invariant() -> bool:
    """Whether vLLM is in its mode in which a row's bits depend on the row alone."""
    return bool(_of_vllm("VLLM_BATCH_INVARIANT", False))


def _most_rows(world_size: int) -> int:
    """The most rows that a collective of the model may have."""
    config: Any = importlib.import_module("vllm.config").get_current_vllm_config_or_none()
    tokens = 0 if config is None else int(config.scheduler_config.max_num_batched_tokens or 0)
    return max(_config.current().max_rows, tokens * world_size)


def _attached(communicator: Any) -> str:
    """Attaches the communicator's process group, with all ranks; its name if Tandem serves it, else ""."""
    group, name = communicator.device_group, communicator.unique_name
    if name.split(":")[0] != "tp" or communicator.world_size < 2:
        return ""
    reason = ""
    if group is None or not dist.is_initialized() or group not in process_groups():
        reason = "its process group is not one of torch.distributed"
    most = _most_rows(communicator.world_size)
    return _server.attach(name, group, communicator.rank_in_group == 0, most, reason, by_rows_alone=is_batch_invariant())


def _all_reduce(x: Tensor, name: str) -> Tensor:
    return _tandem.all_reduce(x, "sum", name)  # type: ignore[no-any-return]


def _all_gather(x: Tensor, dim: int, name: str, world: int) -> Tensor:
    """Along another dimension than the first by a gather of rows: one plan serves all numbers of rows then."""
    whole: Tensor = _tandem.all_gather(x, 0, name)
    dim %= x.dim()
    if dim == 0:
        return whole
    return whole.view(world, *x.shape).movedim(0, dim).reshape(*x.shape[:dim], -1, *x.shape[dim + 1 :])


def _reduce_scatter(x: Tensor, dim: int, name: str, world: int) -> Tensor:
    """Along another dimension than the first by a scatter of rows, as above: the chunks become rows of their own."""
    dim %= x.dim()
    if dim == 0:
        return _tandem.reduce_scatter(x, "sum", 0, name)  # type: ignore[no-any-return]
    shape = [*x.shape[:dim], x.shape[dim] // world, *x.shape[dim + 1 :]]
    chunks = x.reshape(*x.shape[:dim], world, *shape[dim:]).movedim(dim, 0)
    rows = chunks.reshape(world * shape[0], *shape[1:])
    return _tandem.reduce_scatter(rows, "sum", 0, name)  # type: ignore[no-any-return]


class _Served:
    """The communicator of a group "tp" runs by Tandem what Tandem does not decline; another group's is vLLM's own."""

    device_group: Any
    unique_name: str
    world_size: int
    _tandem_group = ""  # the name of the process group; "" where vLLM's own communicator serves

    def __init__(self, *given: Any, **named: Any) -> None:
        vllms: Any = super()
        vllms.__init__(*given, **named)
        self._tandem_group = _attached(self)

    def _run(self, op: str, ours: Callable[..., Tensor], given: tuple[Any, ...], theirs: Callable[[], Any]) -> Any:
        if not self._tandem_group or torch.compiler.is_compiling():
            return theirs()
        result, is_run = _server.offer(self.unique_name, op, ours, *given)
        return result if is_run else theirs()

    def all_reduce(self, input_: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in a new one."""
        vllms: Any = super()
        return self._run("all_reduce", _all_reduce, (input_, self._tandem_group), lambda: vllms.all_reduce(input_))  # type: ignore[no-any-return]

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        """All ranks' tensors behind one another along a dimension."""
        vllms: Any = super()
        given = (input_, dim, self._tandem_group, self.world_size)
        return self._run("all_gather", _all_gather, given, lambda: vllms.all_gather(input_, dim))  # type: ignore[no-any-return]

    def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
        """This rank's chunk, along a dimension, of the sum of all ranks' tensors."""
        vllms: Any = super()
        given = (input_, dim, self._tandem_group, self.world_size)
        return self._run("reduce_scatter", _reduce_scatter, given, lambda: vllms.reduce_scatter(input_, dim))  # type: ignore[no-any-return]

    def _sleep(self, theirs: Callable[[], None]) -> None:
        if self._tandem_group:
            _suspension.suspend(self._tandem_group, keep=True)
        theirs()

    def _awake(self, theirs: Callable[[], None]) -> None:
        theirs()
        if self._tandem_group:
            _suspension.resume(self._tandem_group)

    def destroy(self) -> None:
        """Leaves the Tandem group, and ends vLLM's own communicator."""
        name, self._tandem_group = self._tandem_group, ""
        vllms: Any = super()
        try:
            vllms.destroy()
        finally:
            if name:
                _groups.detach(name)


def _communicator(unique_name: str) -> Any:
    """The communicator of vLLM's group with this name; None where there is none."""
    reference = _parallel_state._groups.get(unique_name)
    group = None if reference is None else reference()
    return getattr(group, "device_communicator", None)


def groups() -> list[str]:
    """The names of vLLM's groups that Tandem serves."""
    return sorted(name for name in list(_parallel_state._groups) if getattr(_communicator(name), "_tandem_group", ""))


def _of_norm(norm: Any, is_gemma: bool) -> Tensor | None:
    """What a module's norm multiplies by; None where Tandem has no such norm."""
    if getattr(norm, "variance_size_override", None) is not None or not getattr(norm, "pass_weight_add", True):
        return None
    weight: Tensor = norm.weight.data
    return weight + 1 if is_gemma else weight


def normed_sum(x: Tensor, residual: Tensor, norm: Any, is_gemma: bool, own: Callable[..., Any]) -> Any:
    """The norm of the residual with the sum of the tensor-parallel ranks' tensors, and that residual, which may be the given one,
    as behind vLLM's own norm. own: vLLM's function, which runs where Tandem declines."""
    coordinator = _parallel_state.get_tp_group()
    group = getattr(coordinator, "device_communicator", None)
    if group is None or not getattr(group, "_tandem_group", ""):
        return own(x, residual, norm)
    if not torch.compiler.is_compiling():
        result, is_run = _offer_norm(group, x, residual, _of_norm(norm, is_gemma), norm.variance_epsilon, is_gemma)
        if is_run:
            return result
    if _server.by_rows_alone(group.unique_name):  # vLLM's function may fuse where there are few rows
        return norm(coordinator.all_reduce(x), residual)
    return own(x, residual, norm)


def _offer_norm(group: Any, x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, keeps: bool) -> tuple[Any, bool]:
    with torch.no_grad():
        given = (x, residual, weight, epsilon, group._tandem_group, keeps)
        return _server.offer(group.unique_name, "all_reduce_norm", all_reduce_rms_norm, *given)


_LIB: Any = new_library("tandem_vllm", "FRAGMENT")
_LIB.define(
    "all_reduce_rms_norm(Tensor input, Tensor(a!) residual, Tensor weight, float epsilon, bool is_gemma, str group_name) -> Tensor"
)


def _compiled_sum(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float, is_gemma: bool, group_name: str) -> Tensor:
    """What a compiled model calls; by vLLM's own collective and norm where Tandem serves the group no more, or declines."""
    group = _communicator(group_name)
    if getattr(group, "_tandem_group", ""):
        factors = weight + 1 if is_gemma else weight
        result, is_run = _offer_norm(group, input, residual, factors, epsilon, False)
        if is_run:
            normed, summed = result
            if summed is not residual:  # whose elements share memory
                residual.copy_(summed)
            return normed  # type: ignore[no-any-return]
    return _own_normed_sum(input, residual, weight, epsilon, is_gemma, group_name)


def _own_normed_sum(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float, is_gemma: bool, group_name: str) -> Tensor:
    """The norm, and the new residual in the place of the old one, by vLLM's own collective and norm."""
    total = _parallel_state.all_reduce(input, group_name)
    factors = weight.float() + 1 if is_gemma else weight
    normed, summed = torch.ops.vllm_ir.fused_add_rms_norm(total, residual, factors, epsilon)
    residual.copy_(summed)
    return normed  # type: ignore[no-any-return]


def _shape_of_sum(input: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(input)


_LIB.impl("all_reduce_rms_norm", _compiled_sum, "CompositeExplicitAutograd")
torch.library.register_fake("tandem_vllm::all_reduce_rms_norm", _shape_of_sum, lib=_LIB)


_QUANTIZED = "Tensor input, Tensor(a!) residual, Tensor weight, {}, float epsilon, bool is_gemma, str group_name"
_LIB.define(f"all_reduce_rms_norm_static_fp8({_QUANTIZED.format('Tensor scale')}) -> Tensor")
_LIB.define(f"all_reduce_rms_norm_dynamic_fp8({_QUANTIZED.format('int count')}) -> (Tensor, Tensor)")


def _quantized_sum(
    input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, makes: bool, epsilon: float, is_gemma: bool, group_name: str
) -> Tensor:
    """The norm in fp8, by a scale that is given, or made. As _compiled_sum()."""
    group = _communicator(group_name)
    if getattr(group, "_tandem_group", ""):
        factors = weight + 1 if is_gemma else weight
        with torch.no_grad():
            given = (input, residual, factors, scale, makes, epsilon, group._tandem_group)
            result, is_run = _server.offer(group_name, "all_reduce_norm_fp8", all_reduce_rms_norm_fp8, *given)
        if is_run:
            quantized, summed = result
            if summed is not residual:
                residual.copy_(summed)
            return quantized  # type: ignore[no-any-return]
    normed = _own_normed_sum(input, residual, weight, epsilon, is_gemma, group_name)
    out = _shape_of_static(normed)
    _fallback.quantize(normed, scale, out, makes)
    return out


def _static_fp8(
    input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float, is_gemma: bool, group_name: str
) -> Tensor:
    return _quantized_sum(input, residual, weight, scale, False, epsilon, is_gemma, group_name)


def _dynamic_fp8(
    input: Tensor, residual: Tensor, weight: Tensor, count: int, epsilon: float, is_gemma: bool, group_name: str
) -> tuple[Tensor, Tensor]:
    """count: of the scales of a row."""
    scales = input.new_empty((*input.shape[:-1], count), dtype=torch.float32)
    return _quantized_sum(input, residual, weight, scales, True, epsilon, is_gemma, group_name), scales


def _shape_of_static(input: Tensor, *_: Any) -> Tensor:
    return input.new_empty(input.shape, dtype=torch.float8_e4m3fn)


def _shape_of_dynamic(input: Tensor, residual: Tensor, weight: Tensor, count: int, *_: Any) -> tuple[Tensor, Tensor]:
    return _shape_of_static(input), input.new_empty((*input.shape[:-1], count), dtype=torch.float32)


for _name, _kernel, _fake in (
    ("static", _static_fp8, _shape_of_static),
    ("dynamic", _dynamic_fp8, _shape_of_dynamic),
):
    _LIB.impl(f"all_reduce_rms_norm_{_name}_fp8", _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tandem_vllm::all_reduce_rms_norm_{_name}_fp8", _fake, lib=_LIB)


class _Gathers(_Served):
    def custom_all_gather(self, input_: Tensor) -> Tensor | None:
        """All ranks' tensors behind one another along the first dimension; None where the caller is to call all_gather."""
        vllms: Any = super()
        given = (input_, 0, self._tandem_group, self.world_size)
        return self._run("all_gather", _all_gather, given, lambda: vllms.custom_all_gather(input_))  # type: ignore[no-any-return]


class _Scatters(_Served):
    def custom_reduce_scatter(self, input_: Tensor) -> Tensor | None:
        """This rank's chunk of the sum, along the first dimension; None where the caller is to call reduce_scatter."""
        vllms: Any = super()
        given = (input_, 0, self._tandem_group, self.world_size)
        return self._run("reduce_scatter", _reduce_scatter, given, lambda: vllms.custom_reduce_scatter(input_))  # type: ignore[no-any-return]


class _Suspends(_Served):
    def suspend(self) -> None:
        """Gives up the Tandem group's memory, and then what vLLM's own communicator can. All ranks call it.

        vLLM's sleep mode does where its configuration has enable_nccl_comm_suspend."""
        vllms: Any = super()
        self._sleep(vllms.suspend)

    def resume(self) -> None:
        """Brings both back. All ranks call it."""
        vllms: Any = super()
        self._awake(vllms.resume)


class _Checkpoints(_Served):
    def checkpoint_prepare(self) -> None:
        """The same before a checkpoint of the process: Tandem has no memory in it that others map. All ranks call it."""
        vllms: Any = super()
        self._sleep(vllms.checkpoint_prepare)

    def checkpoint_restore(self) -> None:
        """Brings both back in the process that goes on. All ranks call it."""
        vllms: Any = super()
        self._awake(vllms.checkpoint_restore)


# Methods that only some versions have.
_OPTIONAL: dict[str, type] = {
    "custom_all_gather": _Gathers,
    "custom_reduce_scatter": _Scatters,
    "suspend": _Suspends,
    "checkpoint_prepare": _Checkpoints,
}
