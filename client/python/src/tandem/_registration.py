"""The backend "tandem" of torch.distributed, by its name: Tandem is loaded for the first group that has it."""

from __future__ import annotations

from typing import Any


def register_backend() -> None:
    """Makes the backend "tandem" known to torch.distributed. A second call does nothing."""
    import torch.distributed as dist

    if dist.is_available() and "tandem" not in dist.Backend.backend_list:
        dist.Backend.register_backend("tandem", _create, extended_api=True, devices=["cuda"])


def _create(given: Any, options: Any) -> Any:
    from .torch._backend import create

    return create(given, options)
