"""The backend "tandem" of torch.distributed: init_process_group("cpu:gloo,cuda:tandem").

The group's backend is NCCL's, or gloo's, as without Tandem: it runs all that Tandem does not, and torch finds it where it looks for
one. The kernels of install() stand in front of it, for groups of this backend alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from . import _backend_sleep, _distributed
from ._private import backends_of, resolve, set_default_backend, split_source

NAME = "tandem"


@dataclass
class BackendOptions:
    """pg_options of init_process_group() and new_group() for the backend "tandem". NCCL's own options may stand in their place.

    inner: the backend for all that Tandem does not run: "nccl" or "gloo"; None: NCCL where there are GPUs, gloo otherwise.
    options: the inner backend's own, such as ProcessGroupNCCL.Options.
    """

    inner: Literal["nccl", "gloo"] | None = None
    options: Any = None


def create(given: Any, options: Any) -> Any:
    """The inner backend of a group; torch calls it. given: torch's _DistributedBackendOptions. ValueError for unknown options."""
    chosen = options if isinstance(options, BackendOptions) else BackendOptions(options=options)
    inner = chosen.inner or ("nccl" if torch.cuda.is_available() else "gloo")
    if inner not in ("nccl", "gloo"):
        raise ValueError(f"BackendOptions.inner is 'nccl' or 'gloo', not {inner!r}")
    backend = _create_nccl(given, chosen.options) if inner == "nccl" else _create_gloo(given)
    backend._set_sequence_number_for_group()
    _distributed.take_backend(takes)
    _backend_sleep.follow(backend, NAME)
    return backend


def _create_gloo(given: Any) -> Any:
    backend = dist.ProcessGroupGloo(given.store, given.group_rank, given.group_size, timeout=given.timeout)
    backend.options.global_ranks_in_group = given.global_ranks_in_group
    backend.options.group_name = given.group_id
    return backend


def _create_nccl(given: Any, options: Any) -> Any:
    nccl: Any = dist.ProcessGroupNCCL  # type: ignore[attr-defined,unused-ignore]
    if options is None:
        options = nccl.Options()
        options.is_high_priority_stream = False
    elif not isinstance(options, nccl.Options):
        raise ValueError(f"pg_options of the backend tandem are BackendOptions or NCCL's, not {type(options).__name__}")
    options._timeout = given.timeout
    options.global_ranks_in_group = given.global_ranks_in_group
    options.group_name = given.group_id
    source = split_source(given.global_ranks_in_group)
    if source is not None:
        options.split_from, options.split_color = source
    return nccl(given.store, given.group_rank, given.group_size, options)


def takes(group_name: str, on_cpu: bool) -> bool:
    """Whether the group has this backend for tensors on the CPU, or on GPUs."""
    device = "cpu" if on_cpu else "cuda"
    group = resolve(group_name)
    backends = backends_of(group).split(",")
    if any(one.endswith(f":{NAME}") for one in backends):
        set_default_backend(group)
    return f"{device}:{NAME}" in backends
