"""The processes of a mesh exchange small messages over the store of jax.distributed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from .. import errors

__all__ = ["Meeting", "store"]


def store() -> Any:
    """The key-value store of jax.distributed; None before jax.distributed.initialize()."""
    from jax._src import distributed  # JAX has no public name for it

    return distributed.global_state.client


class Meeting:
    """Rounds of all processes of one mesh, which come to them in the same order."""

    def __init__(self, name: str, processes: Sequence[int]) -> None:
        self._name, self._store = name, store()
        self.processes, self.process = list(processes), jax.process_index()
        self._rounds: Counter[str] = Counter()

    def exchange(self, topic: str, message: dict[str, Any], timeout: float) -> dict[int, dict[str, Any]]:
        """This process's message for all others; returns all messages, by process. RankLate names who has sent none in time."""
        self._rounds[topic] += 1
        prefix = f"tandem/{self._name}/{topic}/{self._rounds[topic]}"
        self._store.key_value_set(f"{prefix}/{self.process}", json.dumps(message))
        end = time.monotonic() + timeout
        return {one: json.loads(self._get(f"{prefix}/{one}", one, topic, end)) for one in self.processes}

    def _get(self, key: str, process: int, topic: str, end: float) -> str:
        try:
            return str(self._store.blocking_key_value_get(key, max(1, int(1000 * (end - time.monotonic())))))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            raise errors.RankLate(
                f"tandem.jax: process {process} has not come to {topic}", reason="RANK_LATE", who=f"process {process}"
            ) from None
