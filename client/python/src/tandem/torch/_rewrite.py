"""What the compile pass does to a graph: fuses collectives with the matrix products beside them, and says of every collective what
became of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from . import _graphs as graphs, _layouts as layouts, _upstream as upstream
from ._biases import Sum, with_bias
from ._graphs import aten, c10d
from ._norm_patterns import NoNorm, is_solid, norm_behind, shares_memory
from ._reports import GraphRecord
from ._writer import Writer, static, tensor

__all__ = ["SMALL_ALL_REDUCE_BYTES", "Rewrite"]

_ops: Any = torch.ops.tandem
# An all-reduce of no more bytes than this is Tandem's also without a product.
SMALL_ALL_REDUCE_BYTES = 128 << 10


class _Declined(Exception):
    pass


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args


class Rewrite(Writer):
    """One run over one graph."""

    def __init__(self, graph: Graph, enabled: Any, name: str = "") -> None:
        super().__init__(graph, name)
        self.enabled = enabled
        self._outcomes: dict[Node, GraphRecord] = {}

    @property
    def records(self) -> list[GraphRecord]:
        """One a collective."""
        return list(self._outcomes.values())

    def run(self) -> bool:
        """Rewrites what can be; returns whether anything was."""
        graphs.split_waits(self.graph)
        graphs.drop_copies(self.graph)
        for node in list(self.graph.nodes):
            for target, name, method in (
                (c10d.all_gather_into_tensor.default, "all_gather", self._gather),
                (c10d.reduce_scatter_tensor.default, "reduce_scatter", self._scatter),
                (c10d.all_reduce.default, "all_reduce", self._reduce),
            ):
                if graphs.calls(node, target) and node not in self._outcomes:
                    self._try(node, name, method)
            if node not in self._outcomes and (other := upstream.collective(node)):
                self._try_other(node, other)
        if any(record.fused_into for record in self.records):
            from torch._inductor.pattern_matcher import stable_topological_sort

            stable_topological_sort(self.graph)
            return True
        return False

    def _try(self, node: Node, name: str, method: Any) -> None:
        group = node.args[-1]
        if not isinstance(group, str):
            self._outcomes[node] = GraphRecord(name, str(group), "", "its group is no name")
            return
        if not self.enabled(group):
            self._outcomes[node] = GraphRecord(name, group, "", "the pass is not enabled for this group")
            return
        try:
            wait = graphs.only_user(node)
            if wait is None or not graphs.calls(wait, c10d.wait_tensor.default):
                raise _Declined("it is used before it is waited for")
            into, reason = method(node, wait, group)
            self._outcomes[node] = GraphRecord(name, group, into, reason)
        except _Declined as declined:
            self._outcomes[node] = GraphRecord(name, group, "", str(declined))

    def _try_other(self, node: Node, name: str) -> None:
        group, reduced = upstream.group_of(node), upstream.all_reduced(node)
        try:
            if not self.enabled(group):
                raise _Declined("the pass is not enabled for this group")
            if reduced is None:
                into, reason = upstream.replace(node, self.name)
            else:
                into, reason = self._reduced(node, node, *reduced, group, None)
            self._outcomes[node] = GraphRecord(name, group, into, reason)
        except _Declined as declined:
            self._outcomes[node] = GraphRecord(name, group, "", str(declined))

    # all-gather -> product

    def _gather(self, gather: Node, wait: Node, group: str) -> tuple[str, str]:
        shard = gather.args[0]
        assert isinstance(shard, Node)
        if graphs.shape(shard) is None or len(graphs.shape(shard) or ()) < 2:
            raise _Declined("the shard has fewer than 2 dimensions")
        refused: list[str] = []
        for form in layouts.gathered_forms(wait, refused):
            typed = layouts.in_type(shard, form)
            found = self._products(form, gather, refused) if typed is not None else []
            if found and typed is not None:
                return self._fuse_gather(gather, wait, typed, form, found, group)
        raise _Declined(refused[0] if refused else "no matrix product has the gathered tensor as its left operand")

    def _products(self, form: layouts.Gathered, gather: Node, refused: list[str]) -> list[graphs.Product]:
        found: list[graphs.Product] = []
        for node, trim in layouts.operands(form, int(_arguments(gather)[1]), refused):
            for user in list(node.users):
                product = graphs.product(user)
                if product is None or product.a is not node:
                    continue
                product.trim = trim
                scales: tuple[Node | None, Node | None] = product.scales or (None, None)
                if product.refused:
                    refused.append(product.refused)
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
            raise _Declined("the gathered tensor is used in two layouts")
        graph, shape, source = self.graph, graphs.shape(shard), gather.args[0]
        assert shape is not None and isinstance(source, Node)
        sent = [node for node in layouts.sent_chain(source) if node is not shard and node.op != "placeholder"]
        consumed = {product.node for product in found}
        views = [node for node, _ in layouts.operands(form, int(_arguments(gather)[1]), [])]
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
        """Of the fused op for fp8 products. Scales of rows that are gathered for it travel with the rows; gathered otherwise, every
        rank has all of them."""
        scale = (found[0].scales or (a, a))[0]
        if tensor(scale).numel() != 1:
            own = self._scale_shard(scale, form, group, dead)
            if own is None:
                scale = graphs.reshaped(self.graph, scale, [*whole[:-1], 1])
            else:
                scale = graphs.reshaped(self.graph, own, [*(graphs.shape(a) or [])[:-1], 1])
        return (
            a,
            [product.b for product in found],
            scale,
            [(product.scales or (a, a))[1] for product in found],
            dim,
            group,
            [product.bias for product in found],
            [None] * len(found),
            [product.out_dtype for product in found],
            [product.fast for product in found],
        )

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

    # product -> reduce-scatter, all-reduce

    def _source(self, node: Node, by: Sequence[Node] = ()) -> tuple[graphs.Product, list[Node]]:
        """The product that a collective reduces, and the nodes that go with it. A sum of products, as several layers' gradients
        of one input are, is one product of their operands side by side. by: the parts that it may be cut into."""
        found, dead = self._summands(node, by)
        if len(found) == 1:
            return found[0], dead
        if any(one.bias is not None or one.scales is not None for one in found):
            raise _Declined("it reduces a sum of products, one of which has a bias or scales")
        if any(graphs.shape(one.node) != graphs.shape(found[0].node) for one in found):
            raise _Declined("it reduces a sum of products that are viewed otherwise before it")
        with self.graph.inserting_before(found[-1].node):
            a = self._side_by_side([one.a for one in found], 1)
            b = self._side_by_side([one.b for one in found], 0)
        return graphs.Product(found[0].node, a, b), dead

    def _side_by_side(self, nodes: list[Node], dim: int) -> Node:
        cat: Node = self.graph.call_function(aten.cat.default, (nodes, dim))
        extents = list(tensor(nodes[0]).shape)
        extents[dim] = sum(tensor(node).shape[dim] for node in nodes)
        cat.meta["val"] = tensor(nodes[0]).new_empty(extents)
        return cat

    def _summands(self, node: Node, by: Sequence[Node] = ()) -> tuple[list[graphs.Product], list[Node]]:
        inner, views = graphs.origin(node, by)
        if graphs.calls(inner, aten.add.Tensor) and not inner.kwargs and graphs.used_once(inner, by):
            left, right = _arguments(inner)
            if isinstance(left, Node) and isinstance(right, Node) and graphs.shape(left) == graphs.shape(right):
                products, dead = self._summands(left)
                more, others = self._summands(right)
                return products + more, [inner, *views, *dead, *others]
        product = graphs.product(inner)
        if product is None:
            raise _Declined("it reduces no matrix product")
        if product.refused:
            raise _Declined(product.refused)
        if not graphs.used_once(inner, by):
            raise _Declined("the product has other users")
        return [product], [inner, *views]

    def _bias(self, product: graphs.Product, reduce_op: str, world: int) -> Node | None:
        """The bias to add once after the sum: ranks' products have it divided by their number, as DTensor writes it."""
        if product.bias is None:
            return None
        if graphs.calls(product.bias, aten.div.Tensor) and product.bias.args[1] == world and reduce_op == "sum":
            whole = product.bias.args[0]
            assert isinstance(whole, Node)
            return whole
        raise _Declined("each rank adds a bias of its own before the sum")

    def _call(
        self,
        name: str,
        product: graphs.Product,
        a: Node,
        middle: tuple[Any, ...],
        bias: Node | None,
        extents: Sequence[Any],
        whole: list[Any] | None = None,
    ) -> Node:
        value = tensor(product.node)
        if product.scales is None and not static(extents):
            args = (a, product.b, *middle) + (() if bias is None else (bias,))
            return self._emit(getattr(_ops, name).noted, args, {"graph": self.name}, value, extents)
        if product.scales is None:
            out = self._buffer(value, extents)
            filled: Node = self._fill(getattr(_ops, name).noted_out, (a, product.b, *middle, bias), {"out": out})[0]
            return filled
        op = getattr(_ops, "scaled_" + name)
        if name == "matmul_reduce_scatter":
            reduce_op, dim, group = middle
            middle = (reduce_op, dim, dim, group, whole)
        args = (a, product.b, *product.scales, *middle, bias, None, product.out_dtype, product.fast)
        if not static((*extents, *(whole or []))):
            return self._emit(op.noted, args, {"graph": self.name}, value, extents)
        result: Node = self._fill(op.noted_out, args, {"out": self._buffer(value, extents)})[0]
        return result

    def _replace(self, total: Node, result: Node, dead: Sequence[Node]) -> None:
        result.meta["val"] = total.meta["val"]
        total.replace_all_uses_with(result)
        graphs.erase_dead(dead)

    def _vector(self, summed: Sum) -> Node | None:
        return None if summed.bias is None else graphs.reshaped(self.graph, summed.bias, [tensor(summed.bias).numel()])

    def _scatter(self, scatter: Node, wait: Node, group: str) -> tuple[str, str]:
        source, reduce_op, world, _ = _arguments(scatter)
        assert isinstance(source, Node) and isinstance(world, int)
        if reduce_op not in ("sum", "avg"):
            raise _Declined(f"it reduces by {reduce_op}")
        refused: list[str] = []
        cut = layouts.scattered_from(source, world, refused) or layouts.Cut(source, 0, [])
        if refused:
            raise _Declined(refused[0])
        parted, dim, between = cut.tensor, cut.dim, cut.between
        product, chain = self._source(parted, between)
        own = self._bias(product, reduce_op, world)
        rows = graphs.shape(product.node)
        whole = graphs.shape(parted)
        assert rows is not None and whole is not None
        summed = with_bias(wait, scatter, product, own, rows=dim < len(whole) - 1 or len(whole) == 1)
        extents = [extent // world if i == dim else extent for i, extent in enumerate(whole)]
        with self.graph.inserting_before(wait):
            bias = self._vector(summed)
            if dim == 0:
                if not graphs.divides(rows[0], world):
                    raise _Declined("its rows do not divide by the ranks")
                fused = self._call(
                    "matmul_reduce_scatter", product, product.a, (reduce_op, 0, group), bias, [rows[0] // world, rows[1]]
                )
            else:
                if not graphs.same_last(whole, rows):
                    raise _Declined("the product's columns are viewed otherwise before the scatter")
                a = product.a
                if product.scales is None:  # the scaled op gets the product's shape instead
                    a = graphs.reshaped(self.graph, a, [*whole[:-1], tensor(a).shape[-1]])
                fused = self._call("matmul_reduce_scatter", product, a, (reduce_op, dim, group), bias, extents, whole)
            if cut.order is not None:
                fused = self._permuted(graphs.reshaped(self.graph, fused, extents), cut.order, summed.total)
            result = graphs.reshaped(self.graph, fused, graphs.shape(summed.total) or [])
        self._replace(summed.total, result, [*summed.nodes, source, *between, *chain])
        what = f"scatters dimension {dim} of the product" + summed.told()
        return ("scaled_" if product.scales else "") + "matmul_reduce_scatter", what

    def _permuted(self, node: Node, order: list[int], total: Node) -> Node:
        """The node with its dimensions in this order; in memory, too, unless all that use it permute it again."""
        extents = [(graphs.shape(node) or [])[dim] for dim in order]
        moved = self._emit(aten.permute.default, (node, order), {}, tensor(node), extents)
        moved.meta["val"] = tensor(node).permute(order)
        if all(graphs.calls(user, aten.permute.default) for user in total.users):
            return moved
        return self._emit(aten.clone.default, (moved,), {"memory_format": torch.contiguous_format}, tensor(node), extents)

    def _reduce(self, reduce: Node, wait: Node, group: str) -> tuple[str, str]:
        source, reduce_op, _ = _arguments(reduce)
        return self._reduced(reduce, wait, source, reduce_op, group, SMALL_ALL_REDUCE_BYTES)

    def _reduced(self, reduce: Node, wait: Node, source: Any, reduce_op: str, group: str, most: int | None) -> tuple[str, str]:
        """most: bytes of an all-reduce that is Tandem's without a product; None: any."""
        assert isinstance(source, Node)
        if reduce_op not in ("sum", "avg"):
            raise _Declined(f"it reduces by {reduce_op}")
        product: graphs.Product | None = None
        chain: list[Node] = []
        summed, why = Sum(wait, None, [wait, reduce]), ""
        try:
            product, chain = self._source(source)
            from ._private import group_size

            own = self._bias(product, reduce_op, group_size(group))
            summed = with_bias(wait, reduce, product, own, alike=True)
        except _Declined as declined:
            product, why = None, str(declined)
        try:
            return self._normed(reduce, summed, source, (reduce_op, group), product, chain)
        except NoNorm as no_norm:
            without = f"{summed.told()}; no norm: {no_norm}"
        if product is None:
            return self._plain(reduce, wait, source, (reduce_op, group), most, why + without)
        with self.graph.inserting_before(wait):
            bias, extents = self._vector(summed), graphs.shape(product.node) or []
            fused = self._call("matmul_all_reduce", product, product.a, (reduce_op, group), bias, extents)
            result = graphs.reshaped(self.graph, fused, graphs.shape(summed.total) or [])
        self._replace(summed.total, result, [*summed.nodes, *chain])
        return ("scaled_" if product.scales else "") + "matmul_all_reduce", "reduces a product" + without

    def _normed(
        self,
        reduce: Node,
        summed: Sum,
        source: Node,
        how: tuple[str, str],
        product: graphs.Product | None,
        chain: list[Node],
    ) -> tuple[str, str]:
        norm = norm_behind(summed.total, reduce)
        if how[0] != "sum":
            raise NoNorm(f"its op does not reduce by {how[0]}")
        if product is not None and product.scales is not None:
            raise NoNorm("its op multiplies without scales")
        like, extents = tensor(norm.total), graphs.shape(norm.total) or []
        if product is not None and (len(extents) < 2 or not graphs.same_columns(product.node, norm.total)):
            if summed.behind:
                raise NoNorm("its row is none of the product that the bias is added to")
            product = None
        with self.graph.inserting_before(summed.total):
            bias = self._vector(summed)
            inputs = (source,) if product is None else (product.a, product.b)
            residual = norm.residual
            if not is_solid(residual) or shares_memory(residual, *inputs, norm.weight, bias):
                given = {"memory_format": torch.contiguous_format}
                residual = self._emit(aten.clone.default, (residual,), given, like, extents)
            behind = (residual, norm.weight, norm.epsilon, how[1])
            if product is None:
                op: Any = _ops.all_reduce_rms_norm
                args: tuple[Any, ...] = (graphs.reshaped(self.graph, source, extents), *behind)
            else:
                rows = graphs.reshaped(self.graph, product.a, [*extents[:-1], tensor(product.a).shape[-1]])
                op, args = _ops.matmul_all_reduce_rms_norm, (rows, product.b, *behind, bias)
            if static(extents):
                out = self._buffer(like, extents)
                total, normed = self._fill(op.noted_out, args, {"residual": residual, "out": out})
            else:
                total, normed = self._fill(op.noted, args, {"residual": residual}, like.new_empty(extents))
            result = graphs.reshaped(self.graph, normed, graphs.shape(norm.normed) or [])
        norm.normed.replace_all_uses_with(result)
        norm.total.replace_all_uses_with(total)
        graphs.erase_dead([*norm.nodes, *summed.nodes, *([] if product is None else chain)])
        what = "its result" if product is None else "a product"
        return op.__name__, f"adds {what} to a residual, whose norm follows{summed.told()}"

    def _plain(self, reduce: Node, wait: Node, source: Node, how: tuple[str, str], most: int | None, why: str) -> tuple[str, str]:
        value = tensor(source)
        size = value.numel() * value.element_size()
        if most is not None and not graphs.surely_within(size, 0, most):
            raise _Declined(why)
        with self.graph.inserting_before(wait):
            if static(value.shape):
                out = self._buffer(value, value.shape)
                (lowered,) = self._fill(_ops.all_reduce.noted_out, (source, *how), {"out": out})
            else:
                lowered = self._emit(_ops.all_reduce.noted, (source, *how), {"graph": self.name}, value, value.shape)
        self._replace(wait, lowered, [wait, reduce])
        return "all_reduce", f"{size} bytes; no product: {why}"
