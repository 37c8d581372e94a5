"""Knowledge of all ranks when a graph is compiled: the placements of DTensors among the program's inputs.

A graph has this rank's shards alone, so neither its shapes nor its values are another rank's. A DTensor's placements and its whole
shape are the program's word for all ranks, and equal on them.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from ._graphs import CONVERT, RESHAPES, aten, calls, divides
from ._private import dtensor_inputs, input_number, tracing_context

__all__ = ["Placements"]

# Operations that a weight or a bias may pass through on its way to a product.
_AS_IT_IS = (*RESHAPES, CONVERT, aten.unsqueeze.default, aten.permute.default, aten.t.default)


@dataclass(frozen=True)
class _Input:
    """A DTensor: its local shape and type, its dimensions, and the groups that hold it alike, in equal and in other shards."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    dims: int
    alike: frozenset[str]
    even: frozenset[str]
    uneven: frozenset[str]

    def is_of(self, value: torch.Tensor) -> bool:
        return str(tuple(value.shape)) == str(self.shape) and value.dtype == self.dtype


def _input_of(tensor: Any) -> _Input:
    """The placement of a DTensor. A mesh without groups says nothing."""
    spec, local = tensor._spec, tensor._local_tensor
    alike: set[str] = set()
    even: set[str] = set()
    uneven: set[str] = set()
    for i, placement in enumerate(spec.placements):
        try:
            name = str(spec.mesh.get_group(i).group_name)
        except RuntimeError:
            continue
        if placement.is_replicate():
            alike.add(name)
        elif (dim := getattr(placement, "dim", None)) is not None:
            cuts = [spec.mesh.size(j) for j, other in enumerate(spec.placements) if getattr(other, "dim", None) == dim]
            extent = tensor.shape[dim]
            fits = divides(extent, math.prod(cuts)) or not isinstance(extent, int)  # symbolic ones are no parameter's
            (even if fits else uneven).add(name)
    return _Input(tuple(local.shape), local.dtype, tensor.dim(), frozenset(alike), frozenset(even), frozenset(uneven))


@dataclass
class _Frame:
    """The DTensors of a compiled frame, and those whose numbers among the frame's inputs are known."""

    inputs: list[_Input]
    numbered: dict[int, _Input]


class Placements:
    """Placements of the inputs of the frame whose graph Inductor compiles now: its forward, or a backward."""

    _frames: weakref.WeakKeyDictionary[Any, _Frame] = weakref.WeakKeyDictionary()

    def __init__(self, graph: Graph | None = None) -> None:
        context = tracing_context()
        self._frame = _Frame([], {}) if context is None else self._frames.get(context, _Frame([], {}))
        if context is not None and not self._frame.inputs:
            # A backward's compilation sees these inputs no more, but has the forward's context.
            self._frame.inputs = [_input_of(tensor) for tensor in dtensor_inputs(context)]
            self._frames[context] = self._frame
        if graph is not None and not self._frame.numbered:
            numbered = _numbered_inputs(graph)
            if len(numbered) == len(self._frame.inputs) and all(map(_Input.is_of, self._frame.inputs, numbered.values())):
                self._frame.numbered = dict(zip(numbered, self._frame.inputs, strict=True))

    def text(self) -> str:
        """All of it, for the key of a cached graph; "" without DTensors."""
        return "; ".join(
            f"{one.shape} {one.dtype} {one.dims} {sorted(one.alike)} {sorted(one.even)} {sorted(one.uneven)}"
            for one in self._frame.inputs
        )

    def alike(self, node: Any, group: str) -> bool:
        """Whether the node has equal values on all ranks of the group: it is a DTensor that the program has replicated there."""
        found = self._of(node)
        return bool(found) and all(group in one.alike for one in found)

    def may_differ(self, group: str) -> bool:
        """Whether ranks of the group hold unequal shards of some matrix, so that shapes of others say nothing of all ranks."""
        return any(one.dims == 2 and group in one.uneven for one in self._frame.inputs)

    def even(self, node: Any, group: str) -> bool:
        """Whether the node is a DTensor that has one shape on all ranks of the group."""
        found = self._of(node)
        return bool(found) and all(group in one.alike | one.even for one in found)

    def _of(self, node: Any) -> list[_Input]:
        """The inputs that the node may be: one, or those like it where their order does not say which; none if it is no input."""
        while calls(node, *_AS_IT_IS):
            node = node.args[0]
        number = input_number(node) if isinstance(node, Node) else None
        if number is None:
            return []
        if number in self._frame.numbered:
            return [self._frame.numbered[number]]
        value = node.meta["val"]
        return [one for one in self._frame.inputs if one.is_of(value)]


def _numbered_inputs(graph: Graph) -> dict[int, torch.Tensor]:
    """The graph's inputs that are DTensors, by their numbers in the program's order."""
    numbers = {number: node for node in graph.find_nodes(op="placeholder") if (number := input_number(node)) is not None}
    return {number: numbers[number].meta["val"] for number in sorted(numbers)}
