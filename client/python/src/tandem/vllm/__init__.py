"""Tandem for vLLM: the collectives of vLLM's tensor-parallel groups, found by vLLM through its plug-ins.

Nothing is to be imported. In a vLLM with this package and TANDEM_VLLM=1, all_reduce, all_gather and reduce_scatter of each group
"tp" run by Tandem; what Tandem declines runs by vLLM's own communicator, on all ranks alike.
"""

from __future__ import annotations

import logging
import os

from ._counts import Report, ReportRow, report

__all__ = ["Report", "ReportRow", "register", "report"]

_log = logging.getLogger("tandem.vllm")


def register() -> None:
    """Lets vLLM make Tandem's communicators from now on. vLLM calls it in each of its processes, through an entry point.

    A second call does nothing, and neither does one where TANDEM_VLLM is not 1.
    """
    try:
        if os.environ.get("TANDEM_VLLM", "") == "1":
            from . import _platform

            _platform.take()
    except Exception as error:  # what this raises would end vLLM's start
        _log.warning("Tandem is not in vLLM: %s: %s", type(error).__name__, error)
