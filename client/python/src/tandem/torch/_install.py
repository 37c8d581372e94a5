"""Tandem behind torch.distributed's collectives and torch.ops.symm_mem, so that programs written for these run unchanged."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed._symmetric_memory as symm_mem

from . import _distributed, _in_place, _ops, _scaled
from ._ops import new_like
from ._private import below_autograd, group_size, new_library
from ._serving import with_theirs
from ._shapes import gathered

__all__ = ["install", "installed", "uninstall"]

Tensor = torch.Tensor
_symm_mem: Any = symm_mem
_tandem: Any = torch.ops.tandem


def _gathered_layout(like: Tensor, shape: Sequence[int], dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor in the layout of symm_mem's results: the gathered dimension is outermost in memory."""
    if dim == len(shape) - 1:
        return new_like(like, shape, dtype)
    first = [shape[dim], *shape[:dim], *shape[dim + 1 :]]
    return new_like(like, first, dtype).movedim(0, dim)


def _fused_all_gather_matmul(
    A_shard: Tensor, Bs: Sequence[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[Tensor | None, list[Tensor]]:
    whole_shape, shapes = _ops.all_gather_matmul_shapes(A_shard, Bs, gather_dim, group_name)
    dim = gather_dim % A_shard.dim()
    whole = _gathered_layout(A_shard, whole_shape, dim) if return_A else None
    products = [_gathered_layout(A_shard, shape, dim) for shape in shapes]
    gathered_a = [] if whole is None else [whole]
    with below_autograd():
        _tandem.all_gather_matmul.out(A_shard, Bs, dim, group_name, gathered=gathered_a, outs=products)
    return whole, products


def _fused_all_gather_scaled_matmul(
    A_shard: Tensor,
    Bs: Sequence[Tensor],
    A_scale: Tensor,
    B_scales: Sequence[Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[Tensor | None],
    result_scales: Sequence[Tensor | None],
    out_dtypes: Sequence[Any],
    use_fast_accum: Sequence[bool],
) -> tuple[Tensor, list[Tensor]]:
    dim = gather_dim % A_shard.dim()
    if dim == 0:  # in the layout of Tandem's own op
        with below_autograd():
            results: tuple[Tensor, list[Tensor]] = _tandem.all_gather_scaled_matmul(
                A_shard, Bs, A_scale, B_scales, dim, group_name, biases, result_scales, out_dtypes, use_fast_accum
            )
        return results
    whole_shape = gathered(A_shard.shape, dim, group_size(group_name))
    whole = _gathered_layout(A_shard, whole_shape, dim)
    products = [
        _gathered_layout(A_shard, [*whole_shape[:-1], b.shape[1]], dim, _scaled.dtype_of(kind, A_shard.dtype))
        for b, kind in zip(Bs, out_dtypes, strict=True)
    ]
    _scaled.run_all_gather_scaled_matmul(
        A_shard, Bs, A_scale, B_scales, dim, group_name, biases, result_scales, use_fast_accum, whole, products
    )
    return whole, products


def _fused_matmul_reduce_scatter(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    with below_autograd():
        result: Tensor = _tandem.matmul_reduce_scatter(A, B, reduce_op, scatter_dim, group_name)
    return result


def _fused_scaled_matmul_reduce_scatter(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: Sequence[int] | None,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    if bias is not None or result_scale is not None:
        # symm_mem applies them to each rank's product, before the sum, and so does its own kernel or what stands for it.
        name = "_fused_scaled_matmul_reduce_scatter" + ("" if A.is_cuda else "_fallback")
        given = getattr(_symm_mem, name)
        result: Tensor = given(
            A,
            B,
            A_scale,
            B_scale,
            reduce_op,
            orig_scatter_dim,
            scatter_dim_after_maybe_reshape,
            group_name,
            output_shape,
            bias,
            result_scale,
            _scaled.dtype_of(out_dtype, A.dtype),
            use_fast_accum,
        )
        return result
    with below_autograd():
        scattered: Tensor = _tandem.scaled_matmul_reduce_scatter(
            A,
            B,
            A_scale,
            B_scale,
            reduce_op,
            orig_scatter_dim,
            scatter_dim_after_maybe_reshape,
            group_name,
            output_shape,
            None,
            None,
            out_dtype,
            use_fast_accum,
        )
    return scattered


def _low_contention_all_gather(tensor: Tensor, group_name: str) -> Tensor:
    with below_autograd():
        result: Tensor = _tandem.low_contention_all_gather(tensor, group_name)
    return result


def _low_contention_reduce_scatter(tensor: Tensor, reduce_op: str, group_name: str) -> Tensor:
    with below_autograd():
        result: Tensor = _tandem.low_contention_reduce_scatter(tensor, reduce_op, group_name)
    return result


def _one_shot_all_reduce(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    with below_autograd():
        result: Tensor = _tandem.all_reduce(input, reduce_op, group_name)
    return result


def _all_reduce_out(input: Tensor, reduce_op: str, group_name: str, out: Tensor) -> Tensor:
    with below_autograd():
        _tandem.all_reduce.out(input, reduce_op, group_name, out=out)
    return out


def _two_shot_all_reduce_out(input: Tensor, reduce_op: str, group_name: str, output: Tensor) -> Tensor:
    return _all_reduce_out(input, reduce_op, group_name, output)


# Theirs reduce a copy of `local_input` in `symm_buffer`, since theirs need symmetric inputs.
def _one_shot_all_reduce_copy(symm_buffer: Tensor, local_input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return _one_shot_all_reduce(local_input, reduce_op, group_name)


def _one_shot_all_reduce_copy_out(symm_buffer: Tensor, local_input: Tensor, reduce_op: str, group_name: str, out: Tensor) -> Tensor:
    return _all_reduce_out(local_input, reduce_op, group_name, out)


def _reduce_scatter_out(input: Tensor, group_name: str, split_last_dim: bool, output: Tensor) -> Tensor:
    # Without split_last_dim the input is one row of elements.
    source, into = (input, output) if split_last_dim else (input.reshape(-1), output.view(-1))
    with below_autograd():
        _tandem.reduce_scatter.out(source, "sum", -1, group_name, out=into)
    return output


def _all_gather_out(input: Tensor, group_name: str, out: Tensor) -> Tensor:
    with below_autograd():
        _tandem.all_gather.out(input, 0, group_name, out=out)
    return out


_KERNELS: dict[str, Callable[..., Any]] = {
    "fused_all_gather_matmul": _fused_all_gather_matmul,
    "fused_all_gather_scaled_matmul": _fused_all_gather_scaled_matmul,
    "fused_matmul_reduce_scatter": _fused_matmul_reduce_scatter,
    "fused_scaled_matmul_reduce_scatter": _fused_scaled_matmul_reduce_scatter,
    "_low_contention_all_gather": _low_contention_all_gather,
    "_low_contention_reduce_scatter": _low_contention_reduce_scatter,
    "one_shot_all_reduce": _one_shot_all_reduce,
    "one_shot_all_reduce_out": _all_reduce_out,
    "one_shot_all_reduce_copy": _one_shot_all_reduce_copy,
    "one_shot_all_reduce_copy_out": _one_shot_all_reduce_copy_out,
    "two_shot_all_reduce_out": _two_shot_all_reduce_out,
    "two_shot_all_reduce_": _in_place.all_reduce_in_place,
    "multimem_all_reduce_": _in_place.all_reduce_in_place,
    "multimem_one_shot_all_reduce": _one_shot_all_reduce,
    "multimem_one_shot_all_reduce_out": _all_reduce_out,
    "multimem_all_gather_out": _all_gather_out,
    "reduce_scatter_out": _reduce_scatter_out,
}


def _theirs(name: str, device: str) -> Callable[..., Any] | None:
    """symm_mem's own kernel of the op, which stays callable when another is in its place; None: it has none for the device."""
    try:
        found: Any = torch.library.get_kernel(f"symm_mem::{name}", device)  # type: ignore[attr-defined,unused-ignore]
    except RuntimeError:
        return None
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device))
    return lambda *given, **named: found.call_boxed(keys, *given, **named)


_library: Any = None
_lock = threading.Lock()


def install(collectives: bool = True) -> None:
    """Puts Tandem behind torch.distributed's collectives, and behind symm_mem's fused products and collectives.

    collectives: takes all_reduce, all_gather, reduce_scatter, all_to_all and broadcast of process groups: of dist.*, functional
    collectives, DTensor, FSDP2 and DDP. Which calls are taken depends on operation, type, bytes and group alone; report() has the
    counts, and the reason for the others, which the process group's own backend runs as before. False: symm_mem's alone.

    symm_mem's ops need no symmetric memory then. Where Tandem declines one, symm_mem's own kernel serves it, with one warning; on
    the CPU, which has none, torch's collectives and products.

    A second call changes nothing but `collectives`. Call it alike on all ranks: a rank without it would not come to the meeting of
    a group's first collective.
    """
    global _library
    with _lock:
        if _library is None:
            _library = _put_behind_symm_mem()
        _distributed.take_all(collectives)


def _put_behind_symm_mem() -> Any:
    library = new_library("symm_mem", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "Overriding a previously registered kernel"
        for name, kernel in _KERNELS.items():
            for device in ("CPU", "CUDA"):
                theirs = _theirs(name, device)
                chosen = kernel if theirs is None else with_theirs(kernel, theirs)
                library.impl(name, chosen, device, allow_override=True)
    return library


def installed() -> bool:
    """Whether install() is in force."""
    return _library is not None


def uninstall() -> None:
    """Puts back what was there before install(). Does nothing if that is not in force."""
    global _library
    with _lock:
        if _library is not None:
            _library._destroy()
            _library = None
            _distributed.take_all(False)
