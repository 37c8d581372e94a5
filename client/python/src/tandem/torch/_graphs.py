"""The compile pass's view of a graph: chains of views, gathers, products, and whether nodes depend on one another.

The graph is Inductor's after the gradients are in it: collectives are functional, their waits explicit, views are reshapes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

aten: Any = torch.ops.aten
c10d: Any = torch.ops._c10d_functional

CONVERT: Any = torch.ops.prims.convert_element_type.default

# torch.nn.functional.scaled_mm; torch 2.11 has the overload, but does not trace the function.
V2: Any = getattr(getattr(aten, "_scaled_mm_v2", None), "default", None)
PLAIN_RECIPES = {0, 1}  # ScalingType.TensorWise, RowWise

# The same elements in their order. An alias is left of a view in another type, where nothing removes it. A clone stands before a
# view of what a slice has left, which is not contiguous.
RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.alias.default, aten.clone.default)


def calls(node: Any, *targets: Any) -> bool:
    """Whether the node calls one of these overloads."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def shape(node: Node) -> list[Any] | None:
    """The tensor's extents, symbolic ones too; None if the node is no tensor."""
    value = node.meta.get("val")
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def elements_of_calls(graph: Graph) -> dict[Node, str]:
    """The type and number of the elements of the first tensor that each call of an op takes, "?" for a symbolic number. Other ranks
    have the same for a collective, however it is viewed."""
    found: dict[Node, str] = {}
    for node in graph.nodes:
        first = next((one.meta.get("val") for one in node.all_input_nodes[:1]), None) if node.op == "call_function" else None
        if isinstance(first, torch.Tensor):
            count = first.numel()
            found[node] = f"{first.dtype} {count if isinstance(count, int) else '?'}".removeprefix("torch.")
    return found


def only_user(node: Node) -> Node | None:
    """The node's user if there is one alone."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def depends(node: Any, on: Node) -> bool:
    """Whether the node is computed from `on`."""
    seen: set[Node] = set()
    stack = [node] if isinstance(node, Node) else []
    while stack:
        one = stack.pop()
        if one is on:
            return True
        if one not in seen:
            seen.add(one)
            stack.extend(one.all_input_nodes)
    return False


@dataclass
class Product:
    """mm, addmm, _scaled_mm or _scaled_mm_v2: `a` @ `b`, with what is added and the scales. `trim`: the slice of a gathered tensor
    that `a` is a view of, where it leaves the last rows out."""

    node: Node
    a: Node
    b: Node
    bias: Node | None = None
    scales: tuple[Node, Node] | None = None
    out_dtype: Any = None
    fast: bool = False
    refused: str = ""
    trim: Node | None = None


def product(node: Any) -> Product | None:
    """The matrix product that the node is, or None. `refused` says why it cannot be fused."""
    if calls(node, aten.mm.default):
        return Product(node, node.args[0], node.args[1])
    if calls(node, aten.addmm.default):
        bias, a, b = node.args[:3]
        found = Product(node, a, b, bias)
        if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
            found.refused = "addmm has an alpha or beta"
        elif len(shape(bias) or ()) != 1:
            found.refused = "addmm's first operand is no vector"
        return found
    if calls(node, aten._scaled_mm.default):
        given = named_arguments(node)
        found = _scaled(node, given, given["scale_a"], given["scale_b"])
        if given.get("scale_result") is not None:
            found.refused = "_scaled_mm has a result scale"
        return found
    if V2 is not None and calls(node, V2):
        given = named_arguments(node)
        scales_a, scales_b = given["scale_a"], given["scale_b"]
        found = _scaled(node, given, scales_a[0], scales_b[0])
        if len(scales_a) != 1 or len(scales_b) != 1:
            found.refused = "_scaled_mm_v2 has scales of two levels"
        elif any(given["swizzle_a"]) or any(given["swizzle_b"]):
            found.refused = "_scaled_mm_v2 has swizzled scales"
        elif not {*given["recipe_a"], *given["recipe_b"]} <= PLAIN_RECIPES:
            found.refused = "_scaled_mm_v2 has scales that are not of the tensor, of rows or of columns"
        elif given.get("contraction_dim"):
            found.refused = "_scaled_mm_v2 names its contracted dimensions"
        return found
    return None


def named_arguments(node: Node) -> dict[str, Any]:
    """The call's arguments by their names."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _scaled(node: Node, given: dict[str, Any], scale_a: Node, scale_b: Node) -> Product:
    fast = bool(given.get("use_fast_accum", False))
    found = Product(node, given["self"], given["mat2"], given.get("bias"), (scale_a, scale_b), given.get("out_dtype"), fast)
    rows, columns = (shape(found.a) or [0])[0], (shape(found.b) or [0])[-1]
    if any(_value(one).dtype != torch.float32 for one in (scale_a, scale_b)):
        found.refused = "its scales are not of fp32"
    elif not _has_form(scale_a, [rows, 1], [rows]) or not _has_form(scale_b, [1, columns], [columns]):
        found.refused = "its scales are not of the tensor, of rows or of columns"
    return found


def _has_form(scale: Node, *forms: Sequence[Any]) -> bool:
    """Whether the scale has one element, or the extents of one of these forms."""
    ours = shape(scale) or []
    if all(equal(extent, 1) for extent in ours):
        return True
    return any(len(ours) == len(form) and all(map(equal, ours, form)) for form in forms)


def same_columns(node: Node, like: Node) -> bool:
    """Whether both have the same last extent."""
    ours, theirs = shape(node), shape(like)
    return bool(ours and theirs and len(ours) > 1 and equal(ours[-1], theirs[-1]))


