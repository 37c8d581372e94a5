"""Finds tensors that lie in a group's symmetric memory. Ops use such operands in place, where the operation can."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from ._native import Table


class Ranges:
    """Addresses of this process's symmetric tensors in one group, alike on all ranks. Thread-safe, also when a tensor's end calls
    it in the middle of another call."""

    def __init__(self, table: Table | None, enabled: bool) -> None:
        """table: where the kernels in C++ look. enabled: False: no tensor counts as symmetric."""
        self._table, self._enabled = table, enabled
        self._lock = threading.RLock()
        self._held: dict[int, tuple[int, int]] = {}  # size and holders, by address
        self._owners: weakref.WeakSet[Any] = weakref.WeakSet()

    def owners(self) -> list[Any]:
        """The objects that keep the ranges alive."""
        return list(self._owners)

    def add(self, address: int, size: int, owner: Any) -> None:
        """Another holder of the range, which lives as long as `owner`."""
        if not self._enabled:
            return
        with self._lock:
            self._owners.add(owner)
            known, holders = self._held.get(address, (size, 0))
            self._held[address] = (known, holders + 1)
            if holders == 0 and self._table is not None:
                self._table.add_symmetric(address, size)

    def remove(self, address: int) -> None:
        """One holder less. Does nothing for another address."""
        with self._lock:
            if address not in self._held:
                return
            size, holders = self._held[address]
            if holders > 1:
                self._held[address] = (size, holders - 1)
                return
            del self._held[address]
            if self._table is not None:
                self._table.remove_symmetric(address)

    def hold(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is contiguous and lies in one of the ranges."""
        if not self._held or not tensor.is_contiguous() or tensor.numel() == 0:
            return False
        begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        with self._lock:
            return any(address <= begin and begin + size <= address + held for address, (held, _) in self._held.items())
