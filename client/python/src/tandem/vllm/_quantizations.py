"""The quantisation of a norm to fp8 in vLLM's compiled models: written by aten's operations, or one call of a kernel of vLLM's.

Tandem's ops divide by the scale. So do vLLM's groups, and its kernel with a scale for each token. The others multiply by the
reciprocal, and an element may differ by a step of fp8. vLLM's own kernels that fuse the norm differ so as well.
"""

from __future__ import annotations

import importlib
import logging
import operator
from typing import Any

__all__ = ["find", "write"]

_log = logging.getLogger("tandem.vllm")
_PATTERNS = "tandem.torch._quantized_patterns"
_STATIC, _BY_TOKENS = "_C.static_scaled_fp8_quant.default", "_C.dynamic_per_token_scaled_fp8_quant.default"


def find(norm: Any, total: Any) -> Any:
    """The quantisation, as the patterns describe it, that has all uses of a norm with a residual behind the sum; None if there is
    none."""
    patterns: Any = importlib.import_module(_PATTERNS)
    normed = item(norm, 0)
    if normed is None:
        return None
    try:
        dtype = normed.meta["val"].dtype
        found = _by_kernel(patterns, normed, dtype) or patterns.quantization_behind(normed, dtype, total, multiplies=True)
    except patterns.NoQuantization as reason:
        _log.debug("vLLM quantises a norm itself: %s", reason)
        return None
    return found if found is not None and _is_writable(found, norm) else None


def _is_writable(found: Any, norm: Any) -> bool:
    """Whether the scale, if it is given, is there before the norm, and results have one symbolic extent at most."""
    made = [found.result] if found.count == 0 or found.scale is None else [found.result, found.scale]
    symbols = [sum(not isinstance(extent, int) for extent in one.meta["val"].shape) for one in made]
    return max(symbols) < 2 and (found.count > 0 or found.scale < norm)


def item(node: Any, index: int) -> Any:
    """The node's result with this index; None where nobody uses it."""
    return next((user for user in node.users if user.target is operator.getitem and user.args[1] == index), None)


def _by_kernel(patterns: Any, normed: Any, dtype: Any) -> Any:
    """The quantisation by a kernel that has all uses of the norm."""
    functionalize: Any = importlib.import_module("torch._higher_order_ops.auto_functionalize")
    forms = patterns.forms_of(normed, dtype)
    users = patterns.users_of(forms)
    call: Any = users[0] if len(users) == 1 else None
    if call is None or call.target is not functionalize.auto_functionalized or str(call.args[0]) not in (_STATIC, _BY_TOKENS):
        return None
    given, result = call.kwargs, item(call, 1)
    rows, quantized = given["input"], given["result"].meta["val"]
    if result is None or rows not in forms or rows.meta["val"].dtype != dtype or quantized.dtype != patterns.FP8:
        return None
    if rows.meta["val"].shape != quantized.shape or rows.meta["val"].shape[-1] != normed.meta["val"].shape[-1]:
        return None
    nodes = [result, call, *reversed(forms[1:])]
    if str(call.args[0]) == _STATIC:
        scale = given["scale"]
        fits = scale.meta["val"].numel() == 1 and scale.meta["val"].device == quantized.device
        return patterns.Quantization(scale, 0, result, nodes) if fits else None
    if given.get("scale_ub") is not None:
        return None
    scale = item(call, 2)
    return patterns.Quantization(scale, 1, result, nodes if scale is None else [scale, *nodes])


def write(graph: Any, quantized: Any, results: list[Any]) -> None:
    """Puts the results of Tandem's op in the place of the quantisation: the norm in fp8, and the scales that the op makes."""
    for old, new in zip((quantized.result, quantized.scale), results, strict=False):
        if old is not None:
            old.replace_all_uses_with(_viewed(graph, new, old.meta["val"].shape))


def _viewed(graph: Any, node: Any, extents: Any) -> Any:
    """The node with these extents, of which one at most is a symbol."""
    torch: Any = importlib.import_module("torch")
    graphs: Any = importlib.import_module("tandem.torch._graphs")
    value = node.meta["val"]
    if len(value.shape) == len(extents) and all(map(graphs.equal, value.shape, extents)):
        return node
    view = graph.call_function(torch.ops.aten.reshape.default, (node, [one if isinstance(one, int) else -1 for one in extents]))
    view.meta["val"] = value.new_empty(list(extents))
    return view
