"""The ranks of a process group exchange small messages over the group's store."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Sequence
from typing import Any

from .. import errors
from ..group import Group
from ._private import global_ranks, store_of

__all__ = ["Meeting", "rank_late"]

# Between two looks at the store, which is not waited in: its lock is one for all threads, and it hears no signal.
_SHORTEST, _LONGEST = 0.001, 0.02


def rank_late(process_group: Any, ranks: Sequence[int], message: str) -> errors.RankLate:
    """The exception for late ranks of a process group; `message` has their numbers in place of {}."""
    numbers = global_ranks(process_group)
    names = ", ".join(str(rank) if numbers[rank] == rank else f"{rank} (global rank {numbers[rank]})" for rank in ranks)
    who = ", ".join(map(str, ranks))
    return errors.RankLate(message.format(f"rank {names}"), reason="RANK_LATE", who=f"rank {who}", ranks=tuple(ranks))


class Meeting:
    """The rounds of one process group. In a round each rank sends one message a topic, and sees all ranks'.

    A round ends for a rank once it has seen all that it waits for. A rank that gives up earlier is in the same round when it comes
    again, and what it has sent stands. So ranks that come at different times meet, however often they have given up. The store
    counts the rounds that each rank has ended, since names of groups are used again.
    """

    def __init__(self, process_group: Any) -> None:
        self._group = weakref.ref(process_group)
        self._store = store_of(process_group)
        self.rank, self.size = int(process_group.rank()), int(process_group.size())
        self._ended = f"tandem/rounds/{self.rank}"
        self._begin()

    def _begin(self) -> None:
        self._prefix = f"tandem/{self._store.add(self._ended, 0)}"
        self._sent: set[str] = set()
        # Kept of the round until all know: the group that this rank has joined, and why it could not.
        self.joined: Group | None = None
        self.late: errors.TandemError | None = None

    def of(self, process_group: Any) -> bool:
        """Whether it is this process group's; a later one may have the same name."""
        return self._group() is process_group

    def end_round(self) -> None:
        """This rank has seen all of the round."""
        self._store.add(self._ended, 1)
        self._begin()

    def _keys(self, topic: str) -> list[str]:
        return [f"{self._prefix}/{topic}/{rank}" for rank in range(self.size)]

    def has_sent(self, topic: str) -> bool:
        """Whether this rank's message of the round stands."""
        return topic in self._sent

    def send(self, topic: str, message: dict[str, Any]) -> None:
        """Sends this rank's message, once a round."""
        self._store.set(self._keys(topic)[self.rank], json.dumps(message))
        self._sent.add(topic)

    def _read(self, key: str) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._store.get(key))
        return message

    def seen(self, topic: str) -> list[dict[str, Any]]:
        """The messages that are there."""
        return [self._read(key) for key in self._keys(topic) if self._store.check([key])]

    def receive(self, topic: str, timeout: float, ranks: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """The messages of these ranks, or of all. RankLate names the ranks that have not sent one in time."""
        chosen = range(self.size) if ranks is None else ranks
        every = self._keys(topic)
        keys, end, pause = [every[rank] for rank in chosen], time.monotonic() + timeout, _SHORTEST
        while not self._store.check(keys):
            if time.monotonic() >= end:
                late = [rank for rank, key in zip(chosen, keys, strict=True) if not self._store.check([key])]
                if late:
                    raise rank_late(self._group(), late, f"attaching: {{}} has not come within {timeout:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        return [self._read(key) for key in keys]
