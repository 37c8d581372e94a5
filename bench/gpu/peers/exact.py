"""Some rows of a matmul's result in float64, from all ranks' operands, to compare the arms' rounding errors with."""

import torch
import torch.distributed as dist

ROWS, SHARD_ROWS = 64, 32  # of a whole result, and of each rank's shard of one
COLUMNS = 2048  # of B that are there in float64 at a time
SEED = 7


def some_rows(count, most, device):
    """At most `most` of `count` rows at random, the same ones on all ranks and every time."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED))
    return order[:most].sort().values.to(device)


def rows_in_float64(a, rows, scale):
    """These rows of A, times their scales: one for all, one for each row, or None."""
    # Not every version of torch can index fp8.
    taken = a.view(torch.uint8)[rows].view(a.dtype) if a.element_size() == 1 else a[rows]
    exact = taken.float().double()
    if scale is None:
        return exact
    return exact * (scale[rows] if scale.dim() else scale).double()


def product(rows, b, scale):
    """rows · B in float64, with B's scale: one for all, one for each column, or None."""
    parts = []
    for first in range(0, b.shape[1], COLUMNS):
        columns = slice(first, first + COLUMNS)
        part = b[:, columns].float().double()
        if scale is not None:
            part = part * (scale[:, columns] if scale.dim() else scale).double()
        parts.append(rows @ part)
    return torch.cat(parts, dim=1)


def gathered(context, a, b, scale_a=None, scale_b=None):
    """(rows, values) of all-gather -> matmul; `a` is this rank's shard of A."""
    shard = a.shape[0]
    rows = some_rows(shard * context.world, ROWS, context.bench.device)
    here = (rows // shard == context.rank).nonzero().flatten()
    whole = torch.zeros(rows.shape[0], a.shape[1], device=context.bench.device, dtype=torch.float64)
    whole[here] = rows_in_float64(a, rows[here] - context.rank * shard, scale_a)
    dist.all_reduce(whole)
    return rows, product(whole, b, scale_b)


def reduced(context, a, b, scatter, scale_a=None, scale_b=None):
    """(rows, values) of matmul -> reduce-scatter, of this rank's shard, or of matmul -> all-reduce."""
    shard = a.shape[0] // context.world if scatter else a.shape[0]
    rows = some_rows(shard, SHARD_ROWS if scatter else ROWS, context.bench.device)
    wanted = torch.cat([rows + rank * shard for rank in range(context.world)]) if scatter else rows
    sums = product(rows_in_float64(a, wanted, scale_a), b, scale_b)
    dist.all_reduce(sums)
    first = context.rank * rows.shape[0] if scatter else 0
    return rows, sums[first : first + rows.shape[0]]


def of(context, function, *arguments):
    """The result of `function`, or None where it fails: the comparison continues without. A failure is on all ranks, whose
    shapes and types are alike."""
    try:
        return function(context, *arguments)
    except Exception as failure:
        context.bench.log(f"no reference in float64: {type(failure).__name__}: {str(failure)[:200]}")
        return None
