"""How a graph writes a bias that it adds to a collective's sum of products, as row-parallel layers of several libraries do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from ._graphs import Product, equal, shape
from ._norm_patterns import NoNorm, addition_behind, other_operand, same_shape
from ._writer import tensor


@dataclass
class Sum:
    """A collective's sum with its bias: `total`. `nodes`: all from the collective to the total. `behind`: whether the bias is added
    behind the collective. `reason`: why a vector that is added there is no bias; "" if there is none. `alone`: the sum without a
    bias in which ranks may differ, for an op that takes one rank's for all."""

    total: Node
    bias: Node | None
    nodes: list[Node]
    behind: bool = False
    reason: str = ""
    alone: Sum | None = None

    def told(self) -> str:
        """The text for a record."""
        return ", with the bias that is added behind it" if self.behind else self.reason and f"; no bias: {self.reason}"


def with_bias(
    wait: Node,
    collective: Node,
    product: Product,
    own: Node | None,
    *,
    rows: bool = True,
    alike: Callable[[Node], bool] | None = None,
) -> Sum:
    """The sum of the product, with the vector that its only use adds to it. own: the product's bias. rows: the collective leaves
    rows whole. alike: whether ranks have equal values of a vector, for an op that needs these; None: the op takes each rank's."""
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
    else:
        found = Sum(total, vector, [total, *reversed(views), collective], behind=True)
        if alike is not None and not alike(vector):
            alone.reason = "each rank adds its own"
            found.alone = alone
        return found
    return alone


def _is_vector(node: Any) -> bool:
    """Whether the node is a tensor of one row, which is added to each row of another."""
    extents = shape(node) if isinstance(node, Node) else None
    return bool(extents) and all(equal(extent, 1) for extent in (extents or [])[:-1])
