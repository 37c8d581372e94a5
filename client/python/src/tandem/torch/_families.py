"""Families of one group: a plan for calls that differ in their numbers of rows alone. Ranks meet once for it; a call with another
number of rows, in a capture too, needs no rank and no daemon."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from ..plan import Operand, Plan
from ._prepared import Call

# Slots whose first dimension holds rows.
_ROWS = frozenset(("input", "output", "a", "c", "gathered_a", "residual", "residual_output"))
_CUT = frozenset(("all_gather", "reduce_scatter", "all_to_all", "all_gather_matmul", "matmul_reduce_scatter"))
_COLLECTIVES = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"))
_PRODUCTS = frozenset(("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"))
# The least bound, so that the first small calls do not make one family each.
_LEAST_ROWS = 256
# Elements of a flat tensor, each of which is a row.
_MOST_ELEMENTS = 1 << 25


class Shape(NamedTuple):
    """What calls of one family share, and the rows of one call."""

    key: Any
    rows: int
    flat: bool


def shape_of(call: Call, operands: list[Operand], served: str) -> Shape | None:
    """None where the call has no family. served: Config.families."""
    ops = {"none": frozenset(), "collectives": _COLLECTIVES, "all": _COLLECTIVES | _PRODUCTS}[served]
    if call.op not in ops or not operands or not operands[0].shape:
        return None
    first = operands[0]
    if call.op in _CUT and call.options.get("dim", 0) not in (0, -len(first.shape)):
        return None
    rows = first.shape[0]
    if rows < 1 or first.role not in _ROWS:
        return None
    key: list[Any] = [call.op, tuple(sorted(call.options.items(), key=lambda item: item[0]))]
    for operand in operands:
        extents: Any = tuple(operand.shape)
        scaled = operand.role == "scale_a" and extents and extents[0] > 1
        if (operand.role in _ROWS or scaled) and extents:
            extents = (Fraction(extents[0], rows), *extents[1:])
        strides = None if operand.strides is None else tuple(operand.strides)
        key.append((operand.role, operand.dtype, extents, strides, operand.symmetric, operand.alias_of))
    return Shape(tuple(key), rows, len(first.shape) == 1)


class Families:
    """Not thread-safe: the plan cache's turn guards it."""

    def __init__(self, max_rows: int, world: int) -> None:
        self._max_rows, self._world = max_rows, world
        self._plans: dict[Any, list[tuple[int, Plan]]] = {}  # by key: bounds, ascending
        self._refused: set[Any] = set()

    def find(self, shape: Shape) -> Plan | None:
        """The family for so many rows, where there is one."""
        for bound, plan in reversed(self._plans.get(shape.key, [])):
            if shape.rows <= bound:
                return plan
        return None

    def bound_for(self, shape: Shape) -> int:
        """The bound of the family to prepare for such a call; 0 where there is to be none. It doubles, up to the most rows."""
        most = _MOST_ELEMENTS if shape.flat else self._max_rows
        if shape.rows > most or shape.key in self._refused:
            return 0
        bound = min(most, 1 << (max(shape.rows, _LEAST_ROWS) - 1).bit_length())
        return -(-bound // self._world) * self._world

    def add(self, shape: Shape, bound: int, plan: Plan) -> None:
        """Keeps the family of that bound."""
        self._plans.setdefault(shape.key, []).append((bound, plan))

    def refuse(self, shape: Shape) -> None:
        """Such calls have plans of one shape from now on; alike on all ranks."""
        self._refused.add(shape.key)

    def close(self, close: Callable[[Plan], None]) -> None:
        """Hands all plans over."""
        for plans in self._plans.values():
            for _bound, plan in plans:
                close(plan)
        self._plans.clear()
