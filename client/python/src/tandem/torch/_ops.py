"""Kernels and fake kernels of torch.ops.tandem, for CPU tensors on the host backend and CUDA tensors on the CUDA backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _fallback as fallback, _native
from ._prepared import Call, Slot
from ._private import below_autograd, group_size, plan_output
from ._schemas import LIB
from ._serving import of_the_pass, run
from ._shapes import REDUCTIONS, check_product, check_reduce_op, check_sum_op, dim_of, gathered, scattered

Tensor = torch.Tensor
_tandem: Any = torch.ops.tandem
# The kernel of each op's default overload.
PYTHON_KERNELS: dict[str, Callable[..., Any]] = {}


def _form(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.dtype)


def solid(tensor: Tensor) -> Tensor:
    """The tensor without elements that share memory, which a launch could not describe."""
    strides = tensor.stride()
    if 0 not in strides:
        return tensor
    shared = any(step == 0 and extent > 1 for step, extent in zip(strides, tensor.shape, strict=True))
    return tensor.contiguous() if shared else tensor


def new_like(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def run_collective(
    op: str,
    tensor: Tensor,
    out: Tensor,
    group_name: str,
    key: tuple[Any, ...],
    options: dict[str, Any],
    otherwise: Callable[[], Tensor],
) -> Tensor:
    """Fills `out` by the operation `op` of one tensor. key: what its plan depends on beside that tensor."""

    def make() -> Call:
        return Call(op, (Slot("input", solid(tensor)), Slot("output", out, True)), options)

    if run(op, group_name, tensor.device, (tensor.shape, tensor.dtype, *key), make) is None:
        out.copy_(otherwise())
    return out


# Each op is a rule for its result's shape, and a kernel that fills a tensor of that shape.


def all_reduce_shape(input: Tensor, reduce_op: str, group_name: str) -> list[int]:
    check_reduce_op(reduce_op, input)
    return list(input.shape)


def all_reduce(out: Tensor, input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return run_collective(
        "all_reduce",
        input,
        out,
        group_name,
        (reduce_op,),
        {"reduce_op": REDUCTIONS[reduce_op]},
        lambda: fallback.all_reduce(input, reduce_op, group_name),
    )


def all_gather_shape(input: Tensor, gather_dim: int, group_name: str) -> list[int]:
    return gathered(input.shape, dim_of(gather_dim, input, "gather_dim"), group_size(group_name))


def all_gather(out: Tensor, input: Tensor, gather_dim: int, group_name: str) -> Tensor:
    dim = gather_dim % input.dim()
    return run_collective(
        "all_gather", input, out, group_name, (dim,), {"dim": dim}, lambda: fallback.all_gather(input, dim, group_name)
    )


def reduce_scatter_shape(input: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> list[int]:
    check_reduce_op(reduce_op, input)
    return scattered(input.shape, dim_of(scatter_dim, input, "scatter_dim"), group_size(group_name))


def reduce_scatter(out: Tensor, input: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    dim = scatter_dim % input.dim()
    return run_collective(
        "reduce_scatter",
        input,
        out,
        group_name,
        (reduce_op, dim),
        {"reduce_op": REDUCTIONS[reduce_op], "dim": dim},
        lambda: fallback.reduce_scatter(input, reduce_op, dim, group_name),
    )


def all_to_all_shape(input: Tensor, dim: int, group_name: str) -> list[int]:
    scattered(input.shape, dim_of(dim, input, "dim"), group_size(group_name))
    return list(input.shape)


def all_to_all(out: Tensor, input: Tensor, dim: int, group_name: str) -> Tensor:
    along = dim % input.dim()
    return run_collective(
        "all_to_all", input, out, group_name, (along,), {"dim": along}, lambda: fallback.all_to_all(input, along, group_name)
    )


def broadcast_shape(input: Tensor, root: int, group_name: str) -> list[int]:
    if not 0 <= root < group_size(group_name):
        raise ValueError(f"root is {root}, the group has {group_size(group_name)} ranks")
    return list(input.shape)


def broadcast(out: Tensor, input: Tensor, root: int, group_name: str) -> Tensor:
    return run_collective(
        "broadcast", input, out, group_name, (root,), {"root": root}, lambda: fallback.broadcast(input, root, group_name)
    )


def matmul_reduce_scatter_shape(
    A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str, bias: Tensor | None = None
) -> list[int]:
    check_sum_op(reduce_op, A)
    dim = dim_of(scatter_dim, A, "scatter_dim")
    if B.dim() != 2:
        raise ValueError(f"B has {B.dim()} dimensions, not 2")
    shape = scattered([*A.shape[:-1], B.shape[1]], dim, group_size(group_name))
    check_product(A, B, A.shape[-1], bias)
    return shape


def matmul_reduce_scatter(
    out: Tensor, A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str, bias: Tensor | None = None
) -> Tensor:
    dim = scatter_dim % A.dim()
    return _product(
        "matmul_reduce_scatter",
        out,
        A,
        B,
        bias,
        group_name,
        (reduce_op, dim),
        {"reduce_op": reduce_op, "dim": dim},
        lambda: fallback.matmul_reduce_scatter(A, B, reduce_op, dim, group_name, bias),
    )


def matmul_all_reduce_shape(A: Tensor, B: Tensor, reduce_op: str, group_name: str, bias: Tensor | None = None) -> list[int]:
    check_sum_op(reduce_op, A)
    check_product(A, B, A.shape[-1], bias)
    return [*A.shape[:-1], B.shape[1]]


def matmul_all_reduce(out: Tensor, A: Tensor, B: Tensor, reduce_op: str, group_name: str, bias: Tensor | None = None) -> Tensor:
    return _product(
        "matmul_all_reduce",
        out,
        A,
        B,
        bias,
        group_name,
        (reduce_op,),
        {"reduce_op": reduce_op},
        lambda: fallback.matmul_all_reduce(A, B, reduce_op, group_name, bias),
    )


def _product(
    op: str,
    out: Tensor,
    A: Tensor,
    B: Tensor,
    bias: Tensor | None,
    group_name: str,
    key: tuple[Any, ...],
    options: dict[str, Any],
    otherwise: Callable[[], Tensor],
) -> Tensor:
    def make() -> Call:
        slots = [Slot("a", solid(A)), Slot("b", solid(B)), Slot("c", out, True)]
        if bias is not None:
            slots.append(Slot("bias", solid(bias)))
        return Call(op, slots, options)

    if run(op, group_name, A.device, (A.shape, A.dtype, B.shape, _form(bias), *key), make) is None:
        out.copy_(otherwise())
    return out


def _each(biases: Sequence[Tensor] | None, count: int) -> list[Tensor | None]:
    return list(biases) if biases else [None] * count


def all_gather_matmul_shapes(
    A: Tensor, Bs: Sequence[Tensor], gather_dim: int, group_name: str, biases: Sequence[Tensor] | None = None
) -> tuple[list[int], list[list[int]]]:
    """The shapes of the gathered A and of the products."""
    dim = dim_of(gather_dim, A, "gather_dim")
    whole = gathered(A.shape, dim, group_size(group_name))
    if not Bs:
        raise ValueError("all_gather_matmul needs at least one B")
    if biases and len(biases) != len(Bs):
        raise ValueError(f"{len(Bs)} Bs with {len(biases)} biases")
    for b, bias in zip(Bs, _each(biases, len(Bs)), strict=True):
        check_product(A, b, whole[-1], bias)
    return whole, [[*whole[:-1], b.shape[1]] for b in Bs]


def all_gather_matmul(
    A: Tensor,
    Bs: Sequence[Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[Tensor] | None = None,
    *,
    return_A: bool = True,
) -> tuple[Tensor | None, list[Tensor]]:
    whole_shape, shapes = all_gather_matmul_shapes(A, Bs, gather_dim, group_name, biases)
    whole = new_like(A, whole_shape) if return_A else None
    products = [new_like(A, shape) for shape in shapes]
    return run_all_gather_matmul(A, Bs, gather_dim % A.dim(), group_name, biases, whole, products)


def run_all_gather_matmul(
    A: Tensor,
    Bs: Sequence[Tensor],
    dim: int,
    group_name: str,
    biases: Sequence[Tensor] | None,
    whole: Tensor | None,
    products: list[Tensor],
) -> tuple[Tensor | None, list[Tensor]]:
    """Fills `whole` and `products`, of any strides."""

    def make() -> Call:
        slots = [Slot("a", solid(A)), *(Slot("b", solid(b)) for b in Bs), *(Slot("c", c, True) for c in products)]
        slots += [Slot("bias", solid(bias)) for bias in biases or ()]
        if whole is not None:
            slots.append(Slot("gathered_a", whole, True))
        return Call("all_gather_matmul", slots, {"dim": dim})

    key = (A.shape, A.dtype, tuple(b.shape for b in Bs), tuple(map(_form, biases or ())), dim, whole is not None)
    if run("all_gather_matmul", group_name, A.device, key, make) is None:
        full, results = fallback.all_gather_matmul(A, Bs, dim, group_name, _each(biases, len(Bs)))
        if whole is not None:
            whole.copy_(full)
        for c, result in zip(products, results, strict=True):
            c.copy_(result)
    return whole, products


def check_out(out: Tensor, wanted: Sequence[int], like: Tensor, what: str = "out", dtype: torch.dtype | None = None) -> None:
    """Whether a given output has the result's form: by default the type of `like`."""
    kind = dtype or like.dtype
    if list(out.shape) != list(wanted) or out.dtype != kind or out.device != like.device:
        raise ValueError(
            f"{what} is {out.dtype} {list(out.shape)} on {out.device}; it must be {kind} {list(wanted)} on {like.device}"
        )


