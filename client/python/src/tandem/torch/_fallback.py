"""The same operations by torch's own functional collectives and products, for groups and calls that Tandem declines."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._private import group_size, resolve
from ._shapes import as_rows

_c10d = torch.ops._c10d_functional


def _wait(tensor: torch.Tensor) -> torch.Tensor:
    return _c10d.wait_tensor(tensor)  # type: ignore[no-any-return]


def _without_average(reduce_op: str) -> str:
    """Not every backend has an average."""
    return "sum" if reduce_op == "avg" else reduce_op


def all_reduce(tensor: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """The sum of all ranks' tensors, or another reduction."""
    total = _wait(_c10d.all_reduce(tensor.contiguous(), _without_average(reduce_op), group_name))
    return total.div_(group_size(group_name)) if reduce_op == "avg" else total


def all_gather(tensor: torch.Tensor, gather_dim: int, group_name: str) -> torch.Tensor:
    """All ranks' tensors behind one another along a dimension."""
    world = group_size(group_name)
    whole = _wait(_c10d.all_gather_into_tensor(tensor.contiguous(), world, group_name))
    return whole if gather_dim == 0 else torch.cat(whole.chunk(world), dim=gather_dim)


def reduce_scatter(tensor: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> torch.Tensor:
    """This rank's chunk of the sum, or of another reduction."""
    world = group_size(group_name)
    chunks = tensor if scatter_dim == 0 else torch.cat(tensor.chunk(world, dim=scatter_dim))
    part = _wait(_c10d.reduce_scatter_tensor(chunks.contiguous(), _without_average(reduce_op), world, group_name))
    return part.div_(world) if reduce_op == "avg" else part


def all_to_all(tensor: torch.Tensor, dim: int, group_name: str) -> torch.Tensor:
    """Chunk r of the result is this rank's chunk of rank r's tensor."""
    world = group_size(group_name)
    first = tensor.movedim(dim, 0).contiguous()
    counts = [first.shape[0] // world] * world
    return _wait(_c10d.all_to_all_single(first, counts, counts, group_name)).movedim(0, dim).contiguous()


def broadcast(tensor: torch.Tensor, root: int, group_name: str) -> torch.Tensor:
    """The tensor of rank `root` of the group."""
    return _wait(_c10d.broadcast(tensor.contiguous(), root, group_name))


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str, bias: torch.Tensor | None
) -> torch.Tensor:
    """This rank's chunk of the sum of A @ B, plus its bias: of scattered columns, the bias of these."""
    part = reduce_scatter(a @ b, reduce_op, scatter_dim, group_name)
    if bias is None:
        return part
    if scatter_dim == a.dim() - 1:
        bias = bias.chunk(group_size(group_name))[resolve(group_name).rank()]
    return part + bias.to(part.dtype)


def matmul_all_reduce(a: torch.Tensor, b: torch.Tensor, reduce_op: str, group_name: str, bias: torch.Tensor | None) -> torch.Tensor:
    """The sum of A @ B, plus the bias."""
    total = all_reduce(a @ b, reduce_op, group_name)
    return total if bias is None else total + bias.to(total.dtype)


def _normed(total: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMSNorm over the last dimension, in f32 at least, rounded once."""
    wide = total.to(torch.promote_types(total.dtype, torch.float32))
    factors = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * factors * weight).to(total.dtype)


def _added_and_normed(
    total: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, rounded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the residual with the sum, and that residual. rounded: the norm is of the residual as it is rounded."""
    wide = total.to(torch.promote_types(total.dtype, torch.float32)) + residual
    added = wide.to(total.dtype)
    return _normed(added if rounded else wide, weight, epsilon).to(total.dtype), added


def all_reduce_rms_norm(
    tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, group_name: str, rounded: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the residual with the sum of all ranks' tensors, and that residual."""
    return _added_and_normed(all_reduce(tensor, "sum", group_name), residual, weight, epsilon, rounded)


_MOST_OF_E4M3, _LEAST_AMAX = 448.0, 1 / 512


def quantize(normed: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, makes_scales: bool) -> None:
    """Fills `out`, of f8e4m3, with normed / scale; the scale is made first if so wanted: for each row, or 128 columns of it."""
    wide = normed.float()
    if makes_scales:
        columns, count = wide.shape[-1], scale.shape[-1]
        blocks = wide if count == 1 else torch.nn.functional.pad(wide, (0, count * 128 - columns))
        most = blocks.abs().reshape(*wide.shape[:-1], count, -1).amax(-1) if wide.numel() else wide.new_zeros(scale.shape)
        # By a number CUDA would multiply with its rounded reciprocal.
        scale.copy_(most.clamp(min=_LEAST_AMAX) / torch.full_like(most, _MOST_OF_E4M3))
        scale = scale if count == 1 else scale.repeat_interleave(128, -1)[..., :columns]
    else:
        scale = scale.reshape(())
    out.copy_((wide / scale).clamp(-_MOST_OF_E4M3, _MOST_OF_E4M3).to(out.dtype))


def matmul_all_reduce_rms_norm(
    a: torch.Tensor,
    b: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    group_name: str,
    bias: torch.Tensor | None,
    rounded: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the residual with the sum of A @ B and the bias, and that residual."""
    total = matmul_all_reduce(a, b, "sum", group_name, bias)
    return _added_and_normed(total, residual, weight, epsilon, rounded)


def all_gather_matmul(
    a: torch.Tensor, bs: Sequence[torch.Tensor], gather_dim: int, group_name: str, biases: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The gathered A, and its products."""
    whole = all_gather(a, gather_dim, group_name)
    products = [whole @ b for b in bs]
    return whole, [c if bias is None else c + bias.to(c.dtype) for c, bias in zip(products, biases, strict=True)]


def _factors(scale: torch.Tensor, rows: int, columns: int, blocks: int) -> torch.Tensor:
    """A scale of a matrix, one factor an element or broadcast: of one element, a row, a column, or by blocks of 128."""
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    scale = scale.reshape(-1, scale.shape[-1])
    if scale.shape[0] == blocks and blocks != rows:
        scale = scale.repeat_interleave(128, 0)[:rows]
    if scale.shape[1] not in (1, columns):
        scale = scale.repeat_interleave(128, 1)[:, :columns]
    return scale


def _spread(scale: torch.Tensor, columns: int) -> torch.Tensor:
    """A's scales by rows, or by blocks of 128 columns, as one factor an element."""
    if scale.shape[-1] == 1:
        return scale.expand(*scale.shape[:-1], columns)
    return scale.repeat_interleave(128, -1)[..., :columns]


_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def fits_scaled_mm(matrix: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> bool:
    """Whether fp8_product() takes these: torch's types and extents, and scales that can be taken out of the sum."""
    rows, columns = matrix.shape[0], b.shape[1]
    by_row = a_scale.numel() == 1 or (a_scale.shape[-1] == 1 and a_scale.numel() == rows)
    by_column = b_scale.numel() == 1 or (b_scale.shape[-1] == columns and b_scale.numel() == columns)
    types = matrix.dtype in _FP8 and b.dtype in _FP8 and torch.float8_e4m3fn in (matrix.dtype, b.dtype)
    return types and by_row and by_column and rows > 0 and all(extent > 0 and extent % 16 == 0 for extent in b.shape)


def fp8_product(matrix: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    """The scaled product in f32, by torch's product of fp8. Scales come behind it: torch gives no f32 of scales by rows."""
    one = torch.ones((), dtype=torch.float32, device=matrix.device)
    product: torch.Tensor = torch._scaled_mm(matrix.contiguous(), b.t().contiguous().t(), one, one, out_dtype=torch.float32)
    return product * a_scale.reshape(-1, 1) * b_scale.reshape(1, -1)


def _has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _scaled_product(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    """(A · scales) @ (B · scales) in f32. On GPUs with products of fp8 by these, where the scales' form allows it."""
    matrix = as_rows(a)
    if _has_fp8(a.device) and fits_scaled_mm(matrix, b, a_scale, b_scale):
        product = fp8_product(matrix, b, a_scale, b_scale)
    else:
        left = matrix.float() * _factors(a_scale, matrix.shape[0], matrix.shape[1], -1)
        right = b.float() * _factors(b_scale, b.shape[0], b.shape[1], -(-b.shape[0] // 128))
        product = left @ right
    return product.reshape(*a.shape[:-1], b.shape[1])


def all_gather_scaled_matmul(
    a: torch.Tensor,
    bs: Sequence[torch.Tensor],
    a_scale: torch.Tensor,
    b_scales: Sequence[torch.Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[torch.Tensor],
    result_scales: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The gathered A, and its scaled products in f32."""
    whole = all_gather(a.view(torch.uint8), gather_dim, group_name).view(a.dtype)  # not every backend sends fp8
    if a_scale.numel() == 1:  # each rank's own, for its rows
        a_scale = a_scale.reshape(1).expand(*a.shape[:-1], 1)
    if list(a_scale.shape[:-1]) == list(a.shape[:-1]):
        # Along K each rank's part of a row has separate factors.
        along_k = gather_dim % a.dim() == a.dim() - 1
        a_scale = all_gather(_spread(a_scale, a.shape[-1]) if along_k else a_scale, gather_dim, group_name)
    products = [_scaled_product(whole, b, a_scale, b_scale) for b, b_scale in zip(bs, b_scales, strict=True)]
    if biases:
        products = [c + bias.float() for c, bias in zip(products, biases, strict=True)]
    if result_scales:
        products = [c * scale for c, scale in zip(products, result_scales, strict=True)]
    return whole, products


def scaled_reduced(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    reduce_op: str,
    scatter_dim: int | None,
    group_name: str,
    bias: torch.Tensor | None,
    result_scale: torch.Tensor | None,
) -> torch.Tensor:
    """The sum of all ranks' scaled products in f32, scattered unless `scatter_dim` is None."""
    product = _scaled_product(a, b, a_scale, b_scale)
    if scatter_dim is None:
        total = all_reduce(product, reduce_op, group_name)
    else:
        total = reduce_scatter(product, reduce_op, scatter_dim, group_name)
    if bias is not None:
        if scatter_dim == a.dim() - 1:
            bias = bias.chunk(group_size(group_name))[resolve(group_name).rank()]
        total = total + bias.float()
    return total if result_scale is None else total * result_scale
