"""Gradients of torch.ops.tandem.

They are those of the sum of all ranks' losses, as for torch's functional collectives: the gradient of a gather is a
reduce-scatter, that of a reduce-scatter a gather, and that of an all-reduce an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _native
from ._private import apply_of, group_size, resolve
from ._schemas import LIB
from ._shapes import as_rows

Tensor = torch.Tensor
_ops = torch.ops.tandem


def _rows_from(tensor: Tensor, dim: int) -> Tensor:
    """The same with dimension `dim` outermost, so that gathering along it gathers rows."""
    return as_rows(tensor.movedim(dim, 0))


def _bias_grad(grad: Tensor, dtype: torch.dtype | None) -> Tensor | None:
    return None if dtype is None else grad.sum(dim=tuple(range(grad.dim() - 1))).to(dtype)


def _given(ctx: Any, *grads: Any) -> Any:
    """Without those of trailing arguments that the call left out: they are no inputs."""
    return grads[: len(ctx.needs_input_grad)]


def _check_differentiable(reduce_op: str) -> None:
    if reduce_op not in ("sum", "avg"):
        raise RuntimeError(f"a reduction by {reduce_op!r} has no gradient; sums and averages have one")


def _mean(grad: Tensor, reduce_op: str, group_name: str) -> Tensor:
    _check_differentiable(reduce_op)
    return grad if reduce_op == "sum" else grad / group_size(group_name)


def _all_reduce_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.reduce_op, ctx.group_name = inputs


def _all_reduce_backward(ctx: Any, grad: Tensor) -> Any:
    _check_differentiable(ctx.reduce_op)
    return _ops.all_reduce(grad, ctx.reduce_op, ctx.group_name), None, None


def _all_gather_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.dim, ctx.group_name = inputs


def _all_gather_backward(ctx: Any, grad: Tensor) -> Any:
    return _ops.reduce_scatter(grad, "sum", ctx.dim, ctx.group_name), None, None


def _reduce_scatter_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.reduce_op, ctx.dim, ctx.group_name = inputs


def _reduce_scatter_backward(ctx: Any, grad: Tensor) -> Any:
    return _ops.all_gather(_mean(grad, ctx.reduce_op, ctx.group_name), ctx.dim, ctx.group_name), None, None, None


def _low_contention_gather_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.group_name = inputs


def _low_contention_gather_backward(ctx: Any, grad: Tensor) -> Any:
    return _ops.low_contention_reduce_scatter(grad, "sum", ctx.group_name), None


def _low_contention_scatter_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.reduce_op, ctx.group_name = inputs


def _low_contention_scatter_backward(ctx: Any, grad: Tensor) -> Any:
    return _ops.low_contention_all_gather(_mean(grad, ctx.reduce_op, ctx.group_name), ctx.group_name), None, None


def _all_to_all_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.dim, ctx.group_name = inputs


def _all_to_all_backward(ctx: Any, grad: Tensor) -> Any:
    return _ops.all_to_all(grad, ctx.dim, ctx.group_name), None, None


def _broadcast_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.root, ctx.group_name = inputs


def _broadcast_backward(ctx: Any, grad: Tensor) -> Any:
    total = _ops.all_reduce(grad, "sum", ctx.group_name)
    rank = resolve(ctx.group_name).rank()
    return (total if rank == ctx.root else torch.zeros_like(total)), None, None


def _weight_grad(a: Tensor, grad: Tensor, b: Tensor) -> Tensor:
    """a.t() @ grad, laid out as b. A weight's gradient that lies otherwise is copied when it is accumulated."""
    return (grad.t() @ a).t() if b.t().is_contiguous() else a.t() @ grad


def _side_by_side(bs: list[Tensor]) -> Tensor:
    """The columns of all, without transposing any."""
    if all(b.t().is_contiguous() for b in bs):
        return torch.cat([b.t() for b in bs]).t()
    return torch.cat(bs, dim=1)


def _all_gather_matmul_setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    a, bs, ctx.dim, ctx.group_name, biases = inputs
    whole, _ = output
    # A gathered A that only the backward uses has no gradient: zeros would be scattered for nothing.
    ctx.set_materialize_grads(False)
    ctx.dim %= a.dim()
    # A gathered A that is there anyway is kept; else the backward gathers A again, behind the product for the weights.
    ctx.gathered = whole is not None
    ctx.count, ctx.bias_dtypes = len(bs), None if biases is None else [bias.dtype for bias in biases]
    ctx.save_for_backward(whole if ctx.gathered else a, *bs)


