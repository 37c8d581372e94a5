"""Settings for all groups of this process."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

_log = logging.getLogger("tandem.torch")
OnUnavailable = Literal["fallback", "error"]
FamiliesOption = Literal["none", "eager", "collectives", "all"]
PlacementOption = Literal["auto", "engine", "client"]
DeterminismOption = Literal["off", "run", "batch"]
RoundingOption = Literal["once", "model"]


@dataclass(frozen=True)
class Config:
    """on_unavailable: the answer where Tandem cannot serve an op: torch's own collectives and products, or an exception.
    rendezvous_timeout: seconds in which all ranks must come to attach() and to the first call of an op with new shapes.
    launch_deadline: seconds of a launch from its first rank's arrival; None: the daemon's default. max_plans: live plans a group,
    and live families alike; the least recently used one is released first, on all ranks alike. write_in_place: peers write
    outputs in symmetric memory in place, so that these must lie alike on all ranks; False: as other outputs. placement: where plans
    run: on the node's engines ("engine"), on torch's current stream ("client": a call that this cannot serve is declined), or as
    the daemon chooses ("auto").
    autotune: a call that prepares a plan measures it first where no table of the node has a time, some 50 ms on idle GPUs; such
    plans are of one shape. families: calls that differ in their rows alone share a plan, where ranks' own streams run it ("all";
    "collectives": not those with products; "eager": those of torch.distributed behind install(); "none"): ranks meet for it, and
    again where a call has more rows than its bound, which doubles up to max_rows. The dimensions before the last one count as rows
    together. Calls with more rows have plans of one shape. determinism: the promise about the bits of results
    (docs/determinism.md); "off" is "run" under torch.use_deterministic_algorithms(True). Under "batch" a call that Tandem cannot
    serve raises, whatever on_unavailable is, since nothing else keeps the promise. rounding: what the norm behind a sum and a
    residual is of: their fp32 value ("once"), or the residual as it is rounded, as in a model's eager operations ("model").
    """

    on_unavailable: OnUnavailable = "fallback"
    rendezvous_timeout: float = 300.0
    launch_deadline: float | None = None
    max_plans: int = 512
    write_in_place: bool = True
    placement: PlacementOption = "auto"
    autotune: bool = False
    families: FamiliesOption = "all"
    max_rows: int = 8192
    determinism: DeterminismOption = "off"
    rounding: RoundingOption = "once"
    runtime_dir: str | None = None

    @property
    def raises(self) -> bool:
        """Whether a call that Tandem cannot serve raises an exception."""
        return self.on_unavailable == "error" or self.determinism == "batch"

    @property
    def level(self) -> DeterminismOption:
        """The promise of a plan that is prepared now."""
        return "run" if self.determinism == "off" and torch.are_deterministic_algorithms_enabled() else self.determinism


_config = Config()


def current() -> Config:
    """The configuration in force."""
    return _config


def configure(**changes: Any) -> Config:
    """Changes fields of the configuration (see Config), for groups that are attached later; returns the new one.

    Call it alike on all ranks. ValueError for a wrong value, TypeError for an unknown field.
    """
    global _config
    _config = changed(changes)
    return _config


def changed(changes: dict[str, Any]) -> Config:
    """The configuration in force with other values of some fields. Raises as configure()."""
    made = replace(_config, **changes)
    if made.on_unavailable not in ("fallback", "error"):
        raise ValueError(f"on_unavailable is 'fallback' or 'error', not {made.on_unavailable!r}")
    if made.placement not in ("auto", "engine", "client"):
        raise ValueError(f"placement is 'auto', 'engine' or 'client', not {made.placement!r}")
    if made.families not in ("none", "eager", "collectives", "all"):
        raise ValueError(f"families is 'none', 'eager', 'collectives' or 'all', not {made.families!r}")
    if made.determinism not in ("off", "run", "batch"):
        raise ValueError(f"determinism is 'off', 'run' or 'batch', not {made.determinism!r}")
    if made.rounding not in ("once", "model"):
        raise ValueError(f"rounding is 'once' or 'model', not {made.rounding!r}")
    if made.max_rows < 1:
        raise ValueError("max_rows is above 0")
    if made.max_plans < 1 or made.rendezvous_timeout <= 0:
        raise ValueError("max_plans and rendezvous_timeout are above 0")
    return made


_warned: set[tuple[str, str, str]] = set()
_PACKAGES = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))


def _callers_level() -> int:
    """The stacklevel, for warn_once(), of the nearest line that is neither torch's nor this package's."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        frame, level = frame.f_back, level + 1
    return level


def warn_once(rank: int, group: str, what: str, reason: str, by: str = "torch's own collectives") -> None:
    """One warning for each (op, reason), at the line that calls the op, by the rank 0 of a group: the ranks decline alike. Others
    log it. `by`: what runs instead."""
    if (what, reason, by) in _warned:
        return
    _warned.add((what, reason, by))
    text = f"tandem: {what} of group {group!r} runs on {by}: {reason}"
    if rank == 0:
        warnings.warn(text, RuntimeWarning, stacklevel=_callers_level())
    else:
        _log.info("%s", text)
