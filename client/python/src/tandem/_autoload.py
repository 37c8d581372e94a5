"""What `import torch` calls where the package is installed, by its entry points: programs need no line of Tandem's then.

TANDEM_INSTALL=1 loads tandem.torch in every process that imports torch; TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves all this out.
"""

from __future__ import annotations

import importlib
import logging
import os

from . import _registration

_log = logging.getLogger("tandem")


def autoload() -> None:
    """Makes the backend "tandem" known to torch.distributed. Where TANDEM_INSTALL is 1 it loads tandem.torch, which installs
    itself: a program that imports that first is not through with it yet."""
    try:
        _registration.register_backend()
        if os.environ.get("TANDEM_INSTALL", "") == "1":
            importlib.import_module("tandem.torch")
    except Exception as error:  # what this raises would end `import torch`
        _log.warning("Tandem is not installed behind torch: %s: %s", type(error).__name__, error)
