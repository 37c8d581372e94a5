"""Families of one group: a plan for calls that differ in their numbers of rows alone. Ranks meet once for it; a call with another
number of rows, in a capture too, needs no rank and no daemon."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from ..plan import Operand, Plan, PlanInfo
from ._prepared import Call, FamilyRows

# Slots whose first dimension holds rows.
_ROWS = frozenset(("input", "output", "a", "c", "gathered_a", "residual", "residual_output", "quantized_output", "scale_output"))
_CUT = frozenset(("all_gather", "reduce_scatter", "all_to_all", "all_gather_matmul", "matmul_reduce_scatter"))
_COLLECTIVES = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"))
_PRODUCTS = frozenset(("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"))
# The least bound, so that the first small calls do not make one family each; fewer rows where these have so many elements in all.
_LEAST_ROWS = 256
_LEAST_ELEMENTS = 1 << 24
# Elements of a flat tensor, each of which is a row.
_MOST_ELEMENTS = 1 << 25

# Up to a ratio of 1.33 of the predictions Tandem was measured to be ahead: a gather of 16 MiB on two H200s (test_predictions).
FASTER = 1.5


def nccl_is_faster(info: PlanInfo) -> bool:
    """Whether NCCL's collective of the bound's size is predicted faster. Equal on all ranks."""
    return any(0 < one["predicted_us"] * FASTER < info["predicted_us"] for one in info["refused"] if one["algorithm"] == "nccl")


class Shape(NamedTuple):
    """What calls of one family share, and the rows of one call. follows: by slot, whether the first extent of its tensor is in
    proportion to the rows. least: the rows that another call has at least. options, operands: the call's, as the family has them.
    inner: rows of matrices that one row is; width: its elements, of the operand that has most."""

    key: Any
    rows: int
    flat: bool
    follows: tuple[bool, ...]
    least: int
    options: dict[str, Any]
    operands: Sequence[Operand]
    inner: int
    width: int


class Family(NamedTuple):
    """A family's plan and its bound."""

    most: int
    plan: Plan

    def rows_of(self, shape: Shape) -> FamilyRows:
        """The rows of a call that the plan serves."""
        return FamilyRows(shape.rows, self.most, self.plan.info["row_unit"], shape.least, shape.follows)


def shape_of(call: Call, operands: list[Operand], served: str) -> Shape | None:
    """None where the call has no family. served: Config.families."""
    ops = {"none": frozenset(), "collectives": _COLLECTIVES, "all": _COLLECTIVES | _PRODUCTS}[served]
    if call.op not in ops or not operands or not operands[0].shape:
        return None
    options, whole = dict(call.options), True
    if call.op in _CUT:
        dim = options.get("dim", 0) % len(operands[0].shape)
        if dim > 0:
            # Behind dimensions of one element the cut one is the first, of these extents only.
            whole, dropped = False, _without_ones(operands, dim)
            if dropped is None:
                return None
            operands = dropped
        options["dim"] = 0
    operands = _as_matrices(operands)
    first = operands[0]
    rows = first.shape[0]
    if rows < 1 or first.role not in _ROWS:
        return None
    key: list[Any] = [call.op, tuple(sorted(options.items(), key=lambda item: item[0]))]
    follows, least, width = [], 1, Fraction(0)
    for operand in operands:
        extents: Any = tuple(operand.shape)
        scaled = _has_scales_of_rows(operand)
        follows.append(bool(extents) and (operand.role in _ROWS or scaled))
        if follows[-1]:
            width = max(width, Fraction(math.prod(extents), rows))
            extents = (Fraction(extents[0], rows), *extents[1:])
        if scaled:  # one element is a scale of the whole tensor
            least = 2
        strides = None if operand.strides is None else tuple(operand.strides)
        key.append((operand.role, operand.dtype, follows[-1], extents, strides, operand.symmetric, operand.alias_of))
    inner = max(1, math.prod(first.shape[1:-1]))
    leads = tuple(each and whole for each in follows)
    return Shape(tuple(key), rows, len(first.shape) == 1, leads, least, options, operands, inner, math.ceil(width))


def _has_scales_of_rows(operand: Operand) -> bool:
    if operand.role != "scale_a" or not operand.shape:
        return False
    return math.prod(operand.shape[:-1] if len(operand.shape) > 1 else operand.shape) > 1


def _without_ones(operands: list[Operand], dims: int) -> list[Operand] | None:
    """The operands without the first dimensions of those that hold rows; None where these have more than one element, or no other
    dimension is a row's."""
    rest = []
    for operand in operands:
        if operand.role in _ROWS or _has_scales_of_rows(operand):
            if len(operand.shape) < dims + 2 or any(extent != 1 for extent in operand.shape[:dims]):
                return None
            strides = None if operand.strides is None else operand.strides[dims:]
            operand = replace(operand, shape=operand.shape[dims:], strides=strides)
        rest.append(operand)
    return rest


def _as_matrices(operands: list[Operand]) -> list[Operand]:
    """The operands with all leading dimensions of those that hold rows as one, as [batch, sequence, columns] has. As they are where
    a stride forbids it."""
    merged = []
    for operand in operands:
        if len(operand.shape) > 2 and (operand.role in _ROWS or _has_scales_of_rows(operand)):
            matrix = _as_matrix(operand)
            if matrix is None:
                return operands
            operand = matrix
        merged.append(operand)
    return merged


