"""Groups of SGLang whose tensor-parallel collectives run by Tandem. Each hook has SGLang's own method as its first argument."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..torch import _config, _groups
from ..torch._private import process_groups
from ..torch._servers import Server, all_reduce_rms_norm
from ._counts import count

__all__ = ["AROUND", "after_init", "fuses", "keeps_norms_apart", "normed_sum"]

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem
_server = Server("SGLang", logging.getLogger("tandem.sglang"), count)
# SGLang's groups of ranks with the parts of one layer, by the names that they begin with.
_SERVED = ("tp", "attention_tp", "moe_tp", "shared_experts_tp")
_NAME = "_tandem_group"  # attribute of a group: the name of the process group


def _is_deterministic() -> bool:
    """Whether SGLang is in its mode in which a row's bits depend on the row alone."""
    envs: Any = importlib.import_module("sglang.srt.environ").envs
    return bool(envs.SGLANG_ENABLE_DETERMINISTIC_INFERENCE.get())


def after_init(result: None, group: Any, *given: Any, **named: Any) -> None:
    """Attaches a new group's process group, with all its ranks."""
    setattr(group, _NAME, "")
    reason = ""
    if group.unique_name.split(":")[0] not in _SERVED or group.world_size < 2:
        return
    if group.device_group not in process_groups() or dist.get_backend(group.device_group) not in ("nccl", "gloo", "tandem"):
        reason = "its process group is neither NCCL's nor gloo's"
    most, is_first = _config.current().max_rows * group.world_size, group.rank_in_group == 0
    name = _server.attach(group.unique_name, group.device_group, is_first, most, reason, by_rows_alone=_is_deterministic())
    setattr(group, _NAME, name)


class _Thread(threading.local):
    declined = False  # within a call that Tandem has declined: SGLang's own methods call one another


_thread = _Thread()


def _run(group: Any, op: str, ours: Callable[..., Any], given: tuple[Any, ...], theirs: Callable[[], Any]) -> Any:
    """`ours` gets the given arguments and the name of the process group. `theirs` runs where Tandem declines, and while torch
    traces: the ops of SGLang in the compiled graph call these methods again."""
    name = getattr(group, _NAME, "")
    if not name or _thread.declined or torch.compiler.is_compiling():
        return theirs()
    result, is_run = _server.offer(group.unique_name, op, ours, *given, name)
    if is_run:
        return result
    _thread.declined = True
    try:
        return theirs()
    finally:
        _thread.declined = False


def _all_reduce(own: Callable[..., Any], group: Any, input_: Tensor, *how: Any, **named: Any) -> Any:
    """The sum of all ranks' tensors, in a new one."""

    def theirs() -> Any:
        return own(group, input_, *how, **named)

    def ours(x: Tensor, name: str) -> Tensor:
        return _tandem.all_reduce(x, "sum", name)  # type: ignore[no-any-return]

    return _run(group, "all_reduce", ours, (input_,), theirs)


def _all_reduce_in_place(own: Callable[..., Any], group: Any, input_: Tensor) -> Any:
    def ours(x: Tensor, name: str) -> None:
        _tandem.all_reduce_(x, "sum", name)

    return _run(group, "all_reduce", ours, (input_,), lambda: own(group, input_))


def _all_gather_into(own: Callable[..., Any], group: Any, output: Tensor, input: Tensor) -> Any:
    def ours(x: Tensor, out: Tensor, name: str) -> None:
        _tandem.all_gather.out(x, 0, name, out=out)

    return _run(group, "all_gather", ours, (input, output), lambda: own(group, output, input))


def _reduce_scatter_into(own: Callable[..., Any], group: Any, output: Tensor, input: Tensor) -> Any:
    def ours(x: Tensor, out: Tensor, name: str) -> Tensor:
        _tandem.reduce_scatter.out(x, "sum", 0, name, out=out)
        return out

    return _run(group, "reduce_scatter", ours, (input, output), lambda: own(group, output, input))


def _destroy(own: Callable[..., Any], group: Any) -> Any:
    """Leaves the Tandem group, after SGLang has ended its own."""
    name = getattr(group, _NAME, "")
    setattr(group, _NAME, "")
    try:
        return own(group)
    finally:
        if name:
            _groups.detach(name)


def _fusion() -> Any:
    """SGLang's module of fused norms, which has been imported where one is called."""
    return importlib.import_module("sglang.srt.layers.flashinfer_comm_fusion")


def _group_of_norm(attention: bool) -> Any:
    """The group whose ranks' tensors a fused norm sums: of the attention's ranks, or of those behind the experts."""
    return _fusion().resolve_fusion_group(use_attn_tp_group=attention)[2]


def keeps_norms_apart(attention: bool) -> bool:
    """Whether this group's sums never go into the norms behind them: in SGLang's deterministic mode. SGLang has no fused norms
    there, and its gate and its compiled graphs would have Tandem's for some numbers of rows alone."""
    if not _is_deterministic():
        return False
    group = _group_of_norm(attention)
    return bool(getattr(group, _NAME, "")) and _server.by_rows_alone(group.unique_name)


def fuses(batch_size: Any, most: int) -> bool:
    """Whether layers are to leave their sums to the norms behind them, where SGLang has chosen fused norms for the model: Tandem
    serves the groups of both, on all ranks alike. While torch traces, SGLang's own answer counts."""
    if torch.compiler.is_compiling() or not 0 < batch_size <= most:
        return False
    fusion = _fusion()
    if fusion.get_exec().comm.flashinfer_allreduce_fusion_backend is None or fusion.uses_cutedsl_ar_fusion():
        return False
    if importlib.import_module("sglang.srt.layers.dp_attention").is_dp_attention_enabled():
        return False
    groups = [group for group in map(_group_of_norm, (True, False)) if group.world_size > 1]
    return bool(groups) and all(getattr(group, _NAME, "") for group in groups)


def normed_sum(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, attention: bool, theirs: Callable[[bool], Any]) -> Any:
    """The norm of the residual with the sum of the group's tensors, and that residual in a new tensor. theirs: by SGLang's
    kernel, if that is to ask its gate: where it is shut, too, SGLang sums and norms."""
    group = _group_of_norm(attention)
    if torch.compiler.is_compiling() or not getattr(group, _NAME, ""):
        return theirs(False)

    def ours(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, name: str) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return all_reduce_rms_norm(x, residual, weight.detach(), epsilon, name, True)

    return _run(group, "all_reduce_norm", ours, (x, residual, weight, epsilon), lambda: theirs(True))


# By the name of SGLang's method.
AROUND: dict[str, Callable[..., Any]] = {
    "all_reduce": _all_reduce,
    "_all_reduce_out_place": _all_reduce,
    "_all_reduce_in_place": _all_reduce_in_place,
    "_all_gather_into_tensor": _all_gather_into,
    "_reduce_scatter_tensor": _reduce_scatter_into,
    "destroy": _destroy,
}
