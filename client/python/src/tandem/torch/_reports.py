"""The records of what became of each collective of a compiled graph, also of graphs that come from Inductor's cache."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["GraphRecord", "explain_graph", "reports"]

_log = logging.getLogger("tandem.torch")


@dataclass(frozen=True)
class GraphRecord:
    """What became of one collective of a compiled graph. fused_into: an op of torch.ops.tandem, or "". reason: why not, or what
    was matched. cached: the graph came from Inductor's cache, or another process compiled it under the same configuration."""

    collective: str
    group: str
    fused_into: str
    reason: str
    graph: str = ""
    cached: bool = False

    def __str__(self) -> str:
        what = f"fused into tandem::{self.fused_into}" if self.fused_into else "not fused"
        return f"{self.collective} of group {self.group!r}: {what} ({self.reason})"


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

    def all(self) -> list[GraphRecord]:
        with self._lock:
            seen, digests = dict(self._seen), set(self._digests)
        records = [record for one in seen.values() for record in one]
        for digest in sorted(digests):
            for path in sorted(self._folder(digest).glob("*.json")):
                if path.stem not in seen:
                    with contextlib.suppress(OSError, ValueError, TypeError):
                        records += [GraphRecord(**{**one, "cached": True}) for one in json.loads(path.read_text())]
        return records


reports = _Reports()


def explain_graph() -> list[GraphRecord]:
    """One record a collective of every graph that was compiled with the pass.

    Of graphs that came from Inductor's cache the records of the compilation that made them are read: all that were compiled in
    this cache folder under the same configuration, also by other programs; these have `cached` set.
    """
    return reports.all()
