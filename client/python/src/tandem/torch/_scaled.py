"""Products of fp8 operands with scales: all_gather_scaled_matmul, scaled_matmul_reduce_scatter, scaled_matmul_all_reduce.

Scales are f32: one element; one a row of A or a column of B; or one a block of 128 columns (docs/requests.md). They have no
gradients: an op whose arguments require one raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _fallback as fallback
from ._ops import (
    check_out,
    new_like,
    no_result,
    no_tensor,
    plan_outputs,
    refuse_gradients,
    register_kernel,
    register_noted,
    solid,
)
from ._prepared import Call, Slot
from ._private import group_size
from ._schemas import LIB
from ._serving import run
from ._shapes import check_product, check_sum_op, dim_of, gathered, scattered

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem

# c10's ScalarType, in which a list of types arrives.
_SCALAR_TYPES = {
    0: torch.uint8,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}


def dtype_of(given: Any, otherwise: torch.dtype) -> torch.dtype:
    """The result's type, from None, a type or c10's number of one."""
    if given is None:
        return otherwise
    if isinstance(given, torch.dtype):
        return given
    if given not in _SCALAR_TYPES:
        raise ValueError(f"scalar type {given} is none that a product can have")
    return _SCALAR_TYPES[given]


def _scale(scale: Tensor) -> Tensor:
    """A scale of one element has one dimension in Tandem."""
    return scale.reshape(1) if scale.numel() == 1 else solid(scale)


def _a_scale(scale: Tensor, a: Tensor) -> Tensor:
    # Shaped as one row's scale it is one: of a row of one rank. Else one element is for the whole of A.
    by_row = list(scale.shape[:-1]) == list(a.shape[:-1]) and scale.dim() > 0 and scale.shape[-1] == 1
    return solid(scale) if by_row else _scale(scale)


def _gathered_scales(a_scale: Tensor, a: Tensor, b_scales: Sequence[Tensor], bs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Scales of a gather. One for all of a rank's A goes with its rows, since ranks may have other ones. Kernels take scales by
    rows and by columns, or neither."""
    scale, others = _a_scale(a_scale, a), [_scale(one) for one in b_scales]
    if list(scale.shape) != [1] or a.dim() < 2:
        return scale, others
    rows = scale.expand([*a.shape[:-1], 1]).contiguous()
    return rows, [one.expand(1, b.shape[1]).contiguous() if one.numel() == 1 else one for one, b in zip(others, bs, strict=True)]


def _one_each(values: Sequence[Tensor | None], default: float, like: Sequence[Tensor]) -> list[Tensor]:
    """One tensor for each, or none at all: what Tandem takes."""
    if all(value is None for value in values):
        return []
    return [torch.full_like(other, default) if value is None else value for value, other in zip(values, like, strict=True)]


