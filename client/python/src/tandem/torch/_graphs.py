"""What the compile pass sees of a graph: chains of views, gathers, products, and whether nodes depend on one another.

The graph is Inductor's after the gradients are in it: collectives are functional, their waits explicit, views are reshapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

aten: Any = torch.ops.aten
c10d: Any = torch.ops._c10d_functional

# torch.nn.functional.scaled_mm; torch 2.11 has the overload, but does not trace the function.
V2: Any = getattr(getattr(aten, "_scaled_mm_v2", None), "default", None)
PLAIN_RECIPES = {0, 1}  # ScalingType.TensorWise, RowWise

# Views of the same elements in their order. An alias is left of a view in another type, where nothing removes it.
RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.alias.default)


def calls(node: Any, *targets: Any) -> bool:
    """Whether the node calls one of these overloads."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def shape(node: Node) -> list[Any] | None:
    """The tensor's extents, symbolic ones too; None if the node is no tensor."""
    value = node.meta.get("val")
    return list(value.shape) if isinstance(value, torch.Tensor) else None


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
    """mm, addmm, _scaled_mm or _scaled_mm_v2: `a` @ `b`, with what is added and the scales."""

    node: Node
    a: Node
    b: Node
    bias: Node | None = None
    scales: tuple[Node, Node] | None = None
    out_dtype: Any = None
    fast: bool = False
    refused: str = ""


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
        given = _given(node)
        found = _scaled(node, given, given["scale_a"], given["scale_b"])
        if given.get("scale_result") is not None:
            found.refused = "_scaled_mm has a result scale"
        return found
    if V2 is not None and calls(node, V2):
        given = _given(node)
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


def _given(node: Node) -> dict[str, Any]:
    """The call's arguments by their names."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _scaled(node: Node, given: dict[str, Any], scale_a: Node, scale_b: Node) -> Product:
    fast = bool(given.get("use_fast_accum", False))
    return Product(node, given["self"], given["mat2"], given.get("bias"), (scale_a, scale_b), given.get("out_dtype"), fast)


def _dim(node: Node, position: int) -> int:
    """The node's argument `dim`, 0 where it is left out."""
    dim: Any = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    return int(dim)


def _sequence(value: Any) -> list[Any]:
    return list(value)


def _index(getitem: Node) -> int:
    index: Any = getitem.args[1]
    return int(index)


@dataclass
class Gathered:
    """A node that is the gathered tensor along `dim`; `between` are the nodes that put it there. `rows`: as it comes, with all
    dimensions but the last to be taken as rows. `dtype`: the type that the bytes are seen as, if they travelled as another."""

    node: Node
    dim: int
    between: list[Node]
    rows: bool
    dtype: torch.dtype | None = None


def gathered_forms(wait: Node) -> Iterator[Gathered]:
    """The gathered tensor as it comes, and where it is cut and put together along another dimension; each also as seen in
    another type, since not every backend moves fp8."""
    for form in _layouts(wait):
        yield form
        for cast in list(form.node.users):
            if calls(cast, aten.view.dtype):
                between = form.between if form.node is wait else [*form.between, form.node]
                yield Gathered(cast, form.dim, between, form.rows, _value(cast).dtype)


def _value(node: Node) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def in_type(shard: Node, form: Gathered) -> Node | None:
    """The tensor whose bytes the shard is, in the type that the gathered form is seen as; None if it is another."""
    if form.dtype is None:
        return shard
    inner = sent_chain(shard)[-1]
    return inner if _value(inner).dtype == form.dtype and shape(inner) == shape(shard) else None


def sent_chain(shard: Node) -> list[Node]:
    """The shard, and what it is seen from in another type."""
    chain = [shard]
    while calls(chain[-1], aten.view.dtype, aten.alias.default):
        inner = chain[-1].args[0]
        assert isinstance(inner, Node)
        chain.append(inner)
    return chain


def _seen_chain(part: Node) -> list[Node]:
    """The node, and what it is seen as in another type. Libraries put fp8 together as bytes."""
    chain = [part]
    while calls(only_user(chain[-1]), aten.view.dtype, aten.alias.default):
        chain.extend(chain[-1].users)
    return chain


def _layouts(wait: Node) -> Iterator[Gathered]:
    yield Gathered(wait, 0, [], True)
    for split in list(wait.users):
        if not calls(split, aten.split.Tensor) or _dim(split, 2) != 0:
            continue
        parts = list(split.users)
        if not parts or not all(part.target.__name__ == "getitem" for part in parts if callable(part.target)):
            continue
        parts.sort(key=_index)
        chains = [_seen_chain(part) for part in parts]
        sides = [chain[-1] for chain in chains]
        cat = only_user(sides[0])
        if cat is None or not calls(cat, aten.cat.default) or any(only_user(side) is not cat for side in sides):
            continue
        if _sequence(cat.args[0]) != sides:
            continue
        dims = shape(cat)
        if dims is None:
            continue
        dim = _dim(cat, 1)
        kind = _value(cat).dtype
        between = [split, *(node for chain in chains for node in chain)]
        yield Gathered(cat, dim % len(dims), between, False, None if kind == _value(wait).dtype else kind)


def same_columns(node: Node, like: Node) -> bool:
    """Whether both have the same last extent."""
    ours, theirs = shape(node), shape(like)
    return bool(ours and theirs and len(ours) > 1 and _equal(ours[-1], theirs[-1]))


def _equal(a: Any, b: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(a is b or statically_known_true(a == b))


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


def origin(node: Node) -> tuple[Node, list[Node]]:
    """What a chain of views with one user each is a view of, and the views."""
    chain = []
    while calls(node, *RESHAPES) and len(node.users) == 1:
        chain.append(node)
        inner = node.args[0]
        assert isinstance(inner, Node)
        node = inner
    return node, chain


def scattered_from(node: Node) -> tuple[Node, int, list[Node]] | None:
    """(tensor, dimension, nodes between): what is cut along a dimension and put together along the first, for a scatter."""
    if not calls(node, aten.cat.default) or _dim(node, 1) != 0:
        return None
    parts = _sequence(node.args[0])
    if not parts or not all(isinstance(part, Node) and getattr(part.target, "__name__", "") == "getitem" for part in parts):
        return None
    split = parts[0].args[0]
    if not calls(split, aten.split.Tensor) or [part.args for part in parts] != [(split, i) for i in range(len(parts))]:
        return None
    if len(split.users) != len(parts) or any(only_user(part) is not node for part in parts) or len(node.users) != 1:
        return None
    dims = shape(split.args[0])
    dim = _dim(split, 2)
    return None if dims is None else (split.args[0], dim % len(dims), [node, *parts, split])


def drop_copies(graph: Graph) -> None:
    """Uses a collective's result itself where it is copied over a tensor alike, as collectives are written that change their
    argument. The copy counts as a user of that argument, which nobody reads there."""
    copies: list[Node] = list(graph.find_nodes(op="call_function", target=aten.copy.default))
    for copy in copies:
        over, result = _sequence(copy.args)[:2]
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
    if ours is not None and len(ours) == len(extents) and all(map(_equal, ours, extents)):
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
