"""The compile pass's work on collectives without a product beside them: Tandem's op in the place of a small one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from . import _batch as batch, _graphs as graphs, _layouts as layouts
from ._gathers import Declined, Gathers
from ._graphs import CONVERT, aten, c10d
from ._prepared import DTYPES
from ._private import EVEN, buckets_collectives, group_size
from ._reports import GraphRecord
from ._shapes import why_not_reduced
from ._weights import weighs
from ._writer import static, tensor

__all__ = ["SMALL_BYTES", "Lone", "check_reduces", "check_reduces_products", "check_sums"]

_ops: Any = torch.ops.tandem
# The most bytes of a collective that Tandem runs without a product; a gather counts the bytes of all ranks. Inductor hides larger
# collectives behind other work.
SMALL_BYTES = 128 << 10
_KINDS = {
    c10d.all_gather_into_tensor.default: "all_gather",
    c10d.all_gather_into_tensor_coalesced.default: "all_gather",
    c10d.reduce_scatter_tensor.default: "reduce_scatter",
    c10d.reduce_scatter_tensor_coalesced.default: "reduce_scatter",
    c10d.all_to_all_single.default: "all_to_all",
}
_BESIDE_PRODUCTS = (c10d.all_gather_into_tensor.default, c10d.reduce_scatter_tensor.default)
# Elements that are only moved travel as other ones of their size, where Tandem has none of their type.
_CARRIERS = {1: torch.uint8, 4: torch.int32, 8: torch.int64}


def check_reduces(source: Node, reduce_op: str) -> None:
    """Raises Declined unless Tandem's collectives alone reduce so."""
    kind = tensor(source).dtype
    if reduce_op == "avg" and not kind.is_floating_point:
        raise Declined(f"it averages {kind}")
    if why_not_reduced(reduce_op, kind):
        raise Declined(f"it reduces {kind} by {reduce_op}")


def check_reduces_products(source: Node, reduce_op: str) -> None:
    """Raises Declined unless Tandem reduces products so, and what a norm follows."""
    check_reduces(source, reduce_op)
    if reduce_op not in ("sum", "avg"):
        raise Declined(f"it reduces by {reduce_op}")


def check_sums(source: Node) -> None:
    """Raises Declined unless Tandem has sums of the type."""
    if tensor(source).dtype not in DTYPES:
        raise Declined(f"Tandem has no sums of {tensor(source).dtype}")


@dataclass
class _Collective:
    """A collective of one or several tensors. `waits`: of the tensors in their order, None where nobody waits for one."""

    node: Node
    kind: str
    group: str
    world: int
    reduce_op: str
    inputs: list[Node]
    waits: list[Node | None]


def _collective(node: Node, group: str) -> _Collective:
    given = graphs.named_arguments(node)
    several = given.get("inputs")
    inputs = [given["input"]] if several is None else list(several)
    world = group_size(group)
    if given.get("group_size", world) != world:
        raise Declined("it names another number of ranks than the group has")
    if "input_split_sizes" in given and not _is_even(given, world):
        raise Declined("its splits are not known to be equal on all ranks")
    waits: list[Node | None] = [None] * len(inputs)
    for result in [node] if several is None else list(node.users):
        wait = graphs.only_user(result)
        if wait is None or not graphs.calls(wait, c10d.wait_tensor.default):
            raise Declined("it is used before it is waited for")
        index: Any = 0 if several is None else result.args[1]
        if waits[index] is not None:
            raise Declined("it is waited for twice")
        waits[index] = wait
    return _Collective(node, _KINDS[node.target], group, world, given.get("reduce_op", ""), inputs, waits)


def _is_even(given: dict[str, Any], world: int) -> bool:
    """Whether the program has given no splits, so that all ranks' are equal: a graph alone has only this rank's."""
    ones, extents = [1] * world, graphs.shape(given["input"]) or []
    splits = [list(given[name]) for name in ("output_split_sizes", "input_split_sizes")]
    return splits == [ones, ones] and extents[: 1 + len(EVEN)] == [world, *EVEN]


