"""Tandem for PyTorch: ops in torch.ops.tandem over existing process groups.

    import tandem.torch
    y = torch.ops.tandem.matmul_reduce_scatter(x, w, "sum", 0, group.group_name)

Ops join a Tandem group for the process group on first use, prepare a plan for each new set of shapes, and launch it. Where Tandem
cannot serve a group or a call, all ranks use torch's own collectives alike, with one warning that has the reason. A rank that dies
raises tandem.RankLost on the others.
"""

import os
from typing import TYPE_CHECKING, Any

from .. import _registration
from . import (  # noqa: F401  (they register)
    _autocast,
    _autograd,
    _in_place,
    _norms,
    _ops,
    _overlapped,
    _quantized_norms,
    _scaled,
    _schemas,
)
from ._backend import BackendOptions
from ._config import Config, configure
from ._groups import Attachment, attach, attachment, detach, renew, synchronize
from ._install import install, installed, uninstall
from ._memory import SymmetricMemory, empty, is_symmetric, memset32, rendezvous, stream_write_value32
from ._pool import mem_pool
from ._preparation import prepare
from ._report import Report, report
from ._suspension import resume, suspend, suspend_if_asked

if TYPE_CHECKING:
    from ._compile_config import compile_config
    from ._pass import GraphRecord, TandemPass, explain_graph

__all__ = [
    "Attachment",
    "BackendOptions",
    "Config",
    "GraphRecord",
    "Report",
    "SymmetricMemory",
    "TandemPass",
    "attach",
    "attachment",
    "compile_config",
    "configure",
    "detach",
    "empty",
    "explain_graph",
    "install",
    "installed",
    "is_symmetric",
    "mem_pool",
    "memset32",
    "prepare",
    "rendezvous",
    "renew",
    "report",
    "resume",
    "stream_write_value32",
    "suspend",
    "suspend_if_asked",
    "synchronize",
    "uninstall",
]

_registration.register_backend()
if os.environ.get("TANDEM_INSTALL", "") == "1":
    install()


def __getattr__(name: str) -> Any:
    # The pass needs Inductor, whose import takes seconds: programs that do not compile do without.
    if name in ("GraphRecord", "TandemPass", "compile_config", "explain_graph"):
        from . import _compile_config, _pass

        return getattr(_compile_config if name == "compile_config" else _pass, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
