"""The communicators' classes, by the names of vLLM's: each is made when vLLM first asks this module for it.

Such a class is a subclass of vLLM's, since vLLM asks for instances of its own. Until then nothing of Tandem is loaded.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

_log = logging.getLogger("tandem.vllm")
_given: dict[str, str] = {}  # by class name: module and name of vLLM's


def in_front_of(given: str) -> str:
    """The module and name of the class that stands in front of vLLM's with this module and name."""
    name = given.rpartition(".")[2]
    _given[name] = given
    return f"{__name__}.{name}"


def __getattr__(name: str) -> Any:
    if name not in _given:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own = _given[name].rpartition(".")
    base = getattr(importlib.import_module(module), own)
    globals()[name] = _made(base)
    return globals()[name]


def _made(base: type) -> type:
    """The subclass; the class itself where there can be none, and a warning says why."""
    from ._signatures import difference

    try:
        reason = difference(base)
        if not reason:
            from ._served import subclass

            return subclass(base)
    except Exception as error:  # as of a library that cannot be loaded
        reason = f"{type(error).__name__}: {error}"
    _log.warning("vLLM's groups keep vLLM's own collectives: %s", reason)
    return base