class Lone(Gathers):
    """The collectives of one graph that stand alone."""

    def __init__(self, graph: Graph, name: str, enabled: Any) -> None:
        super().__init__(graph, name)
        self.enabled = enabled

    def _take_lone(self) -> None:
        """Takes those that have been left, after all others: what is gathered for a product may be several tensors."""
        for node, record in list(self._outcomes.items()):
            named = graphs.named_arguments(node).get("group_name") if node.target in _KINDS and not record.fused_into else None
            if not isinstance(named, str) or not self.enabled(named):
                continue
            why, op = record.reason, _KINDS[node.target]
            try:
                size = self._lower(_collective(node, named))
                told = f"{size} bytes; no product: {why}" if graphs.calls(node, *_BESIDE_PRODUCTS) else f"{size} bytes"
                self._outcomes[node] = GraphRecord(record.collective, named, op, told)
            except Declined as declined:
                if str(declined) != why:
                    self._outcomes[node] = GraphRecord(record.collective, record.group, "", f"{why}; alone: {declined}")

    def _lower(self, one: _Collective) -> Any:
        """Puts Tandem's ops in the place of a collective; returns its bytes. Nothing is changed where it raises."""
        if one.kind == "reduce_scatter":
            for source in one.inputs:
                check_reduces(source, one.reduce_op)
                check_sums(source)
                if not graphs.divides((graphs.shape(source) or [1])[0], one.world):
                    raise Declined("its rows do not divide by the ranks")
        elif unmoved := [kind for kind in map(_kind, one.inputs) if _carrier(kind) is None]:
            raise Declined(f"Tandem has no tensors of {unmoved[0]}")
        parts = one.world if one.kind == "all_gather" else 1
        size: Any = sum(tensor(source).numel() * tensor(source).element_size() for source in one.inputs) * parts
        # No other sum keeps the promise of a batch.
        any_size = batch.in_force() and one.kind == "reduce_scatter"
        if not any_size and not graphs.surely_within(size, 0, SMALL_BYTES):
            raise Declined(f"its {size} bytes are more than {SMALL_BYTES}")
        if buckets_collectives(one.kind):
            raise Declined("Inductor puts such collectives together")
        self._check_between(one)
        for source, wait in zip(one.inputs, one.waits, strict=True):
            if wait is not None:
                self._lower_one(one, source, wait)
        return size

    def _check_between(self, one: _Collective) -> None:
        """Torch's collective runs beside what the graph does up to its wait; Tandem's is in the order of the stream."""
        left, node = {wait for wait in one.waits if wait is not None}, one.node.next
        while left:
            if weighs(node):
                raise Declined(f"{node.name} runs meanwhile")
            left.discard(node)
            node = node.next

    def _lower_one(self, one: _Collective, source: Node, wait: Node) -> None:
        total, dim, dead, rows = wait, 0, [wait, *one.node.users, one.node], [one.world, tensor(source).numel() // one.world]
        with self.graph.inserting_before(wait):
            if one.kind == "all_gather":
                for form in layouts.gathered_forms(wait, []):
                    if not form.rows and form.dtype is None and all(user in (*form.between, form.node) for user in wait.users):
                        total, dim, dead = form.node, form.dim, [form.node, *form.between, *dead]
                args: tuple[Any, ...] = (self._carried(source), dim, one.group)
            elif one.kind == "all_to_all":
                args = (self._carried(graphs.reshaped(self.graph, source, rows)), 0, one.group)
            else:
                cut = layouts.scattered_from(source, one.world, [])
                if cut is not None and cut.order is None:
                    dead += [source, *cut.between]
                    source, dim = cut.tensor, cut.dim
                args = (source, one.reduce_op, dim, one.group)
            whole = graphs.shape(total) or []
            result = self._call_lone(getattr(_ops, one.kind), args, rows if one.kind == "all_to_all" else whole)
            result = graphs.reshaped(self.graph, self._seen_as(result, tensor(source).dtype), whole)
        result.meta["val"] = total.meta["val"]
        total.replace_all_uses_with(result)
        graphs.erase_dead(dead)

    def _call_lone(self, op: Any, args: tuple[Any, ...], extents: Sequence[Any]) -> Node:
        """The result of an op of one tensor, its first argument."""
        like = tensor(args[0])
        if not static(extents):
            return self._emit(op.noted, args, {"graph": self.name}, like, extents)
        filled: Node = self._fill(op.noted_out, args, {"out": self._buffer(like, extents)})[0]
        return filled

    def _carried(self, node: Node) -> Node:
        """The node in a type that Tandem moves."""
        carrier = _carrier(tensor(node).dtype)
        assert carrier is not None
        return self._seen_as(node, carrier)

    def _seen_as(self, node: Node, dtype: torch.dtype) -> Node:
        """The node's bits in a type of the same size. Inductor views no bool as bytes: it is converted."""
        kind = tensor(node).dtype
        if kind == dtype:
            return node
        op = CONVERT if torch.bool in (kind, dtype) else aten.view.dtype
        view: Node = self.graph.call_function(op, (node, dtype))
        view.meta["val"] = tensor(node).new_empty(tensor(node).shape, dtype=dtype)
        return view


def _kind(node: Node) -> torch.dtype:
    return tensor(node).dtype


def _carrier(kind: torch.dtype) -> torch.dtype | None:
    """The type in which elements travel; None if there is none."""
    return kind if kind in DTYPES else None if kind.is_complex else _CARRIERS.get(kind.itemsize)
