"""vLLM's platform names the class of its communicators; here it names Tandem's in front of that one."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from . import _communicators, _compiled, _norms

__all__ = ["take"]


def take() -> None:
    """Lets the process' platform name Tandem's classes. The CPU's are for tests."""
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    if not (platform.is_cuda() or platform.is_cpu()):
        return
    kind = type(platform)
    given = kind.get_device_communicator_cls
    if hasattr(given, "of_tandem"):
        return

    @functools.wraps(given)
    def named(_: Any) -> str:
        return _communicators.in_front_of(given())

    named.of_tandem = True  # type: ignore[attr-defined]
    kind.get_device_communicator_cls = classmethod(named)
    _norms.take()
    _compiled.take(kind)
