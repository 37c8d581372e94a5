"""How a graph writes a bias that it adds to a collective's sum of products, as row-parallel layers of several libraries do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from ._graphs import CONVERT, RESHAPES, Product, aten, calls, equal, shape
from ._norm_patterns import NoNorm, addition_behind, other_operand, same_shape
from ._private import static_inputs
from ._writer import tensor

# A parameter may go through these on its way to the addition.
_AS_IT_IS = (*RESHAPES, CONVERT, aten.unsqueeze.default)


@dataclass
class Sum:
    """A collective's sum with its bias: `total`. `nodes`: all from the collective to the total. `behind`: whether the bias is added
    behind the collective. `reason`: why a vector that is added there is no bias; "" if there is none."""

    total: Node
    bias: Node | None
    nodes: list[Node]
    behind: bool = False
    reason: str = ""

    def told(self) -> str:
        """What a record says of it."""
        return ", with the bias that is added behind it" if self.behind else self.reason and f"; no bias: {self.reason}"


def with_bias(wait: Node, collective: Node, product: Product, own: Node | None, *, rows: bool = True, alike: bool = False) -> Sum:
    """The sum of the product, with the vector that its only use adds to it. own: the product's bias. rows: the collective leaves
    rows whole. alike: ranks must have equal biases. The pass takes a model's parameters and buffers for equal."""
    alone = Sum(wait, own, [wait, collective])
    try:
        total, views = addition_behind(wait)
    except NoNorm:
        return alone
    vector, last = other_operand(total, views[-1]), (shape(total) or [0])[-1]
    if not _is_vector(vector) or not same_shape(views[-1], total) or same_shape(vector, total):
        return alone
    if own is not None:
        alone.reason = "the product has one already"
    elif not rows or not equal(last, tensor(product.node).shape[1]) or not equal(tensor(vector).numel(), last):
        alone.reason = "it is no vector of the product's columns"
    elif tensor(vector).dtype != tensor(wait).dtype or tensor(total).dtype != tensor(wait).dtype:
        alone.reason = "it is of another type"
    elif alike and not _is_parameter(vector):
        alone.reason = "it is no parameter, so that ranks may differ in it"
    else:
        return Sum(total, vector, [total, *reversed(views), collective], behind=True)
    return alone


def _is_vector(node: Any) -> bool:
    """Whether the node is a tensor of one row, which is added to each row of another."""
    extents = shape(node) if isinstance(node, Node) else None
    return bool(extents) and all(equal(extent, 1) for extent in (extents or [])[:-1])


def _is_parameter(node: Any) -> bool:
    """Whether it is a parameter or a buffer; of a graph without these, an input."""
    while calls(node, *_AS_IT_IS):
        node = node.args[0]
    if not isinstance(node, Node) or node.op != "placeholder":
        return isinstance(node, Node) and node.op == "get_attr"
    inputs, static = node.graph.find_nodes(op="placeholder"), static_inputs()
    if any(one.name.startswith("tangents") for one in inputs):
        return False  # the numbers are those of the forward's inputs
    return not static or list(inputs).index(node) in static
