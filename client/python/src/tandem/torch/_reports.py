"""The records of what became of each collective of a compiled graph, also of graphs that come from Inductor's cache."""

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

__all__ = ["GraphRecord", "explain_graph", "reports"]

_log = logging.getLogger("tandem.torch")


@dataclass(frozen=True)
class GraphRecord:
    """What became of one collective of a compiled graph. fused_into: an op of torch.ops.tandem, or "". reason: why not, or what
    was matched. graph: a name, equal for all collectives of a graph. cached: another process compiled the graph. declined: why
    ops of the group run on torch's own collectives here; "" if Tandem serves them, or none has run."""

    collective: str
    group: str
    fused_into: str
    reason: str
    graph: str = ""
    cached: bool = False
    declined: str = ""

    def __str__(self) -> str:
        what = f"fused into tandem::{self.fused_into}" if self.fused_into else "not fused"
        runs = f"; runs on torch's own collectives: {self.declined}" if self.fused_into and self.declined else ""
        return f"{self.collective} of group {self.group!r}: {what} ({self.reason}){runs}"


class _Reports:
    """The records of this process' graphs; kept in files beside Inductor's cache, since the pass does not run on a hit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, list[GraphRecord]] = {}
        self._digests: set[str] = set()

    @staticmethod
    def _folder(digest: str) -> Path:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        return Path(cache_dir()) / "tandem" / digest

    def asked(self, digest: str) -> None:
        with self._lock:
            self._digests.add(digest)

    def add(self, digest: str, graph: str, records: Sequence[GraphRecord]) -> None:
        named = [GraphRecord(**{**asdict(record), "graph": graph}) for record in records]
        with self._lock:
            self._seen[graph] = named
            self._digests.add(digest)
        for record in named:
            _log.info("%s", record)
        if not named:
            return
        with contextlib.suppress(OSError):  # a report only
            folder = self._folder(digest)
            folder.mkdir(parents=True, exist_ok=True)
            scratch = folder / f".{graph}.{os.getpid()}"
            scratch.write_text(json.dumps([asdict(record) for record in named]))
            scratch.rename(folder / f"{graph}.json")

    def ran(self, graph: str) -> None:
        """A compiled graph's ops run for the first time here. The records of a graph from the cache are read, and logged."""
        with self._lock:
            if graph in self._seen:
                return
            digests = sorted(self._digests)
        for digest in digests:
            records = self._read(self._folder(digest) / f"{graph}.json")
            if records:
                with self._lock:
                    self._seen.setdefault(graph, records)
                for record in records:
                    _log.info("%s", record)
                return

    @staticmethod
    def _read(path: Path) -> list[GraphRecord]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return [GraphRecord(**{**one, "cached": True}) for one in json.loads(path.read_text())]
        return []

    def all(self) -> list[GraphRecord]:
        with self._lock:
            seen, digests = dict(self._seen), set(self._digests)
        for digest in sorted(digests):
            for path in sorted(self._folder(digest).glob("*.json")):
                if path.stem not in seen:
                    records = self._read(path)
                    if not any(record.fused_into for record in records):  # no op of the graph says whether it runs here
                        seen[path.stem] = records
        return [replace(record, declined=declined(record.group)) for one in seen.values() for record in one]


reports = _Reports()
on_first_run(reports.ran)


def explain_graph() -> list[GraphRecord]:
    """One record a collective of every graph that was compiled with the pass.

    A graph from Inductor's cache has the records of the compilation that made it, once it has run; they have `cached` set. Of
    graphs in which nothing was fused, all that were compiled in this cache folder under the same configuration are given.
    """
    return reports.all()
