"""The functions, for use inside jax.shard_map(). Each has the values, the types and the gradients of its jax.lax counterpart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .. import errors
from ..plan import Operand
from . import _config, _report
from ._axis_group import Request, Served
from ._library import TARGET
from ._meshes import Axes, group_of, lock

__all__ = [
    "FLOATS",
    "AxisName",
    "all_gather",
    "all_reduce",
    "axes_of",
    "back_of_sum",
    "call",
    "leading",
    "reduce_scatter",
    "run",
    "serve",
    "unify",
    "vary",
    "varying",
]

AxisName = str | Sequence[str]
FLOATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_TYPES = {**FLOATS, "int32": "i32", "int64": "i64", "uint8": "u8"}


def axes_of(axis_name: AxisName) -> Axes:
    """The names as a tuple."""
    return (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)


def varying(x: Any) -> frozenset[str]:
    """The axes over which the value varies by its type; none where shard_map() does not check that (check_vma=False)."""
    return frozenset(jax.typeof(x).mat.varying)


def vary(x: Any, axes: Any) -> Any:
    """The value with a type that varies over these axes too."""
    missing = tuple(axis for axis in axes if axis not in varying(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def unify(arrays: Sequence[Any], axes: Any) -> list[Any]:
    """The arrays with one type: over which axes they vary."""
    union = set(axes).union(*map(varying, arrays))
    ordered = [axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in union]
    return [vary(one, ordered) for one in arrays]


def serve(
    name: str, axes: Axes, arrays: Sequence[Any], types: dict[str, str], request: Callable[[int, Any], Request]
) -> Served | None:
    """The plan for a call, or None where jax.lax has to run it. All processes come to the same answer: operation, shapes, types and
    axes decide. request: from the number of ranks and Tandem's type."""
    with lock:
        reason, served = "", None
        kinds = {str(one.dtype) for one in arrays}
        if any(one.size == 0 for one in arrays):
            reason = "it has no elements"
        elif len(kinds) > 1:
            reason = "its operands have several types"
        elif not kinds <= types.keys():
            reason = f"Tandem does not run it on {kinds.pop()}"
        else:
            group = group_of(axes)
            answer = group if isinstance(group, str) else group.serve(request(group.group.world_size, types[kinds.pop()]))
            if isinstance(answer, str):
                reason = answer
            else:
                served = answer
        _report.count(name, sum(one.size * one.dtype.itemsize for one in arrays), reason)
    if reason and _config.current().on_unavailable == "error":
        raise errors.Unimplemented(f"tandem.jax.{name}: {reason}")
    return served


def call(served: Served, results: Any, *arrays: Any) -> Any:
    """The launch. results: types by jax.eval_shape()."""
    launch = jax.ffi.ffi_call(TARGET, results, vmap_method="sequential")
    return launch(*arrays, plan=np.int64(served.plan), rows=np.int64(served.rows))


def leading(x: Any) -> int:
    """The product of all extents but the last."""
    return math.prod(x.shape[:-1])


def run(served: Served | None, plain: Callable[..., Any], *arrays: Any) -> Any:
    """The launch, or where there is none `plain`, whose results have the same shapes and types."""
    return plain(*arrays) if served is None else call(served, jax.eval_shape(plain, *arrays), *arrays)


# ---- Collectives, along a first dimension of the ranks. Flat: each element is a row.

_PLAIN: dict[str, Callable[[Axes, Any], Any]] = {
    "all_reduce": lambda axes, x: lax.psum(x, axes),
    "all_gather": lambda axes, x: lax.all_gather(x, axes),
    "reduce_scatter": lambda axes, x: lax.psum_scatter(x, axes),
}
_BACK = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


