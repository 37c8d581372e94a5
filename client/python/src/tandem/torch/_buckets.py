"""Padding of rows to configured numbers, so that few plans serve products with ever new numbers of rows (Config.row_buckets).

What stands in the padding is not set: rows of a product do not depend on one another.
"""

from __future__ import annotations

import bisect

import torch

from ._groups import attachment

__all__ = ["cut", "larger", "padded", "padded_scale"]


def larger(group_name: str, rows: int) -> int:
    """The bucket that so many rows are padded to; 0 if they are one, or stay as they are."""
    buckets = attachment(group_name).config.row_buckets
    at = bisect.bisect_left(buckets, rows)
    return buckets[at] if rows and at < len(buckets) and buckets[at] != rows else 0


def padded(tensor: torch.Tensor, dim: int, parts: int, rows: int) -> torch.Tensor:
    """The tensor with each of `parts` equal parts along `dim` padded to `rows`."""
    own = tensor.shape[dim] // parts
    shape = [*tensor.shape[:dim], parts, rows, *tensor.shape[dim + 1 :]]
    made = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    made.narrow(dim + 1, 0, own).copy_(_parts(tensor, dim, parts))
    return made.flatten(dim, dim + 1)


def padded_scale(scale: torch.Tensor, matrix: torch.Tensor, dim: int, parts: int, rows: int) -> torch.Tensor:
    """The scale of `matrix` padded like it: the rows' factors, or one for all, which stays."""
    return padded(scale, dim, parts, rows) if scale.dim() > 0 and scale.shape[:-1] == matrix.shape[:-1] else scale


def cut(tensor: torch.Tensor, dim: int, parts: int, own: int) -> torch.Tensor:
    """The first `own` of each of `parts` equal parts along `dim`: what padded() was made of."""
    return _parts(tensor, dim, parts).narrow(dim + 1, 0, own).flatten(dim, dim + 1)


def _parts(tensor: torch.Tensor, dim: int, parts: int) -> torch.Tensor:
    return tensor.reshape(*tensor.shape[:dim], parts, tensor.shape[dim] // parts, *tensor.shape[dim + 1 :])
