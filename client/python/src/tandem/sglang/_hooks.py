"""Hooks around the methods of SGLang's groups, which SGLang puts there itself."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from ._signatures import GROUP, difference

__all__ = ["take"]

_log = logging.getLogger("tandem.sglang")
_registered = False


def take() -> None:
    """Registers the hooks with SGLang, which applies them once all plug-ins have been loaded."""
    global _registered
    if _registered:
        return
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    groups: Any = importlib.import_module("sglang.srt.distributed.parallel_state")
    from . import _norms, _served

    names = tuple(_served.AROUND)
    if reason := difference(groups.GroupCoordinator, names):
        _log.warning("SGLang's groups keep SGLang's own collectives: %s", reason)
        return
    _registered = True
    hooks.HookRegistry.register(f"sglang.{GROUP}__init__", _served.after_init, hooks.HookType.AFTER)
    for name, hook in _served.AROUND.items():
        hooks.HookRegistry.register(f"sglang.{GROUP}{name}", hook, hooks.HookType.AROUND)
    _norms.take()
