"""Changes of other packages' modules that are made when a program imports them: nothing is imported before it is wanted."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["on_import", "replace"]

_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}


def on_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Calls `change` with the module of this name as soon as it has been imported; now, where it has been already."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        change(module)
        return
    _waiting.setdefault(name, []).append(change)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def replace(module: ModuleType, name: str, made: Any) -> None:
    """Puts `made` in the place of the module's attribute, also where other modules have imported it from there by its name."""
    given = getattr(module, name)
    setattr(module, name, made)
    for other in list(sys.modules.values()):
        names = getattr(other, "__dict__", None)
        if isinstance(names, dict) and names.get(name) is given:
            names[name] = made


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are waited for as the finders behind it do, and lets their loaders call the changes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None for every other module, so that the next finder is asked."""
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            ask = getattr(finder, "find_spec", None)
            spec = None if finder is self or ask is None else ask(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, name)
                return spec  # type: ignore[no-any-return]
        return None


class _Loader(importlib.abc.Loader):
    """Another loader, whose module is changed once it has run."""

    def __init__(self, given: Any, name: str) -> None:
        self._given, self._name = given, name

    def __getattr__(self, name: str) -> Any:  # as get_source
        return getattr(self._given, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the other loader."""
        return self._given.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, and then the changes."""
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._given
        module.__loader__ = self._given
        self._given.exec_module(module)
        for change in _waiting.pop(self._name, ()):
            change(module)
