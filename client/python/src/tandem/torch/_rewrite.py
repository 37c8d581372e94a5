"""The compile pass's work on a graph: fuses collectives with the matrix products beside them, and records the outcome for every
collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from . import _batch as batch, _graphs as graphs, _layouts as layouts, _upstream as upstream
from ._biases import Sum, with_bias
from ._gathers import UNEQUAL, Declined, arguments
from ._graphs import aten, c10d
from ._lone import SMALL_BYTES, Lone, check_reduces, check_reduces_products, check_sums
from ._norm_patterns import NoNorm, Norm, is_solid, norm_behind, shares_memory
from ._private import group_size
from ._quantized_patterns import FP8, NoQuantization, Quantization, quantization_behind
from ._reports import GraphRecord
from ._writer import static, tensor

__all__ = ["SMALL_BYTES", "Rewrite"]

_ops: Any = torch.ops.tandem


def check_kept(product: graphs.Product, cut: batch.Along, reduce_op: str) -> None:
    """Raises Declined where fusing a product with the sum of ranks' ones would not keep the configuration's promise."""
    if apart := batch.why_apart(tensor(product.a), tensor(product.b), cut, reduce_op):
        raise Declined(apart)
    # Such a sum is rounded before its bias, which the graph adds.
    bias = product.bias if batch.in_force() else None
    if bias is not None and (cut == "columns" or tensor(bias).dtype != tensor(product.node).dtype):
        raise Declined("determinism is 'batch', and the product's bias cannot be added behind its sum")


class Rewrite(Lone):
    """One run over one graph."""

    def __init__(self, graph: Graph, enabled: Any, name: str = "") -> None:
        super().__init__(graph, name, enabled)
        self._elements: dict[Node, str] = {}

    @property
    def records(self) -> list[GraphRecord]:
        """One a collective."""
        return [replace(record, elements=self._elements.get(node, "")) for node, record in self._outcomes.items()]

    def run(self) -> bool:
        """Rewrites what can be; returns whether anything was."""
        graphs.split_waits(self.graph)
        graphs.drop_second_waits(self.graph)
        graphs.drop_copies(self.graph)
        self._elements = graphs.elements_of_calls(self.graph)
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
        self._take_lone()
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
                raise Declined("it is used before it is waited for")
            into, reason = method(node, wait, group)
            self._outcomes[node] = GraphRecord(name, group, into, reason)
        except Declined as declined:
            self._outcomes[node] = GraphRecord(name, group, "", str(declined))

    def _try_other(self, node: Node, name: str) -> None:
        group, reduced = upstream.group_of(node), upstream.all_reduced(node)
        try:
            if not self.enabled(group):
                raise Declined("the pass is not enabled for this group")
            if reduced is None:
                into, reason = upstream.replace(node, self.name)
            else:
                into, reason = self._reduced(node, node, *reduced, group, None)
            self._outcomes[node] = GraphRecord(name, group, into, reason)
        except Declined as declined:
            self._outcomes[node] = GraphRecord(name, group, "", str(declined))

    # product -> reduce-scatter, all-reduce

    def _source(self, node: Node, group: str, by: Sequence[Node] = ()) -> tuple[graphs.Product, list[Node]]:
        """The product that a collective reduces, and the nodes that go with it. A sum of products, as several layers' gradients
        of one input are, is one product of their operands side by side. by: the parts that it may be cut into."""
        found, dead = self._summands(node, by)
        if not all(self._one_shape(one, group) for one in found):
            raise Declined(UNEQUAL)
        if len(found) == 1:
            return found[0], dead
        if any(one.bias is not None or one.scales is not None for one in found):
            raise Declined("it reduces a sum of products, one of which has a bias or scales")
        if len({tensor(operand).dtype for one in found for operand in (one.node, one.a, one.b)}) > 1:
            raise Declined("it reduces a sum of products of several types")
        if any(graphs.shape(one.node) != graphs.shape(found[0].node) for one in found):
            raise Declined("it reduces a sum of products that are viewed otherwise before it")
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
            left, right = arguments(inner)
            if isinstance(left, Node) and isinstance(right, Node) and graphs.shape(left) == graphs.shape(right):
                if len({tensor(one).dtype for one in (inner, left, right)}) > 1:
                    raise Declined("it reduces a sum of several types")
                products, dead = self._summands(left)
                more, others = self._summands(right)
                return products + more, [inner, *views, *dead, *others]
        product = graphs.product(inner)
        if product is None:
            raise Declined("it reduces no matrix product")
        if product.refused:
            raise Declined(product.refused)
        if not graphs.used_once(inner, by):
            raise Declined("the product has other users")
        return [product], [inner, *views]

    def _bias(self, product: graphs.Product, reduce_op: str, group: str, world: int) -> Node | None:
        """The bias to add once after the sum: ranks' products have it divided by their number, as DTensor writes it. The sum of
        vectors in which ranks may differ is another."""
        if product.bias is None:
            return None
        if graphs.calls(product.bias, aten.div.Tensor) and product.bias.args[1] == world and reduce_op == "sum":
            whole: Any = product.bias.args[0]
            if self.placements.alike(whole, group) and tensor(whole).dtype == tensor(product.bias).dtype:
                return whole  # type: ignore[no-any-return]
        raise Declined("each rank adds a bias of its own before the sum")

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
        if bias is not None and batch.in_force():
            fused = self._call(name, product, a, middle, None, extents, whole)
            return self._emit(aten.add.Tensor, (fused, bias), {}, value, extents)
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
        source, reduce_op, world, _ = arguments(scatter)
        assert isinstance(source, Node) and isinstance(world, int)
        check_reduces_products(source, reduce_op)
        refused: list[str] = []
        cut = layouts.scattered_from(source, world, refused) or layouts.Cut(source, 0, [])
        if refused:
            raise Declined(refused[0])
        parted, dim, between = cut.tensor, cut.dim, cut.between
        product, chain = self._source(parted, group, between)
        check_kept(product, batch.along(dim, graphs.shape(parted) or []), reduce_op)
        own = self._bias(product, reduce_op, group, world)
        rows = graphs.shape(product.node)
        whole = graphs.shape(parted)
        assert rows is not None and whole is not None
        summed = with_bias(wait, scatter, product, own, rows=dim < len(whole) - 1 or len(whole) == 1)
        extents = [extent // world if i == dim else extent for i, extent in enumerate(whole)]
        with self.graph.inserting_before(wait):
            bias = self._vector(summed)
            if dim == 0:
                if not graphs.divides(rows[0], world):
                    raise Declined("its rows do not divide by the ranks")
                fused = self._call(
                    "matmul_reduce_scatter", product, product.a, (reduce_op, 0, group), bias, [rows[0] // world, rows[1]]
                )
            else:
                if not graphs.same_last(whole, rows):
                    raise Declined("the product's columns are viewed otherwise before the scatter")
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
        source, reduce_op, _ = arguments(reduce)
        # No other all-reduce keeps the promise.
        most = None if batch.in_force() else SMALL_BYTES
        return self._reduced(reduce, wait, source, reduce_op, group, most)

    def _reduced(self, reduce: Node, wait: Node, source: Any, reduce_op: str, group: str, most: int | None) -> tuple[str, str]:
        """most: bytes of an all-reduce that is Tandem's without a product; None: any."""
        assert isinstance(source, Node)
        check_reduces(source, reduce_op)
        product: graphs.Product | None = None
        chain: list[Node] = []
        summed, why = Sum(wait, None, [wait, reduce]), ""
        try:
            check_reduces_products(source, reduce_op)
            product, chain = self._source(source, group)
            check_kept(product, "rows", reduce_op)
            own = self._bias(product, reduce_op, group, group_size(group))
            summed = with_bias(wait, reduce, product, own, alike=lambda vector: self.placements.alike(vector, group))
        except Declined as declined:
            product, why = None, str(declined)
        try:
            return self._normed(reduce, summed, source, (reduce_op, group), product, chain)
        except NoNorm as no_norm:
            summed = summed.alone or summed
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
            # The residual is each rank's own. A batch's sum is rounded before its bias.
            if bias is not None and product is not None and (summed.alone is not None or batch.in_force()):
                residual, bias = self._emit(aten.add.Tensor, (residual, bias), {}, like, extents), None
            quantized, told = self._quantization(norm, reduce)
            scale = quantized.scale if quantized is not None and not quantized.count else None
            if not is_solid(residual) or shares_memory(residual, *inputs, norm.weight, bias, scale):
                given = {"memory_format": torch.contiguous_format}
                residual = self._emit(aten.clone.default, (residual,), given, like, extents)
            last: tuple[Any, ...]
            if product is None:
                name, inputs, last = "all_reduce_rms_norm", (graphs.reshaped(self.graph, source, extents),), (how[1],)
            else:
                rows = graphs.reshaped(self.graph, product.a, [*extents[:-1], tensor(product.a).shape[-1]])
                name, inputs, last = "matmul_all_reduce_rms_norm", (rows, product.b), (how[1], bias)
            behind = (residual, norm.weight)
            if quantized is None:
                total = self._write_norm(getattr(_ops, name), (*inputs, *behind, norm.epsilon, *last), norm, residual)
            else:
                name += "_dynamic_fp8" if quantized.count else "_static_fp8"
                total = self._write_quantized(getattr(_ops, name), (*inputs, *behind), (norm.epsilon, *last), quantized, like)
        norm.total.replace_all_uses_with(total)
        also = [] if quantized is None else quantized.nodes
        graphs.erase_dead([*also, *norm.nodes, *summed.nodes, *([] if product is None else chain)])
        what = "its result" if product is None else "a product"
        return name, f"adds {what} to a residual, whose norm {told}{summed.told()}"

    @staticmethod
    def _quantization(norm: Norm, reduce: Node) -> tuple[Quantization | None, str]:
        """What the op makes of the norm, and that as text."""
        like = tensor(norm.total)
        try:
            found = quantization_behind(norm.normed, like.dtype, reduce)
        except NoQuantization as reason:
            return None, f"follows, and a quantisation behind it: {reason}"
        return found, "follows" if found is None else "in fp8 follows"

    def _write_norm(self, op: Any, args: tuple[Any, ...], norm: Norm, residual: Node) -> Node:
        """Writes the op in the place of a norm. Returns the residual with the sum."""
        like, extents = tensor(norm.total), graphs.shape(norm.total) or []
        if static(extents):
            out = self._buffer(like, extents)
            total, normed = self._fill(op.noted_out, args, {"residual": residual, "out": out})
        else:
            total, normed = self._fill(op.noted, args, {"residual": residual}, like.new_empty(extents))
        result = graphs.reshaped(self.graph, normed, graphs.shape(norm.normed) or [])
        if tensor(norm.normed).dtype != like.dtype:
            for user in list(norm.normed.users):
                if graphs.calls(user, graphs.CONVERT) and user.args[1] is like.dtype:
                    user.replace_all_uses_with(result)
                    self.graph.erase_node(user)
            result = self._emit(graphs.CONVERT, (result, torch.float32), {}, tensor(norm.normed), tensor(norm.normed).shape)
        norm.normed.replace_all_uses_with(result)
        return total  # type: ignore[no-any-return]

    def _write_quantized(
        self, op: Any, first: tuple[Any, ...], last: tuple[Any, ...], quantized: Quantization, like: torch.Tensor
    ) -> Node:
        """Writes the op in the place of a norm and its quantisation. Returns the residual with the sum. first: its arguments up to
        the weight; like: the sum."""
        extents, scale, residual = list(like.shape), quantized.scale, first[-2]
        outs, result = {"residual": residual}, like.new_empty(extents, dtype=FP8)
        if quantized.count:
            scale = outs["scales"] = self._scales(residual, quantized.count)
        if static(extents):
            outs["out"] = self._buffer(result, extents)
            results = self._fill(op.noted_out, (*first, scale, *last), outs)
        else:
            results = self._fill(op.noted, (*first, scale, *last), outs, result)
        if quantized.count:
            shape = graphs.shape(quantized.scale) or []
            quantized.scale.replace_all_uses_with(graphs.reshaped(self.graph, results[1], shape))
        shape = graphs.shape(quantized.result) or []
        quantized.result.replace_all_uses_with(graphs.reshaped(self.graph, results[-1], shape))
        return results[0]  # type: ignore[no-any-return]

    def _scales(self, residual: Node, count: int) -> Node:
        """A buffer for so many scales of each row."""
        extents = list(tensor(residual).shape[:-1])
        nodes: list[Any] = []
        for dim, extent in enumerate(extents):
            nodes.append(extent if static([extent]) else self.graph.call_function(aten.sym_size.int, (residual, dim)))
            if isinstance(nodes[-1], Node):
                nodes[-1].meta["val"] = extent
        buffer = self._buffer(tensor(residual).new_empty(0, dtype=torch.float32), [*extents, count])
        buffer.args = ([*nodes, count],)
        return buffer

    def _plain(self, reduce: Node, wait: Node, source: Node, how: tuple[str, str], most: int | None, why: str) -> tuple[str, str]:
        value = tensor(source)
        size = value.numel() * value.element_size()
        if most is not None and not graphs.surely_within(size, 0, most):
            raise Declined(why)
        check_sums(source)
        with self.graph.inserting_before(wait):
            lowered = self._call_lone(_ops.all_reduce, (source, *how), value.shape)
        self._replace(wait, lowered, [wait, reduce])
        return "all_reduce", f"{size} bytes; no product: {why}"
