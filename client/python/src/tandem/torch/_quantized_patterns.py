"""How a graph writes the quantisation of a norm to fp8 (e4m3), in forms with the values of the ops with `fp8` in their name.

The norm, rounded to its rows' type, is divided by a scale in fp32, clamped to ±448 and converted. One scale is given, or each row,
or each 128 columns of it, has one: max(greatest magnitude, 1/512) / 448. A multiplication by the scale's reciprocal rounds
otherwise, and stays behind the norm.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ._graphs import CONVERT, RESHAPES, aten, calls, depends, equal, named_arguments, only_user, shape
from ._writer import tensor

__all__ = ["FP8", "NoQuantization", "Quantization", "forms_of", "is_quantized", "quantization_behind", "users_of"]

FP8 = torch.float8_e4m3fn
_MAX, _LEAST_AMAX, _BLOCK = 448.0, 1 / 512, 128
# The same elements in their order, with other extents.
_VIEWS = (*RESHAPES, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims)
_BY_SCALE = (aten.div.Tensor, aten.mul.Tensor)


class NoQuantization(Exception):
    """Why the quantisation of a norm stays behind it."""


@dataclass
class Quantization:
    """normed / `scale` in fp8 is `result`. count: of the scales that are made for each row; 0: the scale is given. nodes: all that
    computes both."""

    scale: Node
    count: int
    result: Node
    nodes: list[Node]


def quantization_behind(normed: Node, rounded: torch.dtype, reduce: Node, multiplies: bool = False) -> Quantization | None:
    """The quantisation that has all uses of the norm behind the collective `reduce`; None if nothing quantises it. Raises
    NoQuantization where one does otherwise than the ops, or beside other uses. rounded: the norm's type, also where it is in fp32.
    multiplies: whether a product with a scale's reciprocal will do, too, which the ops round otherwise."""
    forms = forms_of(normed, rounded)
    users = users_of(forms)
    quotients = [user for user in users if _converted(user)]
    if not quotients:
        return None
    if len(quotients) > 1:
        raise NoQuantization("the norm is quantised more than once")
    quotient, others = quotients[0], [user for user in users if user is not quotients[0]]
    value, scale = _divided(quotient, multiplies)
    if value not in forms or not isinstance(scale, Node) or tensor(scale).dtype != torch.float32:
        raise NoQuantization("the norm is divided by what is no scale in fp32")
    ending = _converted(quotient)
    if any(tensor(one).dtype != torch.float32 for one in ending[:-1]) or not _same(shape(quotient), shape(value)):
        raise NoQuantization("the norm is not divided in fp32, or with other extents")
    nodes = [*reversed(ending), *quotient.all_input_nodes, *reversed(forms[1:])]
    if not depends(scale, reduce):
        _check_given(scale, others, normed)
        _check_clamped(ending, (-_MAX,), (_MAX,))
        return Quantization(scale, 0, ending[-1], nodes)
    made = _Made(scale, forms)
    if others != [made.magnitudes]:
        raise NoQuantization("the norm has other uses")
    # No quotient by such a scale is above 448 in e4m3.
    _check_clamped(ending, (-_MAX, None), (_MAX, None))
    return Quantization(made.scale, made.count_for(normed, value), ending[-1], [*nodes, *made.nodes])


def is_quantized(wide: Node, rounded: torch.dtype) -> bool:
    """Whether a norm in fp32 has no use but its rounding to this type and its quantisation to fp8. Inductor leaves out the
    program's rounding before the quantisation."""
    users = [user for user in users_of(list(_forms(wide, (torch.float32,)))) if not _converts(user, (rounded,))]
    others = [user for user in users if not _converted(user)]
    return len(others) < len(users) and all(calls(one, aten.abs.default) and _has_greatest(one) for one in others)


def forms_of(normed: Node, rounded: torch.dtype) -> list[Node]:
    """The norm first, views of it with its elements in their order, and the same converted to its type or fp32."""
    return list(_forms(normed, (torch.float32, rounded)))


