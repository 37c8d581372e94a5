"""How a graph writes a sum's addition to a residual and the RMSNorm behind it.

Inductor has decomposed every form of the norm by then: torch's own, and those that models write by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ._graphs import CONVERT, RESHAPES, aten, calls, depends, equal, only_user, rows_of, same_last, shape
from ._quantized_patterns import is_quantized
from ._writer import tensor

_ADDS = (aten.add.Tensor, aten.add.Scalar)
# A clone shares no memory.
_VIEWS = tuple(op for op in RESHAPES if op is not aten.clone.default)
_UNKNOWN = "what is computed of the residual is no RMSNorm that the pass knows"


class NoNorm(Exception):
    """Why no norm is fused behind a sum."""


@dataclass
class Norm:
    """residual + sum = `total`, and `normed`, its RMSNorm; in fp32 where that is not rounded before its quantisation. `nodes`: all
    that computes both."""

    total: Node
    residual: Node
    weight: Node
    epsilon: float
    normed: Node
    nodes: list[Node] = field(default_factory=list)


def norm_behind(wait: Node, reduce: Node) -> Norm:
    """The residual and the norm behind the sum `wait` of the collective `reduce`; raises NoNorm if there are none."""
    total, views = addition_behind(wait)
    residual = other_operand(total, views[-1])
    ours, theirs = tensor(total), _residual_value(residual)
    if not ours.dtype.is_floating_point or theirs.dtype != ours.dtype or tensor(wait).dtype != ours.dtype:
        raise NoNorm("the residual is of another type")
    if not same_shape(residual, total) or not same_shape(views[-1], total):
        raise NoNorm("the residual is of another shape")
    if depends(residual, reduce):
        raise NoNorm("the residual depends on the sum")
    norm = _norm_of(total, residual)
    if depends(norm.weight, reduce):
        raise NoNorm("the norm's weight depends on the sum")
    norm.nodes += [total, *reversed(views)]
    return norm


def shares_memory(residual: Node, *others: Any) -> bool:
    """Whether the residual may have memory in common with another of these."""
    own = _storage(residual)
    return any(_storage(one) == own for one in others if isinstance(one, Node))


def is_solid(residual: Node) -> bool:
    """Whether the residual can be written where it lies: contiguous, and no view of what is not, which may be a copy."""
    return all(tensor(node).is_contiguous() for node in _viewed(residual))


def _viewed(node: Node) -> list[Node]:
    """The node, and what it is a view of."""
    nodes = [node]
    while calls(nodes[-1], *_VIEWS):
        inner = nodes[-1].args[0]
        assert isinstance(inner, Node)
        nodes.append(inner)
    return nodes


def _storage(node: Node) -> int:
    return int(tensor(_viewed(node)[-1]).untyped_storage()._cdata)


def _residual_value(residual: Any) -> torch.Tensor:
    value = residual.meta.get("val") if isinstance(residual, Node) else None
    if not isinstance(value, torch.Tensor):
        raise NoNorm("what is added is no residual, but a number")
    return value


def same_shape(node: Node, like: Node) -> bool:
    ours, theirs = shape(node) or [], shape(like) or []
    return len(ours) == len(theirs) and all(map(equal, ours, theirs))


def addition_behind(wait: Node) -> tuple[Node, list[Node]]:
    """The addition that is the sum's only use, and the sum and its views up to there."""
    views = [wait]
    while True:
        user = only_user(views[-1])
        if user is None:
            raise NoNorm("the sum has several uses, or none")
        if calls(user, aten.add.Tensor) and user.kwargs.get("alpha", 1) == 1:
            return user, views
        if not calls(user, *RESHAPES):
            raise NoNorm("no residual is added to the sum")
        views.append(user)


def other_operand(node: Node, operand: Node) -> Any:
    """The node's other operand."""
    left, right = node.args[:2]
    return right if left is operand else left


def _within(node: Node) -> Node:
    """The only user of a value inside the norm."""
    user = only_user(node)
    if user is None:
        raise NoNorm("values inside the norm are used outside it, as by gradients")
    return user


def _norm_of(total: Node, residual: Node) -> Norm:
    """The first norm of the total that can be fused."""
    wide, refused = list(_wide(total)), []
    for value in wide:
        for square in list(value.users):
            if not _squares(square, value):
                continue
            for mean in list(square.users):
                if calls(mean, aten.mean.dim, aten.mean.default):
                    try:
                        return _norm_by(mean, square, total, residual, wide)
                    except NoNorm as reason:
                        refused.append(reason)
    raise refused[0] if refused else NoNorm("no RMSNorm follows the residual")


def _wide(total: Node) -> Iterator[Node]:
    """The total, views of it with the same columns, and the same in fp32."""
    for node in rows_of(total):
        yield node
        for user in list(node.users):
            if calls(user, CONVERT) and user.args[1] is torch.float32:
                yield from rows_of(user)


