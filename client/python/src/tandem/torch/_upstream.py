"""Collectives of a graph that the pass has no rule for, and those that symm_mem has fused: torch's own pass makes such."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

_ops: Any = torch.ops.tandem
# Arguments are alike and in the same order.
_OURS = {
    "fused_all_gather_matmul": "all_gather_matmul",
    "fused_all_gather_scaled_matmul": "all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter": "matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter": "scaled_matmul_reduce_scatter",
}
_NAMESPACES = ("symm_mem", "_c10d_functional")


def _name(node: Node) -> tuple[str, str]:
    """The namespace and the name of the op that the node calls; two empty texts for other nodes."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return "", ""
    namespace, _, name = str(node.target._schema.name).partition("::")
    return namespace, name


def collective(node: Node) -> str:
    """The name of a collective that the pass has no rule of its own for; "" for other nodes."""
    namespace, name = _name(node)
    if namespace not in _NAMESPACES or name == "wait_tensor" or (namespace == "symm_mem" and name not in _OURS):
        return ""
    return name


def group_of(node: Node) -> str:
    """The name of the collective's group; "" where it is no name."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    at = names.index("group_name") if "group_name" in names else -1
    value = node.kwargs.get("group_name", node.args[at] if 0 <= at < len(node.args) else "")
    return value if isinstance(value, str) else ""


def replace(node: Node, graph_name: str) -> tuple[str, str]:
    """Puts Tandem's op in the place of a fused one. Returns (what the node is now, why); where it stays, ("", why)."""
    ours = _OURS.get(_name(node)[1], "")
    if not ours:
        return "", "the pass has no fused form of it"
    if ours == "scaled_matmul_reduce_scatter":
        named = dict(zip((one.name for one in node.target._schema.arguments), node.args, strict=False)) | node.kwargs  # type: ignore[union-attr]
        if named.get("bias") is not None or named.get("result_scale") is not None:
            return "", "it adds a bias or a scale on each rank, before the sum"
    node.target = getattr(_ops, ours).noted
    if ours == "all_gather_matmul":
        node.args = (*node.args[:4], None)
    node.kwargs = {**node.kwargs, "graph": graph_name}
    return ours, "it was fused already, as symm_mem's"
