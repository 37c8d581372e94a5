"""The compile pass: Inductor's pass that fuses collectives with the matrix products beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from . import _config
from ._placements import Placements
from ._private import trace_even_exchanges, trace_inner_gathers
from ._reports import GraphRecord, explain_graph, reports
from ._rewrite import SMALL_BYTES, Rewrite

__all__ = ["GraphRecord", "TandemPass", "explain_graph"]


def _check(graph: Any) -> None:
    graph.lint()


class TandemPass(CustomGraphPass):
    """Inductor's pass at `post_grad_custom_post_pass`.

    groups: names of the process groups whose collectives it takes; None: all. previous: a pass that runs before it. Set it by
    compile_config(), or by torch.compile(options={"post_grad_custom_post_pass": TandemPass(), "shape_padding": False}).
    """

    def __init__(self, groups: Sequence[str] | None = None, previous: Any = None) -> None:
        self.groups = None if groups is None else tuple(sorted(groups))
        self.previous = previous
        trace_inner_gathers()
        trace_even_exchanges()

    def __call__(self, graph: Graph) -> None:
        if self.previous is not None:
            self.previous(graph)
        name = _name_of(graph, self.digest())
        rewrite = Rewrite(graph, lambda group: self.groups is None or group in self.groups, name)
        if rewrite.run():
            _check(graph)
        reports.add(self.digest(), name, rewrite.records)

    def uuid(self) -> Any:
        """Covers this package's sources, torch, the groups, the placements of the program's DTensors, and the previous pass; None
        (no caching) if that one has none."""
        before = None if self.previous is None else self.previous.uuid()
        if self.previous is not None and not before:
            return None
        reports.asked(self.digest())
        # A graph has no placements, but what becomes of it depends on them.
        placements = hashlib.sha256(Placements().text().encode()).hexdigest()[:16]
        return f"tandem:{self.digest()}:{placements}:{before!r}"

    def digest(self) -> str:
        """The same as one text, of this pass alone."""
        given = json.dumps([_source_digest(), torch.__version__, self.groups, SMALL_BYTES, _config.current().determinism])
        return hashlib.sha256(given.encode()).hexdigest()[:16]


def _name_of(graph: Graph, digest: str) -> str:
    """Names the graph by its text, its inputs' shapes and types, which the text does not have, and the settings' digest."""
    inputs = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    tensors = [(str(tuple(one.shape)), str(one.dtype)) for one in inputs if isinstance(one, torch.Tensor)]
    return hashlib.sha256(f"{digest}{graph}{tensors}".encode()).hexdigest()[:12]


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
