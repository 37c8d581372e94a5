"""vLLM's sums with a residual and a norm behind them in compiled models: a pass among vLLM's own fuses each pair into one op.

At that point of vLLM's passes the sum is vllm.all_reduce, and residual and norm are vllm_ir.fused_add_rms_norm. The op names vLLM's
group, not torch's: an artifact of vLLM's cache serves later processes, too, and runs vLLM's own there if Tandem serves none.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import operator
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import _imports
from . import _quantizations
from ._signatures import function_difference

__all__ = ["take"]

_log = logging.getLogger("tandem.vllm")
_CONFIGURE = "compilation.passes.pass_manager.PostGradPassManager.configure"
# An entry of vLLM's additional configuration, which decides vLLM's cache key.
_KEY, _SOURCES = "tandem", ("vllm/_compiled.py", "vllm/_quantizations.py", "torch/_quantized_patterns.py")
_OWN = hashlib.sha256(b"".join((Path(__file__).parents[1] / name).read_bytes() for name in _SOURCES)).hexdigest()[:16]


def take(platform: Any) -> None:
    """Adds the pass to vLLM's, and names it in each configuration from now on. platform: its class."""
    _name_in_configurations(platform)
    _imports.on_import("vllm.compilation.passes.pass_manager", _add_pass)


def _name_in_configurations(platform: Any) -> None:
    given = platform.check_and_update_config

    @functools.wraps(given)
    def check(_: Any, vllm_config: Any, *rest: Any, **named: Any) -> Any:
        result = given(vllm_config, *rest, **named)
        if isinstance(vllm_config.additional_config, dict):
            vllm_config.additional_config[_KEY] = _OWN
        return result

    platform.check_and_update_config = classmethod(check)


def _add_pass(module: ModuleType) -> None:
    manager: Any = module.PostGradPassManager
    given: Callable[..., Any] = manager.configure
    reason = function_difference(_CONFIGURE, given)
    if reason:
        _log.warning("vLLM keeps its own passes: %s", reason)
        return

    @functools.wraps(given)
    def configure(self: Any, config: Any) -> Any:
        result = given(self, config)
        # Without the name in the cache's key, a process without Tandem would load what was compiled with it.
        if isinstance(config.additional_config, dict) and _KEY in config.additional_config and _fuses(config):
            self.passes.insert(_place(self.passes), _pass_of(module)(config))
        return result

    manager.configure = configure


def _fuses(config: Any) -> bool:
    """Whether the model's norms are to be fused. vLLM runs a model with an encoder uncompiled in a step where any request brings
    inputs of the encoder. In vLLM's batch-invariant mode its norms are never fused, so that they are alike in all steps."""
    served: Any = importlib.import_module("tandem.vllm._served")
    return not (served.is_batch_invariant() and getattr(config.model_config, "is_encoder_decoder", False))


def _place(passes: list[Any]) -> int:
    """In front of vLLM's own fusions, of which the first one takes the same sums."""
    names = [type(one).__name__ for one in passes]
    return names.index("NoOpEliminationPass") + 1 if "NoOpEliminationPass" in names else 0


@functools.cache
def _pass_of(module: ModuleType) -> type:
    base: Any = importlib.import_module("vllm.compilation.passes.vllm_inductor_pass").VllmInductorPass

    class TandemAllReduceNormPass(base):  # type: ignore[misc]
        """Fuses the sums of Tandem's groups with the norms behind them."""

        @base.time_and_log  # type: ignore[untyped-decorator]
        def __call__(self, graph: Any) -> None:
            count = fuse(graph)
            _log.debug("%d sums with a norm run by Tandem", count)

        def uuid(self) -> str:
            """Covers these modules, and which groups Tandem serves."""
            served: Any = importlib.import_module("tandem.vllm._served")
            return base.hash_source(_OWN, " ".join(served.groups()))  # type: ignore[no-any-return]

    return TandemAllReduceNormPass


def fuse(graph: Any) -> int:
    """Fuses each sum of a group of Tandem's whose only use is a norm with a residual; returns how many there are."""
    torch: Any = importlib.import_module("torch")
    served: Any = importlib.import_module("tandem.vllm._served")
    groups, count = served.groups(), 0
    for norm in graph.find_nodes(op="call_function", target=torch.ops.vllm_ir.fused_add_rms_norm.default):
        found = _match(norm, groups)
        if found is not None:
            _replace(graph, norm, *found)
            count += 1
    return count


