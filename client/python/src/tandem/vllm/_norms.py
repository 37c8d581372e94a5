"""vLLM's sums with a residual and a norm behind them, by Tandem in one step: the functions that eager models call."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import _imports
from ._signatures import function_difference

__all__ = ["take"]

_log = logging.getLogger("tandem.vllm")
# The functions, and whether their norm multiplies by one more than the weight, as Gemma's.
_FUNCTIONS = {
    "model_executor.layers.fused_allreduce_gemma_rms_norm.fused_allreduce_gemma_rms_norm": True,
    "models.common.ops.fused_allreduce_rms_norm.fused_allreduce_rms_norm": False,
    "models.deepseek_v32.nvidia.fused_ops.fused_allreduce_rms_norm": False,  # its place before 0.33
}


def take() -> None:
    """Puts Tandem in front of these functions, as soon as a model imports them."""
    for name, is_gemma in _FUNCTIONS.items():
        module, _, function = name.rpartition(".")
        _imports.on_import(f"vllm.{module}", functools.partial(_put_in_front, name, function, is_gemma))


def _put_in_front(name: str, function: str, is_gemma: bool, module: ModuleType) -> None:
    own = getattr(module, function, None)
    if own is None:  # the module imports it from its new place
        return
    if own.__module__ == module.__name__ and not hasattr(own, "of_tandem"):
        reason = function_difference(name, own)
        if reason:
            _log.warning("vLLM keeps its own fused norm: %s", reason)
            return
        _imports.replace(module, function, _in_front_of(own, is_gemma))


def _in_front_of(own: Callable[..., Any], is_gemma: bool) -> Callable[..., Any]:
    @functools.wraps(own)
    def fused(hidden_states: Any, residual: Any, norm: Any) -> Any:
        served: Any = importlib.import_module("tandem.vllm._served")
        return served.normed_sum(hidden_states, residual, norm, is_gemma, own)

    fused.of_tandem = True  # type: ignore[attr-defined]
    return fused
