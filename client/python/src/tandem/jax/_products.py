"""Matrix products fused with a collective, for use inside jax.shard_map()."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..plan import Operand
from ._axis_group import Request, Served
from ._meshes import Axes
from ._ops import FLOATS, AxisName, axes_of, back_of_sum, leading, run, serve, unify, varying

__all__ = ["all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"]

# x is [M, K]. w is [K, N], or [N, K] where `across` asks for its transpose.


def _request(op: str, x: Any, w: Any, across: bool) -> Callable[[int, Any], Request]:
    rows, inner = x.shape
    columns = w.shape[0] if across else w.shape[1]

    def make(world: int, dtype: Any) -> Request:
        def operands(rows: int) -> list[Operand]:
            strides = (1, inner) if across else None
            factors = [Operand("a", dtype, (rows, inner)), Operand("b", dtype, (inner, columns), strides)]
            if op == "all_gather_matmul":
                whole = rows * world
                return [*factors, Operand("c", dtype, (whole, columns)), Operand("gathered_a", dtype, (whole, inner))]
            return [*factors, Operand("c", dtype, (rows // world if op == "matmul_reduce_scatter" else rows, columns))]

        return Request(op, operands, rows, False)

    return make


def _dot(x: Any, w: Any, across: bool) -> Any:
    return x @ (w.T if across else w)


def _plain_gather(axes: Axes, across: bool, x: Any, w: Any) -> tuple[Any, Any]:
    gathered = lax.all_gather(x, axes, tiled=True)
    return _dot(gathered, w, across), gathered


def _plain_scatter(axes: Axes, across: bool, x: Any, w: Any) -> Any:
    return lax.psum_scatter(_dot(x, w, across), axes, tiled=True)


def _plain_sum(axes: Axes, x: Any, w: Any) -> Any:
    return lax.psum(x @ w, axes)


def _serve(name: str, op: str, axes: Axes, x: Any, w: Any, across: bool = False) -> Served | None:
    return serve(name, axes, [x, w], FLOATS, _request(op, x, w, across))


def _factor(across: bool, x: Any, cotangent: Any) -> Any:
    """The cotangent of w."""
    return cotangent.T @ x if across else x.T @ cotangent


# Backward functions call these functions, so that they have gradients themselves.


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _all_gather_matmul(served: Served, axes: Axes, across: bool, x: Any, w: Any) -> tuple[Any, Any]:
    return tuple(run(served, partial(_plain_gather, axes, across), x, w))


def _all_gather_matmul_forward(served: Served, axes: Axes, across: bool, x: Any, w: Any) -> Any:
    product, gathered = _all_gather_matmul(served, axes, across, x, w)
    return (product, gathered), (gathered, w)


def _all_gather_matmul_backward(served: Served, axes: Axes, across: bool, kept: Any, cotangents: Any) -> Any:
    (gathered, w), (of_product, of_gathered) = kept, cotangents
    of_x = _scatter("all_gather_matmul backward", axes, not across, of_product, w)
    # XLA drops the sum where nobody uses the gathered x.
    of_x = of_x + lax.psum_scatter(of_gathered, axes, tiled=True)
    return of_x, _factor(across, gathered, of_product)


_all_gather_matmul.defvjp(_all_gather_matmul_forward, _all_gather_matmul_backward)


def _gather(name: str, axes: Axes, across: bool, x: Any, w: Any) -> tuple[Any, Any]:
    """The product, and the gathered x."""
    served = _serve(name, "all_gather_matmul", axes, x, w, across)
    return _plain_gather(axes, across, x, w) if served is None else _all_gather_matmul(served, axes, across, x, w)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _matmul_reduce_scatter(served: Served, axes: Axes, across: bool, x: Any, w: Any) -> Any:
    return run(served, partial(_plain_scatter, axes, across), x, w)


def _matmul_reduce_scatter_forward(served: Served, axes: Axes, across: bool, x: Any, w: Any) -> Any:
    return _matmul_reduce_scatter(served, axes, across, x, w), (x, w)


def _matmul_reduce_scatter_backward(served: Served, axes: Axes, across: bool, kept: Any, cotangent: Any) -> Any:
    x, w = kept
    of_x, gathered = _gather("matmul_reduce_scatter backward", axes, not across, cotangent, w)
    return of_x, _factor(across, x, gathered)


_matmul_reduce_scatter.defvjp(_matmul_reduce_scatter_forward, _matmul_reduce_scatter_backward)


def _scatter(name: str, axes: Axes, across: bool, x: Any, w: Any) -> Any:
    served = _serve(name, "matmul_reduce_scatter", axes, x, w, across)
    return _plain_scatter(axes, across, x, w) if served is None else _matmul_reduce_scatter(served, axes, across, x, w)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _matmul_all_reduce(served: Served, axes: Axes, typed: bool, x: Any, w: Any) -> Any:
    return run(served, partial(_plain_sum, axes), x, w)


def _matmul_all_reduce_forward(served: Served, axes: Axes, typed: bool, x: Any, w: Any) -> Any:
    return _matmul_all_reduce(served, axes, typed, x, w), (x, w)


def _matmul_all_reduce_backward(served: Served, axes: Axes, typed: bool, kept: Any, cotangent: Any) -> Any:
    x, w = kept
    cotangent = back_of_sum("matmul_all_reduce backward", axes, typed, cotangent)
    return _dot(cotangent, w, True), _factor(False, x, cotangent)


_matmul_all_reduce.defvjp(_matmul_all_reduce_forward, _matmul_all_reduce_backward)


def _factors(x: Array, w: Array, axes: Axes) -> tuple[Any, Any]:
    """x with its leading dimensions as one, and w, of one type."""
    x, w = jnp.asarray(x), jnp.asarray(w)
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(f"x is [..., M, K] and w [K, N]; they are {list(x.shape)} and {list(w.shape)}")
    flat, factor = unify([x.reshape(leading(x), x.shape[-1]), w], axes)
    return flat, factor


def all_gather_matmul(x: Array, w: Array, axis_name: AxisName) -> Array:
    """jax.lax.all_gather(x, axis_name, tiled=True) @ w, fused.

    x: [M, ..., K] of each rank; w: [K, N], each rank's own. The result is [ranks * M, ..., N]. Runs by jax.lax where Tandem cannot
    serve the call; see report().
    """
    axes = axes_of(axis_name)
    flat, factor = _factors(x, w, axes)
    product, _ = _gather("all_gather_matmul", axes, False, flat, factor)
    return product.reshape(-1, *x.shape[1:-1], factor.shape[1])


def matmul_reduce_scatter(x: Array, w: Array, axis_name: AxisName) -> Array:
    """jax.lax.psum_scatter(x @ w, axis_name, tiled=True), fused.

    x: [M, ..., K] of each rank, whose M the ranks divide; w: [K, N], each rank's own. The result is [M / ranks, ..., N]. Runs by
    jax.lax where Tandem cannot serve the call; see report().
    """
    axes = axes_of(axis_name)
    flat, factor = _factors(x, w, axes)
    world = int(lax.axis_size(axes))
    if x.shape[0] % world:
        raise ValueError(f"x has {x.shape[0]} rows, which do not divide by {world} ranks")
    part = _scatter("matmul_reduce_scatter", axes, False, flat, factor)
    return part.reshape(x.shape[0] // world, *x.shape[1:-1], factor.shape[1])


def matmul_all_reduce(x: Array, w: Array, axis_name: AxisName) -> Array:
    """jax.lax.psum(x @ w, axis_name), fused.

    x: [..., M, K] of each rank; w: [K, N], each rank's own. Runs by jax.lax where Tandem cannot serve the call; see report().
    """
    axes = axes_of(axis_name)
    flat, factor = _factors(x, w, axes)
    served = _serve("matmul_all_reduce", "matmul_all_reduce", axes, flat, factor)
    if served is None:
        total = _plain_sum(axes, flat, factor)
    else:
        total = _matmul_all_reduce(served, axes, bool(varying(flat)), flat, factor)
    return total.reshape(*x.shape[:-1], factor.shape[1])
