"""Collectives of a graph that the pass has no rule for, and those that symm_mem has fused: torch's own pass makes such."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from . import _batch as batch
from ._graphs import named_arguments
from ._writer import tensor

_ops: Any = torch.ops.tandem
# Arguments are alike and in the same order.
_OURS = {
    "fused_all_gather_matmul": "all_gather_matmul",
    "fused_all_gather_scaled_matmul": "all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter": "matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter": "scaled_matmul_reduce_scatter",
}
# All-reduces, and the argument that they reduce.
_ALL_REDUCES = {"one_shot_all_reduce": "input", "one_shot_all_reduce_copy": "local_input"}
_NAMESPACES = ("symm_mem", "_c10d_functional")


def _name(node: Node) -> tuple[str, str]:
    """The namespace and the name of the op that the node calls; two empty texts for other nodes."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return "", ""
    namespace, _, name = str(node.target._schema.name).partition("::")
    return namespace, name


def collective(node: Node) -> str:
    """The name of a collective that the pass has no rule for; "" for other nodes."""
    namespace, name = _name(node)
    if namespace not in _NAMESPACES or name in ("wait_tensor", "wait_tensors"):
        return ""
    return name if namespace != "symm_mem" or name in _OURS or name in _ALL_REDUCES else ""


def group_of(node: Node) -> str:
    """The name of the collective's group; "" where it is no name."""
    value = named_arguments(node).get("group_name", "")
    return value if isinstance(value, str) else ""


def all_reduced(node: Node) -> tuple[Node, str] | None:
    """The input and operation of an all-reduce of symm_mem; None for other nodes."""
    namespace, name = _name(node)
    if namespace != "symm_mem" or name not in _ALL_REDUCES:
        return None
    given = named_arguments(node)
    return given[_ALL_REDUCES[name]], given["reduce_op"]


def _why_apart(node: Node) -> str:
    """Why the node's products do not keep the configuration's promise as Tandem's; "" if they do."""
    if not batch.in_force():
        return ""
    given = named_arguments(node)
    a, bs = tensor(given["A"]), given["Bs"] if "Bs" in given else [given["B"]]
    extents = given.get("output_shape") or a.shape
    dim = next(given[name] for name in ("gather_dim", "orig_scatter_dim", "scatter_dim") if name in given)
    whys = (batch.why_apart(a, tensor(b), batch.along(dim, extents), given.get("reduce_op", "")) for b in bs)
    return next((why for why in whys if why), "")


def replace(node: Node, graph_name: str) -> tuple[str, str]:
    """Puts Tandem's op in the place of a fused one. Returns (what the node is now, why); where it stays, ("", why)."""
    ours = _OURS.get(_name(node)[1], "")
    if not ours:
        if node.target._schema.is_mutable:  # type: ignore[union-attr]
            return "", "it writes its argument"
        return "", "the pass has no fused form of it"
    if ours == "scaled_matmul_reduce_scatter":
        given = named_arguments(node)
        if given.get("bias") is not None or given.get("result_scale") is not None:
            return "", "it adds a bias or a scale on each rank, before the sum"
    if apart := _why_apart(node):
        return "", apart
    node.target = getattr(_ops, ours).noted
    if ours == "all_gather_matmul":
        node.args = (*node.args[:4], None)
    node.kwargs = {**node.kwargs, "graph": graph_name}
    return ours, "it was fused already, as symm_mem's"