def _match(norm: Any, groups: list[str]) -> tuple[Any, Any, bool, str] | None:
    """The sum's node, the weight's node, whether one is added to that, and the group's name."""
    torch: Any = importlib.import_module("torch")
    given = dict(zip(("x", "x_residual", "weight", "epsilon", "variance_size"), norm.args, strict=False)) | norm.kwargs
    total, residual, weight = given["x"], given["x_residual"], given["weight"]
    if weight is None or given.get("variance_size") is not None:
        return None
    if total.op != "call_function" or total.target is not torch.ops.vllm.all_reduce.default or len(total.users) != 1:
        return None
    name = total.args[1] if len(total.args) > 1 else total.kwargs.get("group_name")
    weight, is_gemma = _without_one(weight)
    x = total.meta["val"]
    same = all(one.meta["val"].dtype == x.dtype for one in (residual, weight))
    if name not in groups or not same or residual.meta["val"].shape != x.shape or weight.meta["val"].dim() != 1:
        return None
    return total, weight, is_gemma, name


def _without_one(weight: Any) -> tuple[Any, bool]:
    """The weight of Gemma's norm, which multiplies by weight.float() + 1; any other weight as it is."""
    torch: Any = importlib.import_module("torch")
    if weight.target is not torch.ops.aten.add.Tensor or list(weight.args[1:]) != [1] or weight.kwargs:
        return weight, False
    wide = weight.args[0]
    if wide.target is torch.ops.prims.convert_element_type.default and wide.args[1] is torch.float32:
        return wide.args[0], True
    return weight, False


def _replace(graph: Any, norm: Any, total: Any, weight: Any, is_gemma: bool, name: str) -> None:
    functionalize: Any = importlib.import_module("torch._higher_order_ops.auto_functionalize")
    torch: Any = importlib.import_module("torch")
    given = {
        "input": total.args[0] if total.args else total.kwargs["tensor"],
        "residual": norm.args[1],
        "weight": weight,
        "epsilon": norm.args[3],
        "is_gemma": is_gemma,
        "group_name": name,
    }
    target, value = torch.ops.tandem_vllm.all_reduce_rms_norm.default, norm.meta["val"]
    quantized = _quantizations.find(norm, total)
    if quantized is not None:
        target, given, value = _quantized(quantized, given, value)
    with graph.inserting_before(norm):
        fused = graph.call_function(functionalize.auto_functionalized, (target,), given)
        fused.meta["val"] = value
        if quantized is not None:
            items = [graph.call_function(operator.getitem, (fused, index)) for index in range(len(value))]
            for item, one in zip(items, value, strict=True):
                item.meta["val"] = one
            _quantizations.write(graph, quantized, items[:-1])
    if quantized is not None:
        _replace_residual(graph, norm, quantized, items)
        graph.erase_node(total)
        return
    for user in list(norm.users):
        assert user.target is operator.getitem, user
        user.replace_input_with(norm, fused)
    graph.erase_node(norm)
    graph.erase_node(total)


def _quantized(quantized: Any, given: dict[str, Any], value: Any) -> tuple[Any, dict[str, Any], Any]:
    """The op that quantises as well, its arguments, and what it gives: the norm in fp8, the scales that it makes, the residual."""
    torch: Any = importlib.import_module("torch")
    ops, (normed, residual) = torch.ops.tandem_vllm, value
    result = normed.new_empty(normed.shape, dtype=torch.float8_e4m3fn)
    if not quantized.count:
        return ops.all_reduce_rms_norm_static_fp8.default, given | {"scale": quantized.scale}, (result, residual)
    scales = normed.new_empty([*normed.shape[:-1], quantized.count], dtype=torch.float32)
    return ops.all_reduce_rms_norm_dynamic_fp8.default, given | {"count": quantized.count}, (result, scales, residual)


def _replace_residual(graph: Any, norm: Any, quantized: Any, items: list[Any]) -> None:
    """Lets the users of the norm's residual have the op's, and erases what nobody uses any more."""
    graphs: Any = importlib.import_module("tandem.torch._graphs")
    users = list(norm.users)
    for user in users:
        if user.args[1] == 1:
            user.replace_all_uses_with(items[-1])
    graphs.erase_dead([*quantized.nodes, *users, norm, *items])
