"""What `import torch` calls where the package is installed, by its entry points: programs need no line of Tandem's then.

TANDEM_INSTALL=1 torchrun --nproc-per-node 8 train.py
"""

from __future__ import annotations

import logging
import os
from typing import Any

_log = logging.getLogger("tandem")


def autoload() -> None:
    """Makes the backend "tandem" known to torch.distributed, and calls tandem.torch.install() where TANDEM_INSTALL is 1."""
    try:
        register_backend()
        if os.environ.get("TANDEM_INSTALL", "") == "1":
            from .torch import install

            install()
    except Exception as error:  # what this raises would end `import torch`
        _log.warning("Tandem is not installed behind torch: %s: %s", type(error).__name__, error)


def register_backend() -> None:
    """Makes the backend "tandem" known to torch.distributed, without loading Tandem. A second call does nothing."""
    import torch.distributed as dist

    if dist.is_available() and "tandem" not in dist.Backend.backend_list:
        dist.Backend.register_backend("tandem", _create, extended_api=True, devices=["cuda"])


def _create(given: Any, options: Any) -> Any:
    from .torch._backend import create

    return create(given, options)
