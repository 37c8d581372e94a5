"""How the compile pass writes nodes: calls, and results in buffers that Inductor plans."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ._graphs import aten


def _fresh(node: Any) -> Any:
    """A tensor like the node's, or a list of these."""
    return [_fresh(one) for one in node] if isinstance(node, list) else torch.empty_like(tensor(node))


def static(extents: Sequence[Any]) -> bool:
    """Whether no extent is symbolic."""
    return all(isinstance(extent, int) for extent in extents)


def tensor(node: Node) -> torch.Tensor:
    """The node's tensor, without its elements."""
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


class Writer:
    """The writer of one graph, whose ops note its name."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def _emit(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: torch.Tensor, extents: Sequence[Any]) -> Node:
        node: Node = self.graph.call_function(op, args, kwargs)
        node.meta["val"] = like.new_empty(list(extents))
        return node

    # Buffers for results are nodes of their own, so that Inductor plans them, also where its version knows no such overloads. An
    # op with results of symbolic extents allocates them itself: a graph has no nodes for these extents.

    def _buffer(self, like: torch.Tensor, extents: Sequence[Any]) -> Node:
        given = {"dtype": like.dtype, "layout": torch.strided, "device": like.device, "pin_memory": False}
        return self._emit(aten.empty.memory_format, (list(extents),), given, like, extents)

    def _fill(self, op: Any, args: tuple[Any, ...], outs: dict[str, Any], result: torch.Tensor | None = None) -> list[Any]:
        """Calls an overload that fills buffers, in the form that keeps a graph functional until Inductor has placed its buffers.
        Returns what is filled: a node of each of the outputs, or a list of nodes. Behind these a node like `result`, if the
        overload returns one."""
        names = [argument.name for argument in op._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), "graph": self.name, **outs}
        call = self.graph.call_function(torch.ops.higher_order.auto_functionalized, (op,), given)
        call.meta["val"] = (result, *[_fresh(out) for out in outs.values()])
        filled: list[Any] = []
        for i, out in enumerate(outs.values()):
            one = self._item(call, i + 1)
            filled.append([self._item(one, j) for j in range(len(out))] if isinstance(out, list) else one)
        return filled if result is None else [*filled, self._item(call, 0)]

    def _item(self, node: Node, index: int) -> Node:
        item: Node = self.graph.call_function(operator.getitem, (node, index))
        item.meta["val"] = node.meta["val"][index]
        return item
