"""Which nodes of a graph take time that a collective beside them could hide behind."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ._graphs import CONVERT, RESHAPES, aten, calls

# Data that is moved once.
_COPIES = (aten.cat.default, aten.copy.default, aten.constant_pad_nd.default, aten.slice_scatter.default)


def weighs(node: Node) -> bool:
    """Whether the node takes time worth hiding behind: all but element-wise work, views, copies, other collectives and Tandem's own
    without a product."""
    target: Any = node.target
    if node.op != "call_function" or calls(node, CONVERT, *RESHAPES, *_COPIES):
        return False
    if target is torch.ops.higher_order.auto_functionalized:
        target = node.args[0]
    elif not node.all_input_nodes:
        return False  # a buffer, or a constant
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False  # Python's, of numbers and of lists
    if target.namespace == "tandem":
        return "matmul" in target._schema.name
    views = any(result.alias_info is not None for result in target._schema.returns)
    return target.namespace != "_c10d_functional" and torch.Tag.pointwise not in target.tags and not views
