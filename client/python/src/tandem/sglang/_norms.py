"""SGLang's sums with a residual and a norm behind them, by Tandem in one step.

SGLang asks a gate whether a layer leaves its sum to the norm behind it. One function then runs both, or declines: SGLang sums and
norms then. So Tandem opens the gate where SGLang's configuration has fused norms and Tandem serves the groups, also where SGLang's
own kernel is absent.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import _imports
from ._signatures import GATE, NORM, function_difference

__all__ = ["take"]

_log = logging.getLogger("tandem.sglang")


def take() -> None:
    """Puts Tandem in front of both functions, as soon as SGLang imports them."""
    for name, made in ((NORM, _norm_of), (GATE, _gate_of)):
        module, _, function = name.rpartition(".")
        _imports.on_import(f"sglang.{module}", functools.partial(_put_in_front, name, function, made))


def _put_in_front(name: str, function: str, made: Callable[..., Any], module: ModuleType) -> None:
    own = getattr(module, function, None)
    reason = "" if own is None else function_difference(name, own)
    if own is None or reason:
        _log.warning("SGLang keeps its own fused norm: %s", reason or f"there is no {name}")
        return
    _imports.replace(module, function, functools.wraps(own)(made(own, module)))


def _norm_of(own: Callable[..., Any], _: ModuleType) -> Callable[..., Any]:
    def fused(input_tensor: Any, residual: Any, weight: Any, eps: float = 1e-6, *rest: Any, **named: Any) -> Any:
        served: Any = importlib.import_module("tandem.sglang._served")
        attention = rest[4] if len(rest) > 4 else named.get("use_attn_tp_group", True)
        if served.keeps_norms_apart(attention):
            return None, None

        def theirs(asks: bool) -> Any:
            if asks and _own_gate is not None and not _own_gate(input_tensor.shape[0]):
                return None, None  # it was Tandem that had opened the gate
            return own(input_tensor, residual, weight, eps, *rest, **named)

        return served.normed_sum(input_tensor, residual, weight, eps, attention, theirs)

    return fused


_own_gate: Callable[..., Any] | None = None


def _gate_of(own: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    global _own_gate
    _own_gate = own

    def applies(batch_size: Any) -> Any:
        served: Any = importlib.import_module("tandem.sglang._served")
        if served.keeps_norms_apart(True) or served.keeps_norms_apart(False):
            return False
        return served.fuses(batch_size, module.FUSE_ALLREDUCE_MAX_BATCH_SIZE) or own(batch_size)

    return applies