def _request(op: str, count: int) -> Callable[[int, Any], Request]:
    def make(world: int, dtype: Any) -> Request:
        def operands(rows: int) -> list[Operand]:
            results = {"all_gather": rows * world, "reduce_scatter": rows // world}.get(op, rows)
            return [Operand("input", dtype, (rows,)), Operand("output", dtype, (results,))]

        return Request(op, operands, count, True)

    return make


def _serve(name: str, op: str, axes: Axes, x: Any) -> Served | None:
    return serve(name, axes, [x], _TYPES, _request(op, x.size))


def _run(op: str, served: Served | None, axes: Axes, x: Any) -> Any:
    return run(served, partial(_PLAIN[op], axes), x)


# Backward functions call these functions, so that they have gradients themselves.


def back_of_sum(name: str, axes: Axes, typed: bool, cotangent: Any) -> Any:
    """The cotangent of a sum's input. With types the sum's value is one for all ranks; without, each rank has a part of its
    cotangent."""
    if typed and not set(axes) & varying(cotangent):
        return vary(cotangent, axes)
    cotangent = vary(cotangent, axes)
    total = _sum(_serve(name, "all_reduce", axes, cotangent), axes, typed, cotangent)
    return vary(total, axes) if typed else total


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _all_reduce(served: Served, axes: Axes, typed: bool, x: Any) -> Any:
    return _run("all_reduce", served, axes, x)


def _all_reduce_forward(served: Served, axes: Axes, typed: bool, x: Any) -> Any:
    return _all_reduce(served, axes, typed, x), None


def _all_reduce_backward(served: Served, axes: Axes, typed: bool, _: Any, cotangent: Any) -> Any:
    return (back_of_sum("all_reduce backward", axes, typed, cotangent),)


_all_reduce.defvjp(_all_reduce_forward, _all_reduce_backward)


def _sum(served: Served | None, axes: Axes, typed: bool, x: Any) -> Any:
    return lax.psum(x, axes) if served is None else _all_reduce(served, axes, typed, x)


def all_reduce(x: Array, axis_name: AxisName) -> Array:
    """The sum over the axis, as jax.lax.psum() of one array. Runs by that where Tandem cannot serve the call; see report()."""
    axes = axes_of(axis_name)
    x = vary(jnp.asarray(x), axes)
    return _sum(_serve("all_reduce", "all_reduce", axes, x), axes, bool(varying(x)), x)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _exchange(op: str, served: Served, axes: Axes, x: Any) -> Any:
    """A gather or a scatter: each is the other's gradient."""
    return _run(op, served, axes, x)


def _exchange_forward(op: str, served: Served, axes: Axes, x: Any) -> Any:
    return _exchange(op, served, axes, x), None


def _exchange_backward(op: str, served: Served, axes: Axes, _: Any, cotangent: Any) -> Any:
    back = _BACK[op]
    plan = _serve(f"{op} backward", back, axes, cotangent)
    return (_PLAIN[back](axes, cotangent) if plan is None else _exchange(back, plan, axes, cotangent),)


_exchange.defvjp(_exchange_forward, _exchange_backward)


def all_gather(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """The ranks' arrays side by side, as jax.lax.all_gather(): along a new dimension `axis`, or with `tiled` along that one.

    Runs by jax.lax where Tandem cannot serve the call; see report().
    """
    axes = axes_of(axis_name)
    x = vary(jnp.asarray(x), axes)
    dim = axis % (x.ndim if tiled else x.ndim + 1)
    served = _serve("all_gather", "all_gather", axes, x)
    if served is None:
        return lax.all_gather(x, axes, axis=dim, tiled=tiled)
    whole = jnp.moveaxis(_exchange("all_gather", served, axes, x), 0, dim)
    return whole.reshape(*x.shape[:dim], -1, *x.shape[dim + 1 :]) if tiled else whole


def reduce_scatter(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """This rank's part of the sum over the axis, as jax.lax.psum_scatter(). Runs by that where Tandem cannot serve the call; see
    report()."""
    axes = axes_of(axis_name)
    x = vary(jnp.asarray(x), axes)
    dim, world = scatter_dimension % max(1, x.ndim), int(lax.axis_size(axes))
    if x.ndim == 0:
        return lax.psum_scatter(x, axes, tiled=tiled)  # it raises
    extent = x.shape[dim]
    if extent % world or not (tiled or extent == world):
        return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=tiled)  # it raises
    served = _serve("reduce_scatter", "reduce_scatter", axes, x)
    if served is None:
        return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=tiled)
    parts = x.reshape(*x.shape[:dim], world, extent // world, *x.shape[dim + 1 :])
    part = _exchange("reduce_scatter", served, axes, jnp.moveaxis(parts, dim, 0))
    return part if tiled else jnp.squeeze(part, dim)