def _squares(node: Node, value: Node) -> bool:
    if calls(node, aten.mul.Tensor):
        return node.args[0] is value and node.args[1] is value
    return calls(node, aten.pow.Tensor_Scalar) and node.args == (value, 2)


def _norm_by(mean: Node, square: Node, total: Node, residual: Node, wide: list[Node]) -> Norm:
    """The norm by this mean of squares. wide: the forms of the total that it may take."""
    nodes = [square, mean]
    _within(square)
    _check_mean(mean)
    epsilon, node = _epsilon(mean, nodes)
    factor, divides = _root(node, nodes)
    scaled = _within(factor)
    if not calls(scaled, aten.div.Tensor if divides else aten.mul.Tensor) or (divides and scaled.args[1] is not factor):
        raise NoNorm(_UNKNOWN)
    value = other_operand(scaled, factor)
    if value not in wide or not same_shape(scaled, value):
        raise NoNorm(_UNKNOWN)
    nodes += [scaled, *(node for node in wide if node is not total)]
    weighed, value = _skip(scaled, total, nodes)
    if not calls(weighed, aten.mul.Tensor):
        raise NoNorm("the norm has no weight")
    if not same_last(tensor(value).shape, tensor(total).shape):
        raise NoNorm(_UNKNOWN)
    weight = _weight(other_operand(weighed, value), total, nodes)
    nodes.append(weighed)
    normed = weighed
    kind = tensor(total).dtype
    if tensor(weighed).dtype != kind and not is_quantized(weighed, kind):
        normed = _within(weighed)
        if not calls(normed, CONVERT) or tensor(normed).dtype != kind:
            raise NoNorm("the norm's result is of another type")
        nodes.append(normed)
    return Norm(total, residual, weight, epsilon, normed, nodes)


def _check_mean(mean: Node) -> None:
    target: Any = mean.target
    given = {**dict(zip((one.name for one in target._schema.arguments), mean.args, strict=False)), **mean.kwargs}
    last = len(shape(given["self"]) or []) - 1
    if [dim % (last + 1) for dim in given.get("dim") or []] != [last]:
        raise NoNorm("the norm is not over the last dimension")
    if not given.get("keepdim") or given.get("dtype") not in (None, torch.float32):
        raise NoNorm(_UNKNOWN)


def _epsilon(mean: Node, nodes: list[Node]) -> tuple[float, Node]:
    """Epsilon, and the mean with it."""
    added = _within(mean)
    if not calls(added, *_ADDS):
        return 0.0, mean
    epsilon = other_operand(added, mean)
    source = epsilon.args[0] if calls(epsilon, CONVERT) else epsilon
    if isinstance(source, Node) and source.op == "placeholder" and shape(source) == []:
        raise NoNorm("epsilon is an input of the graph, as numbers are under dynamic=True")
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon < math.inf:
        raise NoNorm("epsilon is not a number that the graph has")
    if added.kwargs.get("alpha", 1) != 1:
        raise NoNorm(_UNKNOWN)
    nodes.append(added)
    return float(epsilon), added


def _root(node: Node, nodes: list[Node]) -> tuple[Node, bool]:
    """The factor or divisor of the values."""
    root = _within(node)
    nodes.append(root)
    if calls(root, aten.rsqrt.default) or (calls(root, aten.pow.Tensor_Scalar) and root.args[1] == -0.5):
        return root, False
    if not calls(root, aten.sqrt.default) and not (calls(root, aten.pow.Tensor_Scalar) and root.args[1] == 0.5):
        raise NoNorm(_UNKNOWN)
    inverse = _within(root)
    if calls(inverse, aten.reciprocal.default):
        nodes.append(inverse)
        return inverse, False
    return root, True


def _skip(scaled: Node, total: Node, nodes: list[Node]) -> tuple[Node, Node]:
    """The user of the scaled values, and these as it takes them: viewed otherwise, and rounded to the type or not."""
    value, user = scaled, _within(scaled)
    while calls(user, *RESHAPES) or (calls(user, CONVERT) and user.args[1] in (tensor(total).dtype, torch.float32)):
        nodes.append(user)
        value, user = user, _within(user)
    return user, value


def _weight(weight: Any, total: Node, nodes: list[Node]) -> Node:
    """The vector of the type behind what the values are multiplied by."""
    columns, kind = (shape(total) or [0])[-1], tensor(total).dtype
    while True:
        extents = shape(weight) if isinstance(weight, Node) else None
        if not extents or not equal(extents[-1], columns):
            raise NoNorm("the norm's weight is no vector of a row's extent")
        if len(extents) == 1 and tensor(weight).dtype == kind:
            return weight  # type: ignore[no-any-return]
        if not calls(weight, *RESHAPES) and not (calls(weight, CONVERT) and weight.args[1] is torch.float32):
            what = "of another type" if len(extents) == 1 else "no vector of a row's extent"
            raise NoNorm(f"the norm's weight is {what}")
        nodes.append(weight)
        weight = weight.args[0]
