"""Puts Tandem's functions in the places of Megatron's, and Megatron's back."""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from typing import Any

from ._choice import why_not_column, why_not_row
from ._linears import Layer, column_parallel, row_parallel
from ._report import count

__all__ = ["install", "installed", "uninstall"]

_MODULE = "megatron.core.tensor_parallel.layers"
_FUNCTION = "LinearWithGradAccumulationAndAsyncCommunication"
# The functions that Tandem replaces or relies on, with the names of their arguments.
_KNOWN = {
    f"{_FUNCTION}.forward": (
        "ctx, input, weight, bias, gradient_accumulation_fusion, allreduce_dgrad, sequence_parallel, grad_output_buffer, "
        "wgrad_deferral_limit, tp_group"
    ),
    "linear_with_frozen_weight": (
        "input, weight, bias, gradient_accumulation_fusion, allreduce_dgrad, sequence_parallel, tp_group, grad_output_buffer, "
        "wgrad_deferral_limit, async_grad_allreduce"
    ),
    "RowParallelLinear.forward": "self, input_",
    "RowParallelLinear._forward_impl": "self, input, weight, args, kwargs",
}

_lock = threading.Lock()
_before: list[tuple[Any, str, Any]] = []  # places, with what was there before install()


def _unknown(layers: Any) -> str:
    """What differs from the Megatron that Tandem's functions stand for; "" if nothing does."""
    for path, known in _KNOWN.items():
        try:
            found = ", ".join(inspect.signature(functools.reduce(getattr, path.split("."), layers)).parameters)
        except AttributeError:
            return f"it has no {path}"
        if found != known:
            return f"its {path} takes ({found}), not ({known})"
    return ""


def _column(theirs: Any, layers: Any) -> type:
    """Megatron's function of column-parallel products, whose `apply` is Tandem's where it serves the call."""

    def apply(
        input: Any,
        weight: Any,
        bias: Any,
        gradient_accumulation_fusion: bool,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        grad_output_buffer: Any,
        wgrad_deferral_limit: Any,
        tp_group: Any,
    ) -> Any:
        how = (gradient_accumulation_fusion, allreduce_dgrad, sequence_parallel, grad_output_buffer)
        reason = why_not_column(input, weight, bias, *how, tp_group)
        if sequence_parallel or allreduce_dgrad:
            count("column parallel", reason)
        if reason:
            return theirs.apply(input, weight, bias, *how, wgrad_deferral_limit, tp_group)
        layer = Layer(layers, gradient_accumulation_fusion, sequence_parallel, str(tp_group.group_name))
        return column_parallel(input, weight, bias, layer)

    return type(
        theirs.__name__,
        (theirs,),
        {"__module__": theirs.__module__, "__doc__": theirs.__doc__, "apply": staticmethod(apply)},
    )


def _frozen_column(theirs: Any, layers: Any) -> Any:
    """The same of a weight without a gradient, which Megatron has as a function."""
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def linear(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        of = bound.arguments
        input, weight, bias, sequence_parallel = of["input"], of["weight"], of["bias"], of["sequence_parallel"]
        group = layers.get_tensor_model_parallel_group_if_none(of["tp_group"])
        buffer = of["grad_output_buffer"] if of["wgrad_deferral_limit"] is None else of["wgrad_deferral_limit"]
        reason = why_not_column(input, weight, bias, False, of["allreduce_dgrad"], sequence_parallel, buffer, group)
        if sequence_parallel or of["allreduce_dgrad"]:
            count("column parallel", reason)
        if reason:
            return theirs(*given, **named)
        return column_parallel(input, weight, bias, Layer(layers, False, sequence_parallel, str(group.group_name)))

    return linear


def _row(theirs: Any, forward_impl: Any, layers: Any) -> Any:
    """RowParallelLinear.forward."""

    @functools.wraps(theirs)
    def forward(self: Any, input_: Any) -> Any:
        reason = why_not_row(self, forward_impl, input_)
        count("row parallel", reason)
        if reason:
            return theirs(self, input_)
        bias = None if self.skip_bias_add else self.bias
        layer = Layer(layers, self.gradient_accumulation_fusion, self.sequence_parallel, str(self.tp_group.group_name))
        output = row_parallel(input_, self.weight, bias, layer)
        return output, self.bias if self.skip_bias_add else None

    return forward


def install() -> None:
    """Puts Tandem behind Megatron-core's ColumnParallelLinear and RowParallelLinear, also of models that exist.

    Layers of tensor-parallel groups run fused products and collectives; the others, and what Tandem does not serve, run Megatron's
    own code. Which calls are taken depends on configuration, types and shapes alone; report() has the counts and reasons.

    A second call changes nothing. Call it alike on all ranks, between a backward and a forward. ImportError: Megatron-core is not
    installed, or its layers are not those that Tandem knows; nothing has changed then.
    """
    with _lock:
        if _before:
            return
        layers: Any = importlib.import_module(_MODULE)
        unknown = _unknown(layers)
        if unknown:
            raise ImportError(f"tandem.megatron does not know this version of megatron-core: {unknown}")
        function, linear = getattr(layers, _FUNCTION), layers.RowParallelLinear
        _put(layers, _FUNCTION, _column(function, layers))
        _put(layers, "linear_with_frozen_weight", _frozen_column(layers.linear_with_frozen_weight, layers))
        _put(linear, "forward", _row(linear.forward, linear._forward_impl, layers))


def _put(where: Any, name: str, what: Any) -> None:
    _before.append((where, name, getattr(where, name)))
    setattr(where, name, what)


def installed() -> bool:
    """Whether install() is in force."""
    return bool(_before)


def uninstall() -> None:
    """Puts back what was there before install(). Does nothing if that is not in force. A backward whose forward Tandem has run is
    Tandem's."""
    with _lock:
        while _before:
            where, name, what = _before.pop()
            setattr(where, name, what)