def _form(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


def _gather_shapes(
    A: Tensor, Bs: Sequence[Tensor], B_scales: Sequence[Tensor], gather_dim: int, group_name: str, lists: Sequence[Sequence[Any]]
) -> tuple[list[int], list[list[int]]]:
    whole = gathered(A.shape, dim_of(gather_dim, A, "gather_dim"), group_size(group_name))
    if not Bs or any(len(values) != len(Bs) for values in (B_scales, *lists)):
        raise ValueError("B_scales, biases, result_scales, out_dtypes, use_fast_accum and outs have one element for each B")
    for b in Bs:
        if b.dim() != 2 or b.shape[0] != whole[-1]:
            raise ValueError(f"B is {list(b.shape)}; it needs 2 dimensions and {whole[-1]} rows")
    return whole, [[*whole[:-1], b.shape[1]] for b in Bs]


def all_gather_scaled_matmul(
    A: Tensor,
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
    """(gathered A, products). Arguments as those of symm_mem.fused_all_gather_scaled_matmul."""
    lists = (biases, result_scales, out_dtypes, use_fast_accum)
    whole_shape, shapes = _gather_shapes(A, Bs, B_scales, gather_dim, group_name, lists)
    whole = new_like(A, whole_shape)
    products = [new_like(A, shape, dtype_of(kind, A.dtype)) for shape, kind in zip(shapes, out_dtypes, strict=True)]
    run_all_gather_scaled_matmul(
        A, Bs, A_scale, B_scales, gather_dim % A.dim(), group_name, biases, result_scales, use_fast_accum, whole, products
    )
    return whole, products


def run_all_gather_scaled_matmul(
    A: Tensor,
    Bs: Sequence[Tensor],
    A_scale: Tensor,
    B_scales: Sequence[Tensor],
    dim: int,
    group_name: str,
    biases: Sequence[Tensor | None],
    result_scales: Sequence[Tensor | None],
    use_fast_accum: Sequence[bool],
    whole: Tensor,
    products: Sequence[Tensor],
) -> None:
    """Fills `whole` and `products`, of any strides."""
    a_scale, b_scales = _gathered_scales(A_scale, A, B_scales, Bs)
    ones = [new_like(A, [1], torch.float32) for _ in Bs]
    rows = [c.new_empty(c.shape[-1:]) for c in products]
    given_biases, given_scales = _one_each(biases, 0.0, rows), _one_each(result_scales, 1.0, ones)
    given_scales = [scale.reshape(1) for scale in given_scales]

    def make() -> Call:
        slots = [
            Slot("a", solid(A)),
            *(Slot("b", solid(b)) for b in Bs),
            *(Slot("c", c, True) for c in products),
            Slot("scale_a", a_scale),
            *(Slot("scale_b", scale) for scale in b_scales),
            *(Slot("bias", solid(bias)) for bias in given_biases),
            *(Slot("result_scale", one) for one in given_scales),
            Slot("gathered_a", whole, True),
        ]
        return Call("all_gather_matmul", slots, {"dim": dim, "fast_accumulation": all(use_fast_accum)})

    key = (
        A.shape,
        A.dtype,
        _form(Bs),
        _form(products),
        a_scale.shape,
        _form(b_scales),
        _form(given_biases),
        len(given_scales),
        dim,
        all(use_fast_accum),
    )
    if run("all_gather_scaled_matmul", group_name, A.device, key, make) is None:
        full, results = fallback.all_gather_scaled_matmul(A, Bs, a_scale, b_scales, dim, group_name, given_biases, given_scales)
        whole.copy_(full)
        for c, result in zip(products, results, strict=True):
            c.copy_(result)


def all_gather_scaled_matmul_into(
    A: Tensor,
    Bs: Sequence[Tensor],
    A_scale: Tensor,
    B_scales: Sequence[Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[Tensor | None],
    result_scales: Sequence[Tensor | None],
    out_dtypes: Sequence[Any],
    use_fast_accum: Sequence[bool],
    *,
    gathered: Tensor,
    outs: Sequence[Tensor],
) -> None:
    """The same into given tensors."""
    lists = (biases, result_scales, out_dtypes, use_fast_accum, outs)
    whole_shape, shapes = _gather_shapes(A, Bs, B_scales, gather_dim, group_name, lists)
    check_out(gathered, whole_shape, A, "gathered")
    for out, shape, kind in zip(outs, shapes, out_dtypes, strict=True):
        check_out(out, shape, A, "a product's out", dtype_of(kind, A.dtype))
    dim = gather_dim % A.dim()
    run_all_gather_scaled_matmul(
        A, Bs, A_scale, B_scales, dim, group_name, biases, result_scales, use_fast_accum, gathered, list(outs)
    )


def _fake_all_gather(
    A: Tensor,
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
    lists = (biases, result_scales, out_dtypes, use_fast_accum)
    whole, shapes = _gather_shapes(A, Bs, B_scales, gather_dim, group_name, lists)
    return A.new_empty(whole), [
        A.new_empty(shape, dtype=dtype_of(kind, A.dtype)) for shape, kind in zip(shapes, out_dtypes, strict=True)
    ]


def _scatter_shape(A: Tensor, B: Tensor, orig_scatter_dim: int, group_name: str, output_shape: Sequence[int] | None) -> list[int]:
    """The shape of the whole product, which may have more dimensions than A, scattered."""
    check_product(A, B, A.shape[-1], None)
    product = [*(A.shape if output_shape is None else output_shape)[:-1], B.shape[1]]
    if not -len(product) <= orig_scatter_dim < len(product):
        raise ValueError(f"orig_scatter_dim is {orig_scatter_dim}, the product has {len(product)} dimensions")
    return scattered(product, orig_scatter_dim % len(product), group_size(group_name))


def _scatter_form(
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
) -> tuple[list[int], torch.dtype]:
    check_sum_op(reduce_op, A)
    return _scatter_shape(A, B, orig_scatter_dim, group_name, output_shape), dtype_of(out_dtype, A.dtype)


def scaled_matmul_reduce_scatter(
    out: Tensor,
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
    """This rank's chunk of the sum. Arguments as those of symm_mem.fused_scaled_matmul_reduce_scatter; a bias is added once,
    to the sum."""
    lead = (A.shape if output_shape is None else output_shape)[:-1]
    dim = orig_scatter_dim % (len(lead) + 1)
    # The product has the output's dimensions; A is seen with these.
    a = A if output_shape is None else A.reshape(*lead, A.shape[-1])
    a_scale = _a_scale(A_scale, A)
    if a_scale.numel() > 1 and output_shape is not None:
        a_scale = a_scale.reshape(*lead, a_scale.shape[-1])
    return _reduced(
        "matmul_reduce_scatter",
        "scaled_matmul_reduce_scatter",
        out,
        a,
        B,
        a_scale,
        B_scale,
        bias,
        result_scale,
        group_name,
        {"reduce_op": reduce_op, "dim": dim, "fast_accumulation": use_fast_accum},
    )


def _reduce_form(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    reduce_op: str,
    group_name: str,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> tuple[list[int], torch.dtype]:
    check_sum_op(reduce_op, A)
    check_product(A, B, A.shape[-1], bias)
    return [*A.shape[:-1], B.shape[1]], dtype_of(out_dtype, A.dtype)


def scaled_matmul_all_reduce(
    out: Tensor,
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    reduce_op: str,
    group_name: str,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """The sum of all ranks' products; bias and result scale are equal on all ranks and applied once."""
    return _reduced(
        "matmul_all_reduce",
        "scaled_matmul_all_reduce",
        out,
        A,
        B,
        _a_scale(A_scale, A),
        B_scale,
        bias,
        result_scale,
        group_name,
        {"reduce_op": reduce_op, "fast_accumulation": use_fast_accum},
    )


def _reduced(
    op: str,
    name: str,
    out: Tensor,
    A: Tensor,
    B: Tensor,
    a_scale: Tensor,
    B_scale: Tensor,
    bias: Tensor | None,
    result_scale: Tensor | None,
    group_name: str,
    options: dict[str, Any],
) -> Tensor:
    b_scale = _scale(B_scale)
    one = None if result_scale is None else result_scale.reshape(1)

    def make() -> Call:
        slots = [Slot("a", solid(A)), Slot("b", solid(B)), Slot("c", out, True), Slot("scale_a", a_scale), Slot("scale_b", b_scale)]
        if bias is not None:
            slots.append(Slot("bias", solid(bias)))
        if one is not None:
            slots.append(Slot("result_scale", one))
        return Call(op, slots, options)

    key = (_form([A, B, a_scale, b_scale, out]), None if bias is None else bias.dtype, one is None, tuple(options.items()))
    if run(name, group_name, A.device, key, make) is None:
        out.copy_(fallback.scaled_reduced(A, B, a_scale, b_scale, options["reduce_op"], options.get("dim"), group_name, bias, one))
    return out


def _register(
    name: str, kernel: Callable[..., Any], fake: Callable[..., Any], nothing: Callable[[], Any], into: Any, fake_into: Any
) -> None:
    refuse_gradients(name, "default")
    refuse_gradients(name, "out")
    register_kernel(name, "default", kernel, nothing)
    register_kernel(name, "out", into, no_result)
    torch.library.register_fake(f"tandem::{name}", fake, lib=LIB)
    torch.library.register_fake(f"tandem::{name}.out", fake_into, lib=LIB)
    register_noted(name, "noted", kernel, fake, nothing)
    register_noted(name, "noted_out", into, fake_into, no_result)


def _register_reduced(name: str, form: Callable[..., tuple[list[int], torch.dtype]], fill: Callable[..., Tensor]) -> None:
    """An op with one result: the rule for its shape and type, and the kernel that fills a tensor of these."""

    def functional(A: Tensor, *rest: Any, **named: Any) -> Tensor:
        shape, dtype = form(A, *rest, **named)
        return fill(new_like(A, shape, dtype), A, *rest, **named)

    def into(A: Tensor, *rest: Any, out: Tensor, **named: Any) -> None:
        shape, dtype = form(A, *rest, **named)
        check_out(out, shape, A, "out", dtype)
        fill(out, A, *rest, **named)

    def fake(A: Tensor, *rest: Any, **named: Any) -> Tensor:
        shape, dtype = form(A, *rest, **named)
        return A.new_empty(shape, dtype=dtype)

    def fake_into(A: Tensor, *rest: Any, out: Tensor, **named: Any) -> None:
        form(A, *rest, **named)

    _register(name, functional, fake, no_tensor, into, fake_into)
    plan_outputs(name)


def _fake_gather_into(*given: Any, gathered: Tensor, outs: Sequence[Tensor], **named: Any) -> None:
    _fake_all_gather(*given, **named)


_register(
    "all_gather_scaled_matmul", all_gather_scaled_matmul, _fake_all_gather, list, all_gather_scaled_matmul_into, _fake_gather_into
)
_register_reduced("scaled_matmul_reduce_scatter", _scatter_form, scaled_matmul_reduce_scatter)
_register_reduced("scaled_matmul_all_reduce", _reduce_form, scaled_matmul_all_reduce)