def same_last(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether the last extents are one."""
    return bool(ours[-1] is theirs[-1] or ours[-1] == theirs[-1])


def equal(a: Any, b: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(a is b or statically_known_true(a == b))


def surely_within(number: Any, least: int, most: int | None = None) -> bool:
    """Whether a number has these bounds: a symbolic one in the example that is compiled, and False if that does not say either."""
    if isinstance(number, torch.SymInt):
        number = number.node.hint  # no guard: this decides about speed only
    return number is not None and bool(number >= least) and (most is None or bool(number <= most))


def divides(extent: Any, world: int) -> bool:
    """Whether an extent is known to divide."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(extent % world == 0))


def rows_of(node: Node) -> Iterator[Node]:
    """The node, and what views of it with the same columns there are."""
    yield node
    for user in list(node.users):
        if calls(user, *RESHAPES) and same_columns(user, node):
            yield from rows_of(user)


def used_once(node: Node, by: Sequence[Node] = ()) -> bool:
    """Whether the node has one user, or nodes of `by` alone."""
    return len(node.users) == 1 or all(user in by for user in node.users)


def origin(node: Node, by: Sequence[Node] = ()) -> tuple[Node, list[Node]]:
    """The origin of a chain of views with one user each, or users of `by`, and the views."""
    chain = []
    while calls(node, *RESHAPES) and used_once(node, by):
        chain.append(node)
        inner = node.args[0]
        assert isinstance(inner, Node)
        node = inner
    return node, chain


def _value(node: Any) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


# torch 2.15 waits for several tensors by one op, as after coalesced collectives; torch 2.11 has no such op.
WAIT_ALL: Any = getattr(getattr(c10d, "wait_tensors", None), "default", None)
_REWRITTEN = (
    c10d.all_gather_into_tensor.default,
    c10d.reduce_scatter_tensor.default,
    c10d.all_reduce.default,
    c10d.all_to_all_single.default,
)
_COALESCED = (c10d.all_gather_into_tensor_coalesced.default, c10d.reduce_scatter_tensor_coalesced.default)


def _rewritten(one: Any) -> bool:
    """Whether the tensor is the result of a collective that the pass may rewrite."""
    return calls(one, *_REWRITTEN) or (calls(one, operator.getitem) and calls(one.args[0], *_COALESCED))


def split_waits(graph: Graph) -> None:
    """Gives each tensor a separate wait where one wait is for several, among them the result of a collective that the pass may
    rewrite. Other waits stay as they are."""
    waits: list[Node] = [] if WAIT_ALL is None else list(graph.find_nodes(op="call_function", target=WAIT_ALL))
    for wait in waits:
        tensors: Any = wait.args[0]
        if not any(map(_rewritten, tensors)) or any(user.target is not operator.getitem for user in wait.users):
            continue
        with graph.inserting_before(wait):
            singles = {one: _wait_for(graph, one) for one in dict.fromkeys(tensors)}
        for item in list(wait.users):
            index: Any = item.args[1]
            item.replace_all_uses_with(singles[tensors[index]])
            graph.erase_node(item)
        graph.erase_node(wait)


def _wait_for(graph: Graph, one: Node) -> Node:
    wait: Node = graph.call_function(c10d.wait_tensor.default, (one,))
    wait.meta["val"] = one.meta["val"]
    return wait


def drop_second_waits(graph: Graph) -> None:
    """Uses a wait itself where another one follows it. Programs wait so for what torch's functional collectives have waited for."""
    waits: list[Node] = list(graph.find_nodes(op="call_function", target=c10d.wait_tensor.default))
    for wait in waits:
        before: Any = wait.args[0]
        if calls(before, c10d.wait_tensor.default):
            wait.replace_all_uses_with(before)
            graph.erase_node(wait)


def drop_copies(graph: Graph) -> None:
    """Uses a collective's result itself where it is copied over a tensor alike, as collectives are written that change their
    argument. The copy counts as a user of that argument, which nobody reads there."""
    copies: list[Node] = list(graph.find_nodes(op="call_function", target=aten.copy.default))
    for copy in copies:
        arguments: Any = copy.args
        over, result = arguments[:2]
        if calls(result, c10d.wait_tensor.default) and only_user(result) is copy and _alike(_value(over), _value(result)):
            copy.replace_all_uses_with(result)
            graph.erase_node(copy)


def _alike(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if any(not isinstance(extent, int) for tensor in (ours, theirs) for extent in tensor.shape):
        return False
    return (ours.shape, ours.stride(), ours.dtype, ours.device) == (theirs.shape, theirs.stride(), theirs.dtype, theirs.device)


def reshaped(graph: Graph, node: Node, extents: Sequence[Any]) -> Node:
    """A view of the node with these extents; the node itself if it has them."""
    ours = shape(node)
    if ours is not None and len(ours) == len(extents) and all(map(equal, ours, extents)):
        return node
    view: Node = graph.call_function(aten.reshape.default, (node, list(extents)))
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        view.meta["val"] = value.new_empty(list(extents))
    return view


def erase_dead(candidates: Sequence[Node]) -> None:
    """Erases those of the nodes that nobody uses any more. Collectives count as impure and would stay."""
    left = list(dict.fromkeys(candidates))
    while True:
        dead = [node for node in left if not node.users]
        if not dead:
            return
        for node in dead:
            node.graph.erase_node(node)
        left = [node for node in left if node not in dead]