def all_gather_matmul_into(
    A: Tensor,
    Bs: Sequence[Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[Tensor] | None = None,
    *,
    gathered: Sequence[Tensor],
    outs: Sequence[Tensor],
) -> None:
    whole_shape, shapes = all_gather_matmul_shapes(A, Bs, gather_dim, group_name, biases)
    if len(outs) != len(shapes) or len(gathered) > 1:
        raise ValueError(f"{len(outs)} outs for {len(shapes)} products, and {len(gathered)} for the gathered A")
    for out, shape in zip(outs, shapes, strict=True):
        check_out(out, shape, A, "a product's out")
    for out in gathered:
        check_out(out, whole_shape, A, "gathered")
    whole = gathered[0] if gathered else None
    run_all_gather_matmul(A, Bs, gather_dim % A.dim(), group_name, biases, whole, list(outs))


def _fake_all_gather_matmul_into(
    A: Tensor,
    Bs: Sequence[Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[Tensor] | None = None,
    *,
    gathered: Sequence[Tensor],
    outs: Sequence[Tensor],
) -> None:
    all_gather_matmul_shapes(A, Bs, gather_dim, group_name, biases)


def _fake_all_gather_matmul(
    A: Tensor,
    Bs: Sequence[Tensor],
    gather_dim: int,
    group_name: str,
    biases: Sequence[Tensor] | None = None,
    *,
    return_A: bool = True,
) -> tuple[Tensor | None, list[Tensor]]:
    whole, shapes = all_gather_matmul_shapes(A, Bs, gather_dim, group_name, biases)
    return (A.new_empty(whole) if return_A else None), [A.new_empty(shape) for shape in shapes]


def refuse_gradients(name: str, overload: str) -> None:
    """Makes an overload without a formula raise where a gradient would get lost."""
    full = name if overload == "default" else f"{name}.{overload}"

    def kernel(*given: Any, **named: Any) -> Any:
        tensors = [one for value in (*given, *named.values()) for one in (value if isinstance(value, (list, tuple)) else (value,))]
        if torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in tensors):
            raise RuntimeError(f"tandem::{full} has no gradients: detach its arguments")
        with below_autograd():
            return getattr(getattr(torch.ops.tandem, name), overload)(*given, **named)

    LIB.impl(full, kernel, "Autograd")


_ran: set[str] = set()
_on_first_run: list[Callable[[str], None]] = []


def on_first_run(function: Callable[[str], None]) -> None:
    """Calls the function with the name of each compiled graph whose ops run for the first time in this process."""
    _on_first_run.append(function)
    for graph in list(_ran):
        function(graph)


def _noted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run_noted(*given: Any, graph: str, **named: Any) -> Any:
        if graph not in _ran:
            for function in _on_first_run:  # which may raise, and so does the next run then
                function(graph)
            _ran.add(graph)
        with of_the_pass():
            return kernel(*given, **named)

    return run_noted


def register_kernel(name: str, overload: str, kernel: Callable[..., Any], nothing: Callable[[], Any] | None = None) -> None:
    """The kernel of an overload for CPU and CUDA tensors; `nothing`: result to return on failure, for ops with a C++
    kernel. That kernel comes before this one, which gets the calls that it cannot serve."""
    full = name if overload == "default" else f"{name}.{overload}"
    if overload == "default":
        PYTHON_KERNELS[name] = kernel
    if _native.kernels is not None and nothing is not None:
        full, kernel = "_" + full, _native.hidden(kernel, nothing)
    for device in ("CPU", "CUDA"):
        LIB.impl(full, kernel, device)


def register_noted(
    name: str, overload: str, kernel: Callable[..., Any], fake: Callable[..., Any], nothing: Callable[[], Any] | None = None
) -> None:
    """The overload for the compile pass, behind gradients: its graph is noted, and it is the op's kernel."""

    def fake_noted(*given: Any, graph: str, **named: Any) -> Any:
        return fake(*given, **named)

    refuse_gradients(name, overload)
    register_kernel(name, overload, _noted(kernel), nothing)
    torch.library.register_fake(f"tandem::{name}.{overload}", fake_noted, lib=LIB)


def plan_outputs(name: str) -> None:
    """Lets Inductor plan the result of an op with one result that a program calls. Not where a tensor follows other arguments, as a
    bias does, and not of overloads with a graph's name: torch 2.15 hands all tensors on first, and named arguments by position.
    Not of an op that writes an argument either: torch takes functional ops only."""
    operation = getattr(_tandem, name)
    tensors = ["Tensor" in str(argument.type) for argument in operation.default._schema.arguments]
    if tensors == sorted(tensors, reverse=True) and not operation.default._schema.is_mutable:
        plan_output(operation.default, operation.out)


def no_tensor() -> Tensor:
    """The result of a call that has failed."""
    return torch.empty(0)


def no_result() -> None:
    """That of a call without results."""


def register_op(
    name: str, shape: Callable[..., list[int]], kernel: Callable[..., Tensor], dtype: torch.dtype | None = None
) -> None:
    """An op with one result, and its overloads: a rule for the result's shape, and a kernel that fills a tensor of that shape.
    dtype: the result's, if not the first argument's."""

    def functional(first: Tensor, *rest: Any, **named: Any) -> Tensor:
        return kernel(new_like(first, shape(first, *rest, **named), dtype), first, *rest, **named)

    def into(first: Tensor, *rest: Any, out: Tensor, **named: Any) -> None:
        check_out(out, shape(first, *rest, **named), first, dtype=dtype)
        kernel(out, first, *rest, **named)

    def fake(first: Tensor, *rest: Any, **named: Any) -> Tensor:
        return first.new_empty(shape(first, *rest, **named), dtype=dtype or first.dtype)

    def fake_into(first: Tensor, *rest: Any, out: Tensor, **named: Any) -> None:
        shape(first, *rest, **named)

    refuse_gradients(name, "out")
    register_kernel(name, "default", functional, no_tensor)
    register_kernel(name, "out", into, no_result)
    torch.library.register_fake(f"tandem::{name}", fake, lib=LIB)
    torch.library.register_fake(f"tandem::{name}.out", fake_into, lib=LIB)
    register_noted(name, "noted", functional, fake, no_tensor)
    register_noted(name, "noted_out", into, fake_into, no_result)
    plan_outputs(name)


register_op("all_reduce", all_reduce_shape, all_reduce)
register_op("all_gather", all_gather_shape, all_gather)
register_op("reduce_scatter", reduce_scatter_shape, reduce_scatter)
register_op("all_to_all", all_to_all_shape, all_to_all)
register_op("broadcast", broadcast_shape, broadcast)
register_op("matmul_reduce_scatter", matmul_reduce_scatter_shape, matmul_reduce_scatter)
register_op("matmul_all_reduce", matmul_all_reduce_shape, matmul_all_reduce)
register_kernel("all_gather_matmul", "default", all_gather_matmul, list)
torch.library.register_fake("tandem::all_gather_matmul", _fake_all_gather_matmul, lib=LIB)
register_noted("all_gather_matmul", "noted", all_gather_matmul, _fake_all_gather_matmul, list)
refuse_gradients("all_gather_matmul", "out")
register_kernel("all_gather_matmul", "out", all_gather_matmul_into, no_result)
torch.library.register_fake("tandem::all_gather_matmul.out", _fake_all_gather_matmul_into, lib=LIB)
register_noted("all_gather_matmul", "noted_out", all_gather_matmul_into, _fake_all_gather_matmul_into, no_result)
if _native.kernels is not None:
    LIB.impl("_wait", _native.hidden(_native.wait_on, no_result), "CompositeExplicitAutograd")
