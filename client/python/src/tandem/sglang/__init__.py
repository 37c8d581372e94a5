"""Tandem for SGLang: the collectives of SGLang's tensor-parallel groups, found by SGLang through its plug-ins.

Nothing is to be imported. In an SGLang with this package and TANDEM_SGLANG=1, all_reduce, all_gather and reduce_scatter of the
tensor-parallel groups run by Tandem; what Tandem declines runs by SGLang's own communicators, on all ranks alike.
"""

from __future__ import annotations

import logging
import os

from ._counts import Report, ReportRow, report

__all__ = ["Report", "ReportRow", "register", "report"]

_log = logging.getLogger("tandem.sglang")


def register() -> None:
    """Puts Tandem around the collectives of SGLang's groups. SGLang calls it in each of its processes, through an entry point.

    A second call does nothing, and neither does one where TANDEM_SGLANG is not 1.
    """
    try:
        if os.environ.get("TANDEM_SGLANG", "") == "1":
            from . import _hooks

            _hooks.take()
    except Exception as error:  # as of a library that cannot be loaded
        _log.warning("Tandem is not in SGLang: %s: %s", type(error).__name__, error)
