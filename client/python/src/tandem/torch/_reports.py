"""The records of what became of each collective of a compiled graph, also of graphs that come from Inductor's cache.

The pass does not run where Inductor takes a graph from its cache. But Inductor keeps with each graph how much its compilation has
raised Inductor's counters, and raises them as much when it loads the graph. So the pass counts each graph under a name that leads
to its records. A graph that is loaded names itself there, fused or not, and its runs cost nothing more. The counters are read at
the end of each compilation, which loading is a part of.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ._groups import declined
from ._ops import on_first_run
from ._outlines import Step, outlines
from ._private import inductor_counters, on_compile_end

__all__ = ["GraphRecord", "explain_graph", "reports"]

_log = logging.getLogger("tandem.torch")
_COUNTER = "tandem_graph"


@dataclass(frozen=True)
class GraphRecord:
    """What became of one collective of a compiled graph. fused_into: an op of torch.ops.tandem, or "". reason: why not, or what
    was matched. graph: a name, equal for all collectives of a graph. cached: another process compiled the graph. declined: why
    ops of the group run on torch's own collectives here; "" if Tandem serves them, or none has run. elements: the type and number
    of those that it takes, "?" for a symbolic number."""

    collective: str
    group: str
    fused_into: str
    reason: str
    graph: str = ""
    cached: bool = False
    declined: str = ""
    elements: str = ""

    def __str__(self) -> str:
        what = f"fused into tandem::{self.fused_into}" if self.fused_into else "not fused"
        runs = f"; runs on torch's own collectives: {self.declined}" if self.fused_into and self.declined else ""
        return f"{self.collective} of group {self.group!r}: {what} ({self.reason}){runs}"


def _outlines_of(records: Sequence[GraphRecord]) -> dict[str, tuple[Step, ...]]:
    """A graph's outline in each of its groups that may be served."""
    made: dict[str, tuple[Step, ...]] = {}
    for one in records:
        if one.group and not declined(one.group):
            step = Step(one.collective, one.elements, one.fused_into, one.reason)
            made[one.group] = (*made.get(one.group, ()), step)
    return made


class _Reports:
    """The records of this process' graphs; kept in files beside Inductor's cache for other processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, list[GraphRecord]] = {}
        self._digests: set[str] = set()
        self._counts: dict[str, int] = {}  # Inductor's counters, when they were last read
        self._unchecked: list[tuple[str, tuple[Step, ...]]] = []  # outlines that have not been compared with other ranks'

    @staticmethod
    def _folder(digest: str) -> Path:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        return Path(cache_dir()) / "tandem" / digest

    def asked(self, digest: str) -> None:
        """Inductor is about to look for a graph, or to compile it, under the settings with this digest."""
        with self._lock:
            self._digests.add(digest)
        on_compile_end(self._compiled)  # torch._dynamo.reset() forgets it
        self.read_loaded()

    def _compiled(self) -> None:
        """A compilation has ended. FieldMismatch: another rank has fused others of a graph's collectives."""
        self.read_loaded()
        self._check()

    def _publish(self, records: Sequence[GraphRecord]) -> None:
        made = _outlines_of(records)
        for group, outline in made.items():
            outlines.publish(group, outline)
        with self._lock:
            self._unchecked += made.items()

    def _check(self) -> None:
        with self._lock:
            unchecked, self._unchecked = self._unchecked, []
        for group, outline in unchecked:
            outlines.check(group, outline)

    def add(self, digest: str, graph: str, records: Sequence[GraphRecord]) -> None:
        """The pass has run on a graph."""
        named = [GraphRecord(**{**asdict(record), "graph": graph}) for record in records]
        with self._lock:
            self._seen[graph] = named
            self._digests.add(digest)
        for record in named:
            _log.info("%s", record)
        if not named:
            return
        on_compile_end(self._compiled)
        self._publish(named)
        counter = f"{_COUNTER}:{digest}:{graph}"
        inductor_counters()[counter] += 1
        self._counts[counter] = inductor_counters()[counter]
        with contextlib.suppress(OSError):  # a report only
            folder = self._folder(digest)
            folder.mkdir(parents=True, exist_ok=True)
            scratch = folder / f".{graph}.{os.getpid()}"
            scratch.write_text(json.dumps([asdict(record) for record in named]))
            scratch.rename(folder / f"{graph}.json")

    def read_loaded(self) -> None:
        """Reads and logs the records of graphs that have come from the cache since the last time."""
        for name, count in list(inductor_counters().items()):
            kind, _, place = name.partition(":")
            digest, _, graph = place.partition(":")
            if kind != _COUNTER:
                continue
            self._loaded(graph, [digest])
            with self._lock:
                again, self._counts[name] = self._counts.get(name, 0) != count, count
                records = self._seen.get(graph, [])
            if again:
                self._publish(records)

    def ran(self, graph: str) -> None:
        """A compiled graph's ops run for the first time here, also in a graph that nothing else has announced. FieldMismatch: as at
        the end of a compilation."""
        with self._lock:
            digests = sorted(self._digests)
        if self._loaded(graph, digests):
            self._publish(self._seen[graph])
        self._check()

    def _loaded(self, graph: str, digests: Sequence[str]) -> bool:
        """The records are in the folder of one of the digests, if they are not known yet. Returns whether they are known now, and
        were not."""
        with self._lock:
            if graph in self._seen:
                return False
            records = next(filter(None, (self._read(self._folder(digest) / f"{graph}.json") for digest in digests)), [])
            if records:
                self._seen[graph] = records
        for record in records:
            _log.info("%s", record)
        return bool(records)

    @staticmethod
    def _read(path: Path) -> list[GraphRecord]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return [GraphRecord(**{**one, "cached": True}) for one in json.loads(path.read_text())]
        return []

    def all(self) -> list[GraphRecord]:
        self.read_loaded()
        with self._lock:
            seen = list(self._seen.values())
        return [replace(record, declined=declined(record.group)) for one in seen for record in one]


reports = _Reports()
on_first_run(reports.ran)


def explain_graph() -> list[GraphRecord]:
    """One record a collective of every graph that was compiled with the pass.

    A graph from Inductor's cache has the records of the compilation that made it, once it is loaded; they have `cached` set.
    """
    return reports.all()
