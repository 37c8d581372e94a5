"""An all-reduce with the RMSNorm behind it, for use inside jax.shard_map()."""

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
from ._ops import FLOATS, AxisName, axes_of, back_of_sum, call, leading, serve, unify, vary, varying

__all__ = ["all_reduce_rms_norm"]


def _norm(hidden: Any, weight: Any, eps: float) -> Any:
    """In float32, rounded once."""
    wide = hidden.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * weight.astype(jnp.float32)).astype(hidden.dtype)


def _plain(axes: Axes, eps: float, x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    hidden = lax.psum(x, axes) + residual
    return _norm(hidden, weight, eps), hidden


def _request(x: Any, eps: float) -> Callable[[int, Any], Request]:
    width = x.shape[-1]

    def make(world: int, dtype: Any) -> Request:
        def operands(rows: int) -> list[Operand]:
            roles = ("input", "residual", "norm_weight", "output", "residual_output")
            return [Operand(role, dtype, (width,) if role == "norm_weight" else (rows, width)) for role in roles]

        return Request("all_reduce", operands, leading(x), False, eps)

    return make


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _fused(served: Served, axes: Axes, eps: float, typed: bool, x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    results = jax.eval_shape(partial(_plain, axes, eps), x, residual, weight)
    return tuple(call(served, results, *unify([x, residual, weight], axes)))


def _fused_forward(served: Served, axes: Axes, eps: float, typed: bool, x: Any, residual: Any, weight: Any) -> Any:
    normed, hidden = _fused(served, axes, eps, typed, x, residual, weight)
    return (normed, hidden), (hidden, weight)


def _fused_backward(served: Served, axes: Axes, eps: float, typed: bool, kept: Any, cotangents: Any) -> Any:
    hidden, weight = kept
    of_normed, of_hidden = cotangents
    _, pull = jax.vjp(lambda hidden, weight: _norm(hidden, weight, eps), hidden, weight)
    through, of_weight = pull(of_normed)
    of_sum = of_hidden + through
    return back_of_sum("all_reduce_rms_norm backward", axes, typed, of_sum), of_sum, of_weight


_fused.defvjp(_fused_forward, _fused_backward)


def all_reduce_rms_norm(x: Array, residual: Array, weight: Array, eps: float, axis_name: AxisName) -> tuple[Array, Array]:
    """The RMSNorm of the sum over the axis plus a residual, and that sum with the residual, in one launch:

        hidden = jax.lax.psum(x, axis_name) + residual
        return hidden / sqrt(mean(hidden ** 2, -1) + eps) * weight, hidden

    x, residual: [..., N], weight: [N], of one type; the norm is computed in float32. Runs by jax.lax where Tandem cannot serve the
    call; see report().
    """
    axes = axes_of(axis_name)
    x, residual, weight = jnp.asarray(x), jnp.asarray(residual), jnp.asarray(weight)
    if x.ndim < 1 or residual.shape != x.shape or weight.shape != x.shape[-1:]:
        shapes = [list(one.shape) for one in (x, residual, weight)]
        raise ValueError(f"x and residual are [..., N] and weight [N]; they are {', '.join(map(str, shapes))}")
    x = vary(x, axes)
    served = serve("all_reduce_rms_norm", axes, [x, residual, weight], FLOATS, _request(x, float(eps)))
    if served is None:
        return _plain(axes, eps, x, residual, weight)
    # Over other axes all vary alike, so that gradients are summed over these by jax.
    others = set[str]().union(*map(varying, (x, residual, weight))) - set(axes)
    ordered = [axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in others]
    x, residual, weight = (vary(one, ordered) for one in (x, residual, weight))
    normed, hidden = _fused(served, axes, float(eps), bool(varying(x)), x, residual, weight)
    return normed, hidden