def _divided(quotient: Node, multiplies: bool) -> tuple[Any, Any]:
    """What is divided by a scale, or multiplied by its reciprocal where that will do, and the scale."""
    left: Any
    right: Any
    left, right = quotient.args[:2]
    if calls(quotient, aten.div.Tensor):
        return left, right
    value, factor = (right, left) if calls(left, aten.reciprocal.default) else (left, right)
    if not multiplies or not calls(factor, aten.reciprocal.default):
        raise NoQuantization("the norm is multiplied, by a reciprocal of its scale, and the op divides by the scale")
    return value, factor.args[0]


def _converts(node: Any, types: tuple[torch.dtype, ...]) -> bool:
    return calls(node, CONVERT) and node.args[1] in types


def _same(ours: list[Any] | None, theirs: list[Any] | None) -> bool:
    return ours is not None and theirs is not None and len(ours) == len(theirs) and all(map(equal, ours, theirs))


def _forms(node: Node, types: tuple[torch.dtype, ...]) -> Iterator[Node]:
    """The node, views of it with its elements in their order, and the same converted to these types."""
    yield node
    for user in list(node.users):
        if calls(user, *_VIEWS) or _converts(user, types):
            yield from _forms(user, types)


def users_of(forms: list[Node]) -> list[Node]:
    """What uses one of these, and is none of them."""
    return [user for user in dict.fromkeys(user for one in forms for user in one.users) if user not in forms]


def _converted(node: Node) -> list[Node]:
    """The quotient or product, and what is computed of it alone up to its conversion to fp8; empty if that is not reached."""
    nodes = [node]
    if not calls(node, *_BY_SCALE):
        return []
    while not _converts(nodes[-1], (FP8,)):
        user = only_user(nodes[-1])
        clamps = calls(user, aten.clamp_min.default, aten.clamp_max.default, aten.clamp.default)
        if user is None or not (clamps or calls(user, *_VIEWS, CONVERT)):
            return []
        nodes.append(user)
    return nodes


def _check_clamped(ending: list[Node], least: tuple[float | None, ...], most: tuple[float | None, ...]) -> None:
    """Whether the quotient is clamped to one of each of these bounds; None: to none."""
    bounds: dict[str, set[Any]] = {"min": set(), "max": set()}
    for node in ending:
        if calls(node, aten.clamp_min.default, aten.clamp_max.default, aten.clamp.default):
            given = named_arguments(node)
            for name, values in bounds.items():
                if given.get(name) is not None:
                    values.add(given[name])
    for values, allowed in ((bounds["min"], least), (bounds["max"], most)):
        if len(values) > 1 or next(iter(values), None) not in allowed:
            raise NoQuantization("the quotient is not clamped to ±448")


def _check_given(scale: Node, others: list[Node], normed: Node) -> None:
    if others:
        raise NoQuantization("the norm has other uses")
    if not all(equal(extent, 1) for extent in shape(scale) or []):
        raise NoQuantization("its scale is not made of the norm, and has more than one element")
    if tensor(scale).device != tensor(normed).device:
        raise NoQuantization("its scale is on another device")


def _has_greatest(magnitudes: Node) -> bool:
    """Whether the magnitudes have no use but their maximum."""
    user = only_user(magnitudes)
    while calls(user, *_VIEWS) or _converts(user, (torch.float32,)):
        user = only_user(user)  # type: ignore[arg-type]
    return calls(user, aten.amax.default, aten.max.dim)


