"""Modules for sequence-parallel tensor parallelism in eager mode: linear layers behind a gather, and before a scatter.

Each keeps this rank's shard of the weights as parameters. Gradients are those of the sum of all ranks' losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ._private import group_size, resolve

__all__ = ["ColumnParallelLinears", "RowParallelLinear"]


def _group(group: Any) -> tuple[str, int, int]:
    process_group = resolve(group)
    name = str(process_group.group_name)
    return name, int(process_group.rank()), group_size(name)


class ColumnParallelLinears(nn.Module):
    """Linear layers of one input, whose output features are split over the ranks: one fused gather and products.

    linears: the whole layers, equal on all ranks, without bias or all with one; each needs output features that divide by the
    ranks. group: a process group or its name; None: the default one. gather_dim: the dimension of the input that is sharded.
    keep_gathered: keeps the gathered input for the weights' gradients, until the backward; else the backward gathers it again,
    which takes less memory and more time.
    """

    def __init__(self, linears: Sequence[nn.Linear], group: Any = None, gather_dim: int = 1, keep_gathered: bool = True) -> None:
        super().__init__()
        self.group_name, rank, world = _group(group)
        self.keep_gathered = keep_gathered
        self.gather_dim = gather_dim
        for linear in linears:
            if linear.out_features % world:
                raise ValueError(f"{linear.out_features} output features do not divide by {world} ranks")
        with_bias = [linear.bias is not None for linear in linears]
        if any(with_bias) != all(with_bias):
            raise ValueError("all of the layers have a bias, or none")
        self.weights = nn.ParameterList(linear.weight.detach().chunk(world)[rank].clone() for linear in linears)
        self.biases = nn.ParameterList(linear.bias.detach().chunk(world)[rank].clone() for linear in linears if any(with_bias))

    def forward(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """[…, K], a shard along gather_dim -> for each layer […, N / ranks], whole along gather_dim."""
        _, outputs = torch.ops.tandem.all_gather_matmul(
            shard,
            [weight.t() for weight in self.weights],
            self.gather_dim,
            self.group_name,
            list(self.biases) or None,
            return_A=self.keep_gathered and torch.is_grad_enabled() and any(w.requires_grad for w in self.weights),
        )
        return list(outputs)


class RowParallelLinear(nn.Module):
    """A linear layer whose input features are split over the ranks: one fused product and scatter. The bias, if there is one, is
    added once and lies on every rank.

    linear: the whole layer, equal on all ranks; its input features divide by the ranks. scatter_dim: the dimension of the output
    that is sharded.
    """

    def __init__(self, linear: nn.Linear, group: Any = None, scatter_dim: int = 1) -> None:
        super().__init__()
        self.group_name, rank, world = _group(group)
        self.scatter_dim = scatter_dim
        if linear.in_features % world:
            raise ValueError(f"{linear.in_features} input features do not divide by {world} ranks")
        self.weight = nn.Parameter(linear.weight.detach().chunk(world, dim=1)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, K / ranks], whole along scatter_dim -> […, N], a shard along scatter_dim."""
        result: torch.Tensor = torch.ops.tandem.matmul_reduce_scatter(
            x, self.weight.t(), "sum", self.scatter_dim, self.group_name, self.bias
        )
        return result
