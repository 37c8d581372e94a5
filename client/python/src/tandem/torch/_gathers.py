"""The compile pass's work on all-gathers: fuses them with the products of the gathered tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from . import _batch as batch, _graphs as graphs, _layouts as layouts
from ._graphs import aten, c10d
from ._placements import Placements
from ._reports import GraphRecord
from ._writer import Writer, static, tensor

__all__ = ["UNEQUAL", "Declined", "Gathers", "arguments"]

_ops: Any = torch.ops.tandem
UNEQUAL = "ranks have unequal shards of a matrix, and its operands may be such"


class Declined(Exception):
    """Why a collective stays as it is."""


def arguments(node: Node) -> tuple[Any, ...]:
    """The node's arguments, of any kind."""
    return node.args


def _cut(form: layouts.Gathered) -> batch.Along:
    return "rows" if form.rows else batch.along(form.dim, graphs.shape(form.node) or [])


class Gathers(Writer):
    """The gathers of one graph, and the records of the graph's collectives."""

    def __init__(self, graph: Graph, name: str) -> None:
        super().__init__(graph, name)
        self.placements = Placements(graph)
        self._outcomes: dict[Node, GraphRecord] = {}

    def _one_shape(self, product: graphs.Product, group: str) -> bool:
        """Whether ranks may be taken to have operands of one shape: if they do not, the first call falls back on all of them."""
        return not self.placements.may_differ(group) or self.placements.even(product.b, group)

    def _gather(self, gather: Node, wait: Node, group: str) -> tuple[str, str]:
        shard = gather.args[0]
        assert isinstance(shard, Node)
        if graphs.shape(shard) is None or len(graphs.shape(shard) or ()) < 2:
            raise Declined("the shard has fewer than 2 dimensions")
        refused: list[str] = []
        for form in layouts.gathered_forms(wait, refused):
            typed = layouts.in_type(shard, form)
            found = self._products(form, gather, refused) if typed is not None else []
            if found and typed is not None:
                return self._fuse_gather(gather, wait, typed, form, found, group)
        raise Declined(refused[0] if refused else "no matrix product has the gathered tensor as its left operand")

    def _products(self, form: layouts.Gathered, gather: Node, refused: list[str]) -> list[graphs.Product]:
        found: list[graphs.Product] = []
        for node, trim in layouts.operands(form, int(arguments(gather)[1]), refused):
            for user in list(node.users):
                product = graphs.product(user)
                if product is None or product.a is not node:
                    continue
                product.trim = trim
                scales: tuple[Node | None, Node | None] = product.scales or (None, None)
                if product.refused:
                    refused.append(product.refused)
                elif not self._one_shape(product, str(arguments(gather)[-1])):
                    refused.append(UNEQUAL)
                elif apart := batch.why_apart(tensor(node), tensor(product.b), _cut(form)):
                    refused.append(apart)
                elif trim is not None and scales[0] is not None and tensor(scales[0]).numel() != 1:
                    refused.append("the product has scales of gathered rows without the padded ones")
                elif any(graphs.depends(one, gather) for one in (product.b, product.bias, *scales)):
                    refused.append("the product's other operand depends on the gathered tensor")
                elif found and scales[0] is not (found[0].scales or (None, None))[0]:
                    refused.append("the products have several scales of the gathered tensor")
                else:
                    found.append(product)
        return found

    def _fuse_gather(
        self, gather: Node, wait: Node, shard: Node, form: layouts.Gathered, found: list[graphs.Product], group: str
    ) -> tuple[str, str]:
        if form.node is not wait and any(user not in (*form.between, form.node) for user in wait.users):
            raise Declined("the gathered tensor is used in two layouts")
        graph, shape, source = self.graph, graphs.shape(shard), gather.args[0]
        assert shape is not None and isinstance(source, Node)
        sent = [node for node in layouts.sent_chain(source) if node is not shard and node.op != "placeholder"]
        consumed = {product.node for product in found}
        views = [node for node, _ in layouts.operands(form, int(arguments(gather)[1]), [])]
        keep = any(user not in consumed and user not in views for node in views for user in node.users)
        with graph.inserting_after(gather):
            anchor = graph.call_function(aten.alias.default, (shard,))  # new nodes go before it, then it goes
        with graph.inserting_before(anchor):
            if form.rows:  # gathered rows, whatever views say of them
                a, dim = graphs.reshaped(graph, shard, [math.prod(shape[:-1]), shape[-1]]), 0
                whole = [graphs.shape(wait)[0] * math.prod(shape[1:-1]), shape[-1]]  # type: ignore[index]
            else:
                a, dim = shard, form.dim
                whole = graphs.shape(form.node) or []
            biases = [product.bias for product in found]
            scaled = found[0].scales is not None
            together = scaled or all(bias is not None for bias in biases)
            dead: list[Node] = []
            shapes = [[*whole[:-1], tensor(product.b).shape[1]] for product in found]
            args: tuple[Any, ...] = (a, [product.b for product in found], dim, group, biases if together else None)
            if scaled:
                args = self._scaled_arguments(a, found, form, whole, dim, group, dead)
            if not static(whole):
                op = _ops.all_gather_scaled_matmul if scaled else _ops.all_gather_matmul
                fused = graph.call_function(op.noted, args, {"graph": self.name} | ({} if scaled else {"return_A": keep}))
                results = [tensor(product.node).new_empty(extents) for product, extents in zip(found, shapes, strict=True)]
                fused.meta["val"] = (tensor(shard).new_empty(whole), results)
                gathered, outs = [self._item(fused, 0)] if keep else [], self._item(fused, 1)
                parts = [self._item(outs, i) for i in range(len(found))]
            else:
                buffers = [self._buffer(tensor(product.node), extents) for product, extents in zip(found, shapes, strict=True)]
                for_a = [self._buffer(tensor(shard), whole)] if keep or scaled else []
                if scaled:
                    into = {"gathered": for_a[0], "outs": buffers}
                    *gathered, parts = self._fill(_ops.all_gather_scaled_matmul.noted_out, args, into)
                else:
                    into = {"gathered": for_a, "outs": buffers}
                    gathered, parts = self._fill(_ops.all_gather_matmul.noted_out, args, into)
            for part, product, extents in zip(parts, found, shapes, strict=True):
                if product.bias is not None and not together:
                    part = self._emit(aten.add.Tensor, (part, product.bias), {}, tensor(product.node), extents)
                if product.trim is not None:
                    part = self._trimmed(part, product, form, extents)
                result = graphs.reshaped(graph, part, graphs.shape(product.node) or [])
                result.meta["val"] = product.node.meta["val"]
                product.node.replace_all_uses_with(result)
            if keep:
                view = graphs.reshaped(graph, gathered[0], graphs.shape(form.node) or [])
                form.node.replace_all_uses_with(view)
        graph.erase_node(anchor)
        graphs.erase_dead([*consumed, *views, form.node, *form.between, wait, gather, *sent, *dead])
        layout = "rows" if form.rows else f"dimension {form.dim}"
        returned = ", and returns the gathered tensor" if keep else ""
        return ("all_gather_scaled_matmul" if scaled else "all_gather_matmul"), (
            f"gathers {layout} for {len(found)} product(s){returned}"
        )

    def _trimmed(self, part: Node, product: graphs.Product, form: layouts.Gathered, extents: Sequence[Any]) -> Node:
        """The product of rows of which the last ones only pad."""
        assert product.trim is not None
        left = graphs.shape(product.trim) or []
        dim, rows = (0, math.prod(left[:-1])) if form.rows else (form.dim, left[form.dim])
        shorter = [rows if i == dim else extent for i, extent in enumerate(extents)]
        return self._emit(aten.slice.Tensor, (part, dim, 0, rows), {}, tensor(product.node), shorter)

    def _scaled_arguments(
        self, a: Node, found: list[graphs.Product], form: layouts.Gathered, whole: list[Any], dim: int, group: str, dead: list[Node]
    ) -> tuple[Any, ...]:
        """Arguments of the fused op for fp8 products. Scales of rows that are gathered for it travel with the rows. A rank
        takes its own rows' scales out of all rows'. It takes the one scale of all gathered rows as a factor of B's."""
        scale, scales_b = (found[0].scales or (a, a))[0], [(product.scales or (a, a))[1] for product in found]
        rows = [*(graphs.shape(a) or [])[:-1], 1]
        if tensor(scale).numel() == 1:
            scales_b = [self._with_factor(one, scale, product) for one, product in zip(scales_b, found, strict=True)]
            scale = self._ones(rows if static(rows) else [1], tensor(scale))
        elif (own := self._scale_shard(scale, form, group, dead)) is None:
            scale = graphs.reshaped(self.graph, scale, [*whole[:-1], 1])
        else:
            scale = graphs.reshaped(self.graph, own, rows)
        return (
            a,
            [product.b for product in found],
            scale,
            scales_b,
            dim,
            group,
            [product.bias for product in found],
            [None] * len(found),
            [product.out_dtype for product in found],
            [product.fast for product in found],
        )

    def _ones(self, extents: Sequence[Any], like: torch.Tensor) -> Node:
        given = {"dtype": like.dtype, "layout": torch.strided, "device": like.device, "pin_memory": False}
        return self._emit(aten.full.default, (list(extents), 1.0), given, like, extents)

    def _with_factor(self, scale: Node, factor: Node, product: graphs.Product) -> Node:
        """B's scale times one factor: one element a column, since A's scale is one a row."""
        graph, like, columns = self.graph, tensor(scale), tensor(product.b).shape[1]
        row = graphs.reshaped(graph, scale, [1, like.numel()])
        factor = graphs.reshaped(graph, factor, [1, 1])
        both = self._emit(aten.mul.Tensor, (row, factor), {}, like, [1, like.numel()])
        if like.numel() != 1 or not static([columns]):
            return both
        wide = self._emit(aten.expand.default, (both, [1, columns]), {}, like, [1, columns])
        return self._emit(aten.clone.default, (wide,), {"memory_format": torch.contiguous_format}, like, [1, columns])

    def _scale_shard(self, scale: Node, form: layouts.Gathered, group: str, dead: list[Node]) -> Node | None:
        """This rank's part of scales that are gathered as A is; None if they are not."""
        views = [scale]
        while graphs.calls(views[-1], *graphs.RESHAPES):
            inner = views[-1].args[0]
            assert isinstance(inner, Node)
            views.append(inner)
        for wait in self.graph.nodes:
            if not graphs.calls(wait, c10d.wait_tensor.default) or not graphs.depends(scale, wait):
                continue
            gather = wait.args[0]
            if not graphs.calls(gather, c10d.all_gather_into_tensor.default) or gather.args[-1] != group:
                continue
            for other in layouts.gathered_forms(wait, []):
                if other.node is views[-1] and other.rows == form.rows and other.dim == form.dim and other.dtype is None:
                    dead += [*views, *other.between, wait, gather]
                    into = "all_gather_scaled_matmul"
                    self._outcomes[gather] = GraphRecord("all_gather", group, into, "the scales travel with the rows")
                    shard = gather.args[0]
                    return shard if isinstance(shard, Node) else None
        return None