def _all_gather_matmul_backward(ctx: Any, grad_whole: Tensor | None, grads: list[Tensor | None]) -> Any:
    need_a, need_bs = ctx.needs_input_grad[:2]
    grad_a, grad_bs, grad_biases = _all_gather_matmul_grads(ctx, need_a, need_bs, grad_whole, grads)
    return _given(ctx, grad_a, grad_bs, None, None, grad_biases)


def _all_gather_matmul_grads(
    ctx: Any, need_a: bool, need_bs: Sequence[bool], grad_whole: Tensor | None, grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None] | None]:
    """The gradients of A, of each B and of each bias."""
    a, *bs = ctx.saved_tensors
    used = [(grad, b) for grad, b in zip(grads, bs, strict=True) if grad is not None]
    grad_a: Tensor | None = None
    if need_a:
        if len(used) == 1:
            grad_a = _ops.matmul_reduce_scatter(used[0][0], used[0][1].t(), "sum", ctx.dim, ctx.group_name)
        elif used:  # one product with all columns
            grad_a = _ops.matmul_reduce_scatter(
                torch.cat([grad for grad, _ in used], dim=-1),
                _side_by_side([b for _, b in used]).t(),
                "sum",
                ctx.dim,
                ctx.group_name,
            )
        if grad_whole is not None:
            part = _ops.reduce_scatter(grad_whole, "sum", ctx.dim, ctx.group_name)
            grad_a = part if grad_a is None else grad_a + part
    grad_bs: list[Tensor | None] = [None] * ctx.count
    wanted = [i for i, grad in enumerate(grads) if grad is not None and need_bs[i]]
    if wanted and ctx.gathered:
        for i in wanted:
            grad_bs[i] = _weight_grad(as_rows(a), as_rows(grads[i]), bs[i])  # type: ignore[arg-type]
    elif wanted:
        # Gathering along K of the weights' product: its chunks are multiplied as they come.
        if ctx.dim == a.dim() - 1:
            shard, along, by_rows = as_rows(a).t(), 0, [as_rows(grads[i]) for i in wanted]  # type: ignore[arg-type]
        else:
            shard, along = _rows_from(a, ctx.dim).t(), 1
            by_rows = [_rows_from(grads[i], ctx.dim) for i in wanted]  # type: ignore[arg-type]
        _, products = _ops.all_gather_matmul(shard, by_rows, along, ctx.group_name, return_A=False)
        for i, product in zip(wanted, products, strict=True):
            grad_bs[i] = product
    grad_biases = ctx.bias_dtypes and [
        None if grad is None else _bias_grad(grad, dtype) for grad, dtype in zip(grads, ctx.bias_dtypes, strict=True)
    ]
    return grad_a, grad_bs, grad_biases


def _matmul_reduce_scatter_setup(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, ctx.reduce_op, ctx.dim, ctx.group_name, bias = inputs
    ctx.dim %= a.dim()
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b)


def _matmul_reduce_scatter_backward(ctx: Any, grad: Tensor) -> Any:
    a, b = ctx.saved_tensors
    need_a, need_b = ctx.needs_input_grad[:2]
    grad_bias = _bias_grad(grad, ctx.bias_dtype)
    if grad_bias is not None and ctx.dim == a.dim() - 1:  # a rank applies its scattered columns' bias
        own = grad_bias.shape[0] * resolve(ctx.group_name).rank()
        grad_bias = torch.nn.functional.pad(grad_bias, (own, b.shape[1] - own - grad_bias.shape[0]))
    mean = _mean(grad, ctx.reduce_op, ctx.group_name)
    whole: Tensor | None = None
    grad_a: Tensor | None = None
    if need_a:
        whole, (grad_a,) = _ops.all_gather_matmul(mean, [b.t()], ctx.dim, ctx.group_name, return_A=need_b)
    elif need_b:
        whole = _ops.all_gather(mean, ctx.dim, ctx.group_name)
    grad_b = None if whole is None else _weight_grad(as_rows(a), as_rows(whole), b)
    return _given(ctx, grad_a, grad_b, None, None, None, grad_bias)


def _matmul_all_reduce_setup(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, ctx.reduce_op, ctx.group_name, bias = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b)


def _matmul_all_reduce_backward(ctx: Any, grad: Tensor) -> Any:
    a, b = ctx.saved_tensors
    need_a, need_b = ctx.needs_input_grad[:2]
    grad_bias = _bias_grad(grad, ctx.bias_dtype)
    if not (need_a or need_b):
        return _given(ctx, None, None, None, None, grad_bias)
    total = _ops.all_reduce(grad, ctx.reduce_op, ctx.group_name)
    grad_b = _weight_grad(as_rows(a), as_rows(total), b) if need_b else None
    return _given(ctx, total @ b.t() if need_a else None, grad_b, None, None, grad_bias)