def _as_matrix(operand: Operand) -> Operand | None:
    *leading, columns = operand.shape
    shape = (math.prod(leading), columns)
    if operand.strides is None:
        return replace(operand, shape=shape)
    *steps, step = operand.strides
    counted = [(extent, one) for extent, one in zip(leading, steps, strict=True) if extent != 1]
    if any(outer != inner * extent for (_, outer), (extent, inner) in itertools.pairwise(counted)):
        return None
    return replace(operand, shape=shape, strides=(counted[-1][1] if counted else columns * step, step))


class Families:
    """Not thread-safe: the plan cache's turn guards it."""

    def __init__(self, max_rows: int, world: int, max_plans: int) -> None:
        self._max_rows, self._world, self._max_plans = max_rows, world, max_plans
        self._plans: dict[Any, Family] = {}  # by key: that of the most rows
        self._smaller: dict[Any, list[Plan]] = {}  # by key; graphs may hold their launches
        self._used: dict[Plan, int] = {}  # the group's count at the last call of those whose calls are known no more
        self._refused: set[Any] = set()
        self._asked = 0
        self._barred: dict[Any, int] = {}  # by key: rows above which another's collectives are faster

    def __len__(self) -> int:
        """The live plans."""
        return len(self._plans) + sum(len(plans) for plans in self._smaller.values())

    def find(self, shape: Shape) -> Family | None:
        """The family for so many rows, where there is one."""
        family = self._plans.get(shape.key)
        return None if family is None or max(shape.rows, self._asked) > family.most else family

    @contextlib.contextmanager
    def at_least(self, rows: int) -> Iterator[None]:
        """Families that are found or made within serve so many rows."""
        self._asked = rows
        try:
            yield
        finally:
            self._asked = 0

    def bound_for(self, shape: Shape) -> int:
        """The bound of the family to prepare for such a call; 0 where there is to be none. It doubles, up to the most rows."""
        most = _MOST_ELEMENTS if shape.flat else self._max_rows // shape.inner
        if max(shape.rows, self._asked) > most or shape.key in self._refused:
            return 0
        least = max(1, min(_LEAST_ROWS, _LEAST_ELEMENTS // max(1, shape.width)))
        bound = min(most, max(1 << (max(shape.rows, least) - 1).bit_length(), self._asked))
        return -(-bound // self._world) * self._world

    def add(self, shape: Shape, most: int, plan: Plan) -> tuple[Family, Plan | None]:
        """Keeps the family of that bound. With it comes the smaller one, which serves no more."""
        smaller = self._plans.get(shape.key)
        family = self._plans[shape.key] = Family(most, plan)
        if smaller is None:
            return family, None
        self._smaller.setdefault(shape.key, []).append(smaller.plan)
        return family, smaller.plan

    def note_use(self, plan: Plan, count: int) -> None:
        """A call of a family goes, whose last use was the group's call of that number."""
        self._used[plan] = max(count, self._used.get(plan, 0))

    def take_oldest(self, newest: Shape, last_use: Callable[[Plan], int]) -> list[Plan]:
        """Forgets families where there are more plans than may be, some at once: the least recently used ones, with their smaller
        ones, and of the newest family those. Returns their plans. last_use: the group's count at the last of a family's known
        calls. Alike on all ranks, which make the same calls."""
        going: list[Plan] = []
        if len(self) <= self._max_plans:
            return going
        keys = [key for key in self._plans if key != newest.key]
        keys.sort(key=lambda key: max(last_use(self._plans[key].plan), self._used.get(self._plans[key].plan, 0)))
        left = self._max_plans - self._max_plans // 8
        for key in keys:
            if len(self) <= left:
                break
            going += [*self._smaller.pop(key, ()), self._plans.pop(key).plan]
        if len(self) > self._max_plans:
            going += self._smaller.pop(newest.key, ())
        for plan in going:
            self._used.pop(plan, None)
        return going

    def refuse(self, shape: Shape) -> None:
        """Such calls have plans of one shape from now on; alike on all ranks, which forget at the same call."""
        if len(self._refused) >= self._max_plans:
            self._refused.clear()
        self._refused.add(shape.key)

    def bar(self, shape: Shape, most: int) -> None:
        """A family of that bound would be slower than another's collective. The bound before, of half as many rows, may not be.
        Alike on all ranks, which forget at the same call."""
        if len(self._barred) >= self._max_plans:
            self._barred.clear()
        self._barred[shape.key] = most // 2

    def barred(self, shape: Shape) -> bool:
        """Whether a call of so many rows is known to be slower than another's."""
        return shape.rows > self._barred.get(shape.key, shape.rows)

    def close(self, close: Callable[[Plan], None]) -> None:
        """Hands all plans over."""
        for plan in (*itertools.chain(*self._smaller.values()), *(family.plan for family in self._plans.values())):
            close(plan)
        self._smaller.clear()
        self._plans.clear()
        self._used.clear()