class _Made:
    """A scale that is made of a norm's greatest magnitudes. `scale`: where all of it is computed; `nodes`: from there to
    `magnitudes`."""

    def __init__(self, scale: Node, forms: list[Node]) -> None:
        self.applied, self.nodes = scale, []
        self.scale = self._within(scale, (), inner=False)
        bounded = self.scale
        if calls(bounded, aten.clamp_min.default, aten.clamp.default):
            quotient = self._step(bounded, "its scale is made otherwise")
            self._check_least(bounded, float(torch.tensor(_LEAST_AMAX) / torch.tensor(_MAX)))
            greatest = self._divided(quotient)
        else:
            bounded = self._divided(bounded)
            if not calls(bounded, aten.clamp_min.default, aten.clamp.default):
                raise NoQuantization("its scale has no least value")
            self._check_least(bounded, _LEAST_AMAX)
            greatest = self._step(bounded, "")
        self.magnitudes = self._greatest(greatest)
        value = self.magnitudes.args[0]
        if not calls(self.magnitudes, aten.abs.default) or value not in forms:
            raise NoQuantization("its scale is made otherwise than of the norm's greatest magnitudes")
        self.nodes.append(self.magnitudes)

    def count_for(self, normed: Node, value: Any) -> int:
        """The scales of a row of the norm. value: what is divided by them."""
        columns, run, extents = (shape(normed) or [0])[-1], (shape(self.magnitudes) or [0])[-1], shape(value) or [0]
        if not equal(extents[-1], run) or not _same(shape(self.applied), [*extents[:-1], 1]):
            raise NoQuantization("its scales are applied to other elements than they are made of")
        if equal(run, columns):
            return 1
        if run != _BLOCK or not isinstance(columns, int) or columns % _BLOCK:
            raise NoQuantization(f"its scales are neither of rows nor of {_BLOCK} columns each")
        return columns // _BLOCK

    def _within(self, node: Any, more: tuple[Any, ...], inner: bool = True) -> Node:
        """What a value is a view of, or the same in fp32. inner: the scale alone uses it."""
        while calls(node, *_VIEWS, *more) and (not calls(node, CONVERT) or node.args[1] is torch.float32):
            self._note(node, inner)
            node = node.args[0]
        if not isinstance(node, Node):
            raise NoQuantization("its scale is made otherwise")
        return node

    def _note(self, node: Node, inner: bool = True) -> None:
        if inner and len(node.users) != 1:
            raise NoQuantization("values inside the quantisation are used outside it")
        self.nodes.append(node)

    def _step(self, node: Node, otherwise: str) -> Node:
        """The first argument of one of the scale's operations."""
        if otherwise and tensor(node).dtype != torch.float32:
            raise NoQuantization(otherwise)
        self._note(node, node is not self.scale)
        return self._within(node.args[0], (CONVERT,))

    def _divided(self, quotient: Node) -> Node:
        divisor = quotient.args[1] if calls(quotient, aten.div.Tensor) else None
        if calls(divisor, aten.full.default):
            divisor = divisor.args[1]  # type: ignore[union-attr]
        if calls(quotient, aten.mul.Tensor):
            raise NoQuantization("its scale is made by a multiplication, and the op divides by 448")
        if divisor != _MAX:
            raise NoQuantization("its scale is not made by a division by 448")
        return self._step(quotient, "its scale is not made in fp32")

    @staticmethod
    def _check_least(bounded: Node, least: float) -> None:
        given = named_arguments(bounded)
        bound = given.get("min")
        if given.get("max") is not None or not isinstance(bound, (int, float)) or float(torch.tensor(float(bound))) != least:
            raise NoQuantization("its scale has another least value than a greatest magnitude of 1/512 gives")

    def _greatest(self, node: Node) -> Node:
        """The magnitudes whose maximum over their last dimension the node is."""
        self._note(node)
        if calls(node, operator.getitem) and calls(node.args[0], aten.max.dim) and node.args[1] == 0:
            node = node.args[0]  # type: ignore[assignment]
            self._note(node)
        elif not calls(node, aten.amax.default):
            raise NoQuantization("its scale is made otherwise than of the norm's greatest magnitudes")
        given = named_arguments(node)
        over = given.get("dim")
        dims, last = [over] if isinstance(over, int) else list(over or ()), len(shape(given["self"]) or ()) - 1
        if [dim % (last + 1) for dim in dims] != [last]:
            raise NoQuantization("its scale is not of the last dimension")
        return self._within(given["self"], (CONVERT,))
