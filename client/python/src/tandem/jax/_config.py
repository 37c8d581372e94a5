"""Settings for all meshes of this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["Config", "configure", "current"]

FamiliesOption = Literal["none", "collectives", "all"]
PlacementOption = Literal["auto", "engine", "client"]
OnUnavailable = Literal["fallback", "error"]


@dataclass(frozen=True)
class Config:
    """on_unavailable: the answer where Tandem cannot serve a call: jax.lax's own collectives, or an exception.
    rendezvous_timeout: seconds in which all processes must come to attach() and to the trace of a call with a new plan.
    launch_deadline: seconds of a launch from its first rank's arrival. families: calls that differ in their rows alone share a plan
    ("collectives": not those with products, which cuBLASLt runs faster by plans of one shape; "all"; "none"). max_rows: of a family
    with more than one dimension; calls with more rows have plans of one shape. placement: where plans of one shape run; families
    run on the ranks' own streams. "auto": on CUDA as families, on the host backend on engines.
    """

    on_unavailable: OnUnavailable = "fallback"
    rendezvous_timeout: float = 300.0
    launch_deadline: float = 1800.0
    families: FamiliesOption = "collectives"
    max_rows: int = 8192
    placement: PlacementOption = "auto"


_config = Config()


def current() -> Config:
    """The configuration in force."""
    return _config


def configure(**changes: Any) -> Config:
    """Changes fields of the configuration (see Config); returns the new one.

    Call it alike in all processes, before attach(). ValueError for a wrong value, TypeError for an unknown field.
    """
    global _config
    made = replace(_config, **changes)
    for field, values in (
        ("on_unavailable", ("fallback", "error")),
        ("families", ("none", "collectives", "all")),
        ("placement", ("auto", "engine", "client")),
    ):
        if getattr(made, field) not in values:
            raise ValueError(f"{field} is one of {', '.join(map(repr, values))}, not {getattr(made, field)!r}")
    if made.max_rows < 1 or made.rendezvous_timeout <= 0 or made.launch_deadline <= 0:
        raise ValueError("max_rows, rendezvous_timeout and launch_deadline are above 0")
    _config = made
    return _config