# Calls from Python that record a gradient come to these sooner than to what register_autograd() makes, which serves all others.


def _recorder(name: str, setup: Callable[..., None], backward: Callable[..., Any]) -> Callable[..., Any]:
    operation = getattr(_ops, name)

    class Recorded(torch.autograd.Function):
        """The op with its formula, of arguments in the schema's order."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = operation(*inputs)
            setup(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(ctx, *grads)

    apply, arguments = apply_of(Recorded), list(operation.default._schema.arguments)
    count, defaults = len(arguments), [argument.default_value for argument in arguments]
    required = sum(not argument.has_default_value() for argument in arguments)
    names = [argument.name for argument in arguments]

    def record(*given: Any, **named: Any) -> Any:
        if named or len(given) < required:
            given = (*given, *_in_order(name, names[len(given) :], required - len(given), defaults[len(given) :], named))
        elif len(given) < count:
            given = (*given, *defaults[len(given) :])
        return apply(*given)

    return record


def _in_order(op: str, names: list[str], required: int, defaults: list[Any], named: dict[str, Any]) -> list[Any]:
    """The arguments with these names: the first `required` are in `named`, the others have defaults."""
    wrong = (set(names[: max(0, required)]) - set(named)) | (set(named) - set(names))
    if wrong:
        raise TypeError(f"tandem::{op}: {', '.join(sorted(wrong))} is missing, given twice, or no argument of it")
    return [named.get(one, default) for one, default in zip(names, defaults, strict=True)]


class _RecordedAllGatherMatmul(torch.autograd.Function):
    """all_gather_matmul: its lists lie flat, since gradients are those of single arguments."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, dim: int, group_name: str, return_a: bool, count: int, *tensors: Tensor) -> Any:
        bs, biases = tensors[:count], list(tensors[count:]) or None
        output = _ops.all_gather_matmul(a, bs, dim, group_name, biases, return_A=return_a)
        _all_gather_matmul_setup(ctx, (a, bs, dim, group_name, biases), {}, output)
        whole, products = output
        return (*products, whole) if return_a else tuple(products)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        need_a, _, _, _, _, *needs = ctx.needs_input_grad
        grad_whole = grads[ctx.count] if ctx.gathered else None
        grad_a, grad_bs, grad_biases = _all_gather_matmul_grads(ctx, need_a, needs[: ctx.count], grad_whole, grads[: ctx.count])
        return grad_a, None, None, None, None, *grad_bs, *(grad_biases or ())


_apply_all_gather_matmul = apply_of(_RecordedAllGatherMatmul)


def _record_all_gather_matmul(
    A: Tensor,
    Bs: Sequence[Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[Tensor] | None = None,
    *,
    return_A: bool = True,
) -> tuple[Tensor | None, list[Tensor]]:
    outputs = _apply_all_gather_matmul(A, gather_dim, group_name, return_A, len(Bs), *Bs, *(biases or ()))
    return (outputs[-1], list(outputs[:-1])) if return_A else (None, list(outputs))


_FORMULAS: dict[str, tuple[Callable[..., None], Callable[..., Any]]] = {
    "all_reduce": (_all_reduce_setup, _all_reduce_backward),
    "all_gather": (_all_gather_setup, _all_gather_backward),
    "reduce_scatter": (_reduce_scatter_setup, _reduce_scatter_backward),
    "all_to_all": (_all_to_all_setup, _all_to_all_backward),
    "broadcast": (_broadcast_setup, _broadcast_backward),
    "low_contention_all_gather": (_low_contention_gather_setup, _low_contention_gather_backward),
    "low_contention_reduce_scatter": (_low_contention_scatter_setup, _low_contention_scatter_backward),
    "matmul_reduce_scatter": (_matmul_reduce_scatter_setup, _matmul_reduce_scatter_backward),
    "matmul_all_reduce": (_matmul_all_reduce_setup, _matmul_all_reduce_backward),
}
for _name, (_setup, _backward) in _FORMULAS.items():
    torch.library.register_autograd(f"tandem::{_name}", _backward, setup_context=_setup, lib=LIB)
    _native.recorders[_name] = _recorder(_name, _setup, _backward)
torch.library.register_autograd(
    "tandem::all_gather_matmul", _all_gather_matmul_backward, setup_context=_all_gather_matmul_setup, lib=LIB
)
_native.recorders["all_gather_matmul"] = _record_all_gather_matmul
