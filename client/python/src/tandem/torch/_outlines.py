"""What the pass has made of each rank's graphs: exchanged over the groups' stores, so that graphs that differ by rank are named.

A graph's outline in a group is its collectives there, in order, each with Tandem's op or none. Each rank publishes its outlines
when it compiles a graph, or loads it from Inductor's cache, and then looks for the other ranks' outlines of the same collectives.
Nothing is exchanged behind that: a launch costs nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .. import errors
from . import _config
from ._private import backend_of, resolve, store_of

__all__ = ["Outlines", "Step", "difference", "outlines"]

_log = logging.getLogger("tandem.torch")
# The most seconds in which other ranks are to have such a graph. A rank that was waited for in vain is waited for no more.
PATIENCE = 30.0
_SHORTEST, _LONGEST = 0.001, 0.05
# Seconds for the other ranks once one has another graph.
_GRACE = 2.0
# Outlines that a rank keeps of one group; it forgets the oldest.
_MOST = 512
_TOLD = 3  # collectives of a graph, in an error


class Step(NamedTuple):
    """One collective of a graph: its kind, the type and number of the elements that it takes ("?": symbolic), Tandem's op or "",
    and the reason."""

    collective: str
    elements: str
    op: str
    reason: str

    def __str__(self) -> str:
        return f"{self.collective} of {self.elements}" if self.elements else self.collective


_Outline = tuple[Step, ...]


def _same_elements(one: str, other: str) -> bool:
    """Whether two texts may mean the same: a symbolic number may be any."""
    (kind, _, count), (other_kind, _, other_count) = one.partition(" "), other.partition(" ")
    return kind == other_kind and (count == other_count or "?" in (count, other_count))


def _same_collectives(one: _Outline, other: _Outline) -> bool:
    """Whether both are outlines of the same collectives, as a graph of all ranks has them."""
    return len(one) == len(other) and all(
        a.collective == b.collective and _same_elements(a.elements, b.elements) for a, b in zip(one, other, strict=True)
    )


def _parted(one: _Outline, other: _Outline) -> int | None:
    """The first collective that is Tandem's in one of the outlines alone. Other differences are compared by the daemon."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if bool(a.op) != bool(b.op)), None)


class Difference(NamedTuple):
    """The first collective that two ranks' graphs differ in: its number, the other rank's step and this rank's, and the serial
    numbers of this rank's outline and of the other's."""

    number: int
    step: Step
    own: Step
    mine: int
    theirs: int


class _Told(NamedTuple):
    """What a rank has published: outlines with their serial numbers, the newest last, and by rank the last difference that it has
    found."""

    outlines: list[tuple[int, _Outline]]
    found: dict[int, Difference]


def difference(
    mine: _Outline, theirs: Sequence[tuple[int, _Outline]], known: Iterable[_Outline], told: int = 0
) -> tuple[bool, Difference | None]:
    """Whether another rank has this graph as it is here; else, where it has another graph of these collectives, how they differ.
    theirs: with serial numbers, the newest last. known: this rank's; one of these is another graph of all ranks. told: the last
    serial number for which a difference was raised already."""
    own = list(known)
    for serial, one in reversed(theirs):  # the newest first
        if not _same_collectives(mine, one):
            continue
        number = _parted(mine, one)
        if number is None:
            return True, None
        if serial > told and not any(_same_collectives(one, other) and _parted(one, other) is None for other in own):
            return False, Difference(number, one[number], mine[number], 0, serial)
    return False, None


def _runs_by(step: Step) -> str:
    return f"fused into tandem::{step.op}" if step.op else f"left to torch's own collective ({step.reason})"


class _Group:
    """This rank's outlines of the groups with one name, the newest last, and the ranks that were waited for in vain."""

    def __init__(self) -> None:
        self.process_group: weakref.ref[Any] | None = None
        self.outlines: dict[_Outline, int] = {}  # with the serial numbers of their publications
        self.serial = 0
        self.found: dict[int, Difference] = {}  # by rank: the last difference for which check() has raised
        self.lone: _Outline = ()  # the last one that a rank had not in time
        self.absent: set[int] = set()


def _judge(
    outline: _Outline, serial: int, known: Iterable[_Outline], told: _Told, own: int, before: Difference | None
) -> tuple[bool, Difference | None]:
    """As difference(); what the other rank has found of this very outline counts, too: it may have gone on to another graph.
    before: the last difference that was raised here."""
    theirs = told.found.get(own)
    if theirs is not None and theirs.theirs == serial:
        return False, Difference(theirs.number, theirs.own, outline[theirs.number], serial, theirs.mine)
    agrees, other = difference(outline, told.outlines, known, 0 if before is None else before.theirs)
    return agrees, None if other is None else other._replace(mine=serial)


def _member(name: str) -> Any:
    """The process group with this name, whose other ranks may have graphs like this process'; None where there is none."""
    try:
        group = resolve(name)
        here = os.environ.get("LOCAL_WORLD_SIZE", "")
        most = int(here) if here.isdecimal() else group.size()
        alone = group.rank() < 0 or not 1 < group.size() <= most or backend_of(group) == "fake"
        return None if alone else group
    except (RuntimeError, ValueError, KeyError, LookupError):  # compiled without process groups
        return None


