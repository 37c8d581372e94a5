"""How a graph cuts tensors and puts the parts together: gathers along another dimension, cuts for a scatter, and padded rows.

A cut is a split and its getitems, or slices: torch writes slices where extents are unknown, and programs do. Only equal chunks that
cover the tensor in their order are a gather's or a scatter's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ._graphs import aten, calls, equal, only_user, product, rows_of, shape, surely_within, used_once

_SPLITS = tuple(
    getattr(getattr(aten, name), overload)
    for name, overload in (("split", "Tensor"), ("split", "sizes"), ("split_with_sizes", "default"))
)
OTHER_PARTS = "it is put together of parts that are not the ranks' equal chunks in their order"


@dataclass
class Gathered:
    """A node that is the gathered tensor along `dim`; `between` are the nodes that put it there. `rows`: as it comes, with all
    dimensions but the last to be taken as rows. `dtype`: the type that the bytes are seen as, if they travelled as another."""

    node: Node
    dim: int
    between: list[Node]
    rows: bool
    dtype: torch.dtype | None = None


@dataclass
class Cut:
    """The tensor that is cut along `dim`, and the nodes that do it and put the chunks together again. `order`: of the dimensions
    in what is put together, where they were permuted instead of being cut. `seen`: the views of chunks in another type, by which
    libraries put fp8 together as bytes."""

    tensor: Node
    dim: int
    between: list[Node]
    order: list[int] | None = None
    seen: list[Node] = field(default_factory=list)


def gathered_forms(wait: Node, refused: list[str]) -> Iterator[Gathered]:
    """The gathered tensor as it comes, and where it is cut and put together along another dimension; each also as seen in
    another type, since not every backend moves fp8. `refused` gets the reasons against what looks like such a form."""
    for form in _forms(wait, refused):
        yield form
        for cast in list(form.node.users):
            if calls(cast, aten.view.dtype):
                between = form.between if form.node is wait else [*form.between, form.node]
                yield Gathered(cast, form.dim, between, form.rows, cast.meta["val"].dtype)


def in_type(shard: Node, form: Gathered) -> Node | None:
    """The tensor whose bytes the shard is, in the type that the gathered form is seen as; None if it is another."""
    if form.dtype is None:
        return shard
    inner = sent_chain(shard)[-1]
    return inner if inner.meta["val"].dtype == form.dtype and shape(inner) == shape(shard) else None


def sent_chain(shard: Node) -> list[Node]:
    """The shard, and what it is seen from in another type."""
    chain = [shard]
    while calls(chain[-1], aten.view.dtype, aten.alias.default):
        inner = chain[-1].args[0]
        assert isinstance(inner, Node)
        chain.append(inner)
    return chain


def _forms(wait: Node, refused: list[str]) -> Iterator[Gathered]:
    yield Gathered(wait, 0, [], True)
    gather = wait.args[0]
    shard = gather.args[0] if isinstance(gather, Node) else None
    extents = shape(shard) if isinstance(shard, Node) else None
    cats: dict[Node, None] = {}
    for user in wait.users:
        for part in [user, *(user.users if calls(user, *_SPLITS) else ())]:
            cats.update({cat: None for cat in _seen_as(part).users if calls(cat, aten.cat.default)})
    for cat in cats:
        dims, cut = shape(cat), _cut_behind(cat)
        if cut is None or cut.tensor is not wait:
            continue
        # A chunk is one rank's shard if it is cut along the first dimension and has the shard's extents.
        chunk = shape(cut.between[0])
        if cut.dim != 0 or chunk is None or extents is None or not all(map(equal, chunk, extents)) or not _complete(cut):
            refused.append(OTHER_PARTS)
        elif not _only_for(cat, cut):
            refused.append("a rank's part of it is used on its own, too")
        else:
            kind = cat.meta["val"].dtype
            seen_as = None if kind == wait.meta["val"].dtype else kind
            yield Gathered(cat, _dim(cat, 1) % len(dims or ()), [*cut.between, *cut.seen], False, seen_as)


def scattered_from(node: Node, world: int, refused: list[str]) -> Cut | None:
    """What is cut along a dimension and put together along the first, for a scatter to `world` ranks, or has the dimension moved
    to the front; None if nothing has. `refused` gets the reason against what looks like such a cut."""
    moved = _moved(node)
    if moved is not None:
        return moved
    if not calls(node, aten.cat.default) or _dim(node, 1) != 0:
        return None
    cut = _cut_behind(node)
    if cut is None or cut.seen:
        return None
    parts = _parts(node)
    if len(parts) != world or not _complete(cut):
        refused.append(OTHER_PARTS)
    elif any(only_user(part) is not node for part in parts) or len(node.users) != 1:
        refused.append("a rank's part of it is used on its own, too")
    else:
        return Cut(cut.tensor, cut.dim, [node, *cut.between])
    return None


def _moved(node: Node) -> Cut | None:
    between = [node]
    while calls(between[-1], aten.clone.default) and used_once(between[-1]):
        between.append(_argument(between[-1], 0, "self", None))
    permute = between[-1]
    if not calls(permute, aten.permute.default) or not used_once(permute):
        return None
    order = [int(dim) % len(shape(permute) or ()) for dim in _argument(permute, 1, "dims", [])]
    if order[-1] != len(order) - 1:
        return None  # the columns are elsewhere
    return Cut(_argument(permute, 0, "self", None), order[0], between, order)


def operands(form: Gathered, world: int, refused: list[str]) -> Iterator[tuple[Node, Node | None]]:
    """The nodes that are the gathered rows, for a product's left operand, each with the slice that has left padded rows out before
    it, if one has. `refused` gets the reasons against other slices that products take."""
    for node in list(rows_of(form.node)):
        yield node, None
        for trim in list(node.users):
            if not calls(trim, aten.slice.Tensor):
                continue
            behind, reason = list(rows_of(trim)), _against(trim, form, world)
            if not reason:
                yield from ((rows, trim) for rows in behind)
            elif any(found is not None and found.a in behind for rows in behind for found in map(product, rows.users)):
                refused.append(reason)


def _against(trim: Node, form: Gathered, world: int) -> str:
    """Why the slice is none that leaves out the rows with which the last shards were padded; "" if it is one."""
    source = trim.args[0]
    assert isinstance(source, Node)
    whole, left, dim = shape(source) or [], shape(trim) or [], _dim(trim, 1) % len(shape(trim) or ())
    if dim == len(whole) - 1:
        return "the gathered tensor's columns are cut"
    # Taken as rows, what is left must be the first ones; along a dimension, the gathered one alone is cut.
    first = all(equal(extent, 1) for extent in whole[:dim]) if form.rows else source is form.node and dim == form.dim
    if not first or not equal(_start(trim), 0) or not equal(_step(trim), 1):
        return "the product takes other rows than the first ones"
    # Shards of equal extents are padded by fewer rows than there are ranks.
    if surely_within(whole[dim] - left[dim], world):
        return "the product takes a part of the gathered rows"
    return ""


def _seen_as(part: Node) -> Node:
    """The last of the views in another type that the node is used by alone."""
    while calls(only_user(part), aten.view.dtype, aten.alias.default):
        (part,) = part.users
    return part


def _only_for(cat: Node, cut: Cut) -> bool:
    """Whether nothing else uses the parts, or their views in another type."""
    parts = [node for node in cut.between if not calls(node, *_SPLITS)]
    return all(only_user(node) is cat or only_user(node) in cut.seen for node in [*parts, *cut.seen])


def _parts(cat: Node) -> list[Node]:
    parts: Any = cat.args[0]
    return list(parts)


def _cut_behind(cat: Node) -> Cut | None:
    """The tensor that the operands of `cat` are parts of, complete or not; None if they are not cut from one tensor by one op."""
    parts: list[Any] = []
    seen: list[Node] = []
    for operand in _parts(cat):
        part: Any = operand
        while calls(part, aten.view.dtype, aten.alias.default):
            seen.append(part)
            part = part.args[0]
        parts.append(part)
    if not parts or not all(isinstance(part, Node) and part.args for part in parts):
        return None
    source: Any = parts[0].args[0]
    if any(part.args[0] is not source for part in parts):
        return None
    if all(part.target is operator.getitem for part in parts) and calls(source, *_SPLITS):
        dims = shape(source.args[0])
        return None if dims is None else Cut(source.args[0], _dim(source, 2) % len(dims), [*parts, source], seen=seen)
    dims = shape(source)
    if dims is None or not all(calls(part, aten.slice.Tensor) for part in parts):
        return None
    dim = _dim(parts[0], 1)
    return Cut(source, dim % len(dims), parts, seen=seen) if all(_dim(part, 1) == dim for part in parts) else None


def _complete(cut: Cut) -> bool:
    """Whether the parts are equal, in their order, and all of the tensor."""
    parts = [node for node in cut.between if not calls(node, *_SPLITS)]
    extents = [(shape(part) or [])[cut.dim] for part in parts]
    if not all(equal(extent, extents[0]) for extent in extents):
        return False
    if not equal((shape(cut.tensor) or [])[cut.dim], extents[0] * len(parts)):
        return False
    if len(parts) < len(cut.between):  # of a split
        return [part.args[1] for part in parts] == list(range(len(parts)))
    return all(equal(_start(part), i * extents[0]) and equal(_step(part), 1) for i, part in enumerate(parts))


def _argument(node: Node, position: int, name: str, otherwise: Any) -> Any:
    """The node's argument, however it is given."""
    value: Any = node.args[position] if len(node.args) > position else node.kwargs.get(name, otherwise)
    return value


def _dim(node: Node, position: int) -> int:
    """The node's argument `dim`, 0 where it is left out."""
    return int(_argument(node, position, "dim", 0))


def _number(node: Node, position: int, name: str, otherwise: Any) -> Any:
    """The number that the argument is, symbolic or not."""
    value = _argument(node, position, name, otherwise)
    return value.meta["val"] if isinstance(value, Node) else value


def _start(part: Node) -> Any:
    """Where the slice begins; None, which no number is equal to, if it counts from the end."""
    start = _number(part, 2, "start", None) or 0
    return None if isinstance(start, int) and start < 0 else start


def _step(part: Node) -> Any:
    return _number(part, 4, "step", 1)