def _key(rank: int) -> str:
    return f"tandem/outlines/{rank}"


def _read(store: Any, rank: int) -> _Told:
    """What the rank has published; nothing where the store has ended."""
    try:
        if not store.check([_key(rank)]):
            return _Told([], {})
        outlines, found = json.loads(store.get(_key(rank)))
    except RuntimeError:
        return _Told([], {})
    return _Told(
        [(serial, tuple(Step(*step) for step in outline)) for serial, outline in outlines],
        {int(of): Difference(number, Step(*step), Step(*own), *serials) for of, (number, step, own, *serials) in found.items()},
    )


class Outlines:
    """Those of this process. Thread-safe; no lock is held while another rank is awaited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}

    def publish(self, name: str, outline: _Outline) -> None:
        """Lets the group's other ranks know the outline of a graph."""
        process_group = _member(name)
        if process_group is None:
            return
        with self._lock:
            group = self._groups.setdefault(name, _Group())
            again = group.process_group is not None and group.process_group() is process_group
            if not again:  # the store may have those of an earlier group of this name
                group.process_group, group.absent = weakref.ref(process_group), set()
            group.serial += 1
            group.outlines.pop(outline, None)
            group.outlines[outline] = group.serial
            while len(group.outlines) > _MOST:
                del group.outlines[next(iter(group.outlines))]
            self._write(group, process_group)

    @staticmethod
    def _write(group: _Group, process_group: Any) -> None:
        text = json.dumps([[(serial, outline) for outline, serial in group.outlines.items()], group.found])
        with contextlib.suppress(RuntimeError):  # the store has ended
            store_of(process_group).set(_key(process_group.rank()), text)

    def check(self, name: str, outline: _Outline) -> None:
        """Waits until the group's other ranks have graphs of these collectives. FieldMismatch, with the field `graph`: a rank has
        fused others of them than this one. A rank that has no such graph in time is left to the first launch."""
        process_group = _member(name)
        if process_group is None:
            return
        with self._lock:
            group = self._groups.setdefault(name, _Group())
            known, serial = list(group.outlines), group.outlines.get(outline, 0)
        store, own, found = store_of(process_group), process_group.rank(), dict[int, Difference]()
        left = [rank for rank in range(process_group.size()) if rank != own]
        end, pause = time.monotonic() + min(PATIENCE, _config.current().rendezvous_timeout), _SHORTEST
        while True:
            for rank in list(left):
                told = _read(store, rank)
                agrees, other = _judge(outline, serial, known, told, own, group.found.get(rank))
                if other is not None:
                    found[rank] = other
                if agrees or other is not None:
                    left.remove(rank)
            if found:  # the others may be about to find it, too
                end = min(end, time.monotonic() + _GRACE)
            if group.absent.issuperset(left) or time.monotonic() >= end:
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        if found:
            with self._lock:
                group.found |= found
                self._write(group, process_group)
            rank = min(found)
            raise _mismatch(name, own, rank, outline, found[rank])
        if new := set(left) - group.absent:
            _log.warning("ranks %s of group %r have compiled no graph like one here: %s", sorted(new), name, _listed(outline))
        group.absent, group.lone = set(left), outline if left else group.lone

    def why_late(self, name: str, ranks: Sequence[int]) -> str:
        """What these ranks' graphs have to do with their being late; "" where nothing is known of that."""
        process_group = _member(name)
        group = self._groups.get(name)
        if process_group is None or group is None or not group.outlines:
            return ""
        known = list(group.outlines)
        for rank in ranks:
            theirs = _read(store_of(process_group), rank).outlines
            for outline in reversed(known):
                other = difference(outline, theirs, known)[1]
                if other is not None:
                    return _text(process_group.rank(), rank, outline, other)
            if group.lone and not difference(group.lone, theirs, known)[0]:
                return f"rank {rank} has no compiled graph like one of rank {process_group.rank()}: {_listed(group.lone)}"
        return ""


def _listed(outline: _Outline) -> str:
    steps = [f"{step}, {_runs_by(step)}" for step in outline[:_TOLD]]
    return "; ".join([*steps, f"and {len(outline) - _TOLD} more"] if len(outline) > _TOLD else steps)


def _text(own: int, rank: int, outline: _Outline, other: Difference) -> str:
    mine = outline[other.number]
    return (
        f"collective {other.number} of a graph, {mine}, is {_runs_by(mine)} on rank {own}, "
        f"and {_runs_by(other.step)} on rank {rank}; compile the same program on all ranks"
    )


def _mismatch(name: str, own: int, rank: int, outline: _Outline, other: Difference) -> errors.FieldMismatch:
    text = f"ranks of group {name!r} compiled other graphs: {_text(own, rank, outline, other)}"
    return errors.FieldMismatch(text, reason="FIELD_MISMATCH", field="graph", who=f"rank {rank}", ranks=(rank,))


outlines = Outlines()
