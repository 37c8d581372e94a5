"""A rank of the checks of tandem.jax: values, gradients and outcomes against jax.lax's own, each check a line of JSON.

rank_checks.py RANK WORLD PORT [CHECK ...]
"""

import faulthandler
import json
import os
import sys
import traceback
import warnings
from functools import partial

import jax
import numpy as np
import programs
import tandem
import tandem.jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from programs import PATIENCE, put, same

CHECKS = []


def check(function):
    """Marks a check, which gets the mesh and fails by an exception."""
    CHECKS.append(function)
    return function


def both(mesh, function, plain, in_specs, out_specs, arguments, wanted, tolerance=1e-5):
    """The function and its jax.lax counterpart under jit, with their gradients, with types of shard_map() and without."""
    for typed in (True, False):
        results = []
        for body in (function, plain):
            mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=typed)

            def loss(*arguments, mapped=mapped):
                out = mapped(*arguments)
                return sum(jnp.sum(jnp.sin(one.astype(jnp.float32))) for one in jax.tree.leaves(out)), out

            step = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(arguments))), has_aux=True))
            (_, out), gradients = step(*arguments)
            results.append((out, gradients))
        same(results[0], results[1], tolerance)
    rows = {row.op: row.reason for row in tandem.jax.report().rows}
    for name in wanted:
        assert name in rows and not rows[name], (name, rows)


def numbers(mesh, seed, shape, spec, dtype="float32"):
    return put(mesh, np.random.default_rng(seed).standard_normal(shape).astype(np.float32), spec).astype(dtype)


@check
def collectives(mesh):
    world = mesh.size
    x = numbers(mesh, 0, (world * 4, 6), P("tp"))
    psum = lambda x: lax.psum(x, "tp")  # noqa: E731
    both(mesh, lambda x: tandem.jax.all_reduce(x, "tp"), psum, P("tp"), P(), [x], ["all_reduce"])
    for axis, tiled in ((0, True), (1, False), (-1, True)):
        options = {"axis": axis, "tiled": tiled}
        gathered = partial(tandem.jax.all_gather, axis_name="tp", **options)
        plain = partial(lax.all_gather, axis_name="tp", **options)
        both(mesh, gathered, plain, P("tp"), P("tp"), [x], ["all_gather", "all_gather backward"])
    y = numbers(mesh, 1, (world * world, 2 * world), P("tp"))
    for dim, tiled in ((0, True), (1, True), (0, False)):
        options = {"scatter_dimension": dim, "tiled": tiled}
        scattered = partial(tandem.jax.reduce_scatter, axis_name="tp", **options)
        plain = partial(lax.psum_scatter, axis_name="tp", **options)
        both(mesh, scattered, plain, P("tp"), P("tp"), [y], ["reduce_scatter", "reduce_scatter backward"])


@check
def products(mesh):
    world = mesh.size
    x, w = numbers(mesh, 2, (world * 4, 2, 8), P("tp")), numbers(mesh, 3, (8, world * 5), P(None, "tp"))
    both(
        mesh,
        lambda x, w: tandem.jax.all_gather_matmul(x, w, "tp"),
        lambda x, w: lax.all_gather(x, "tp", tiled=True) @ w,
        (P("tp"), P(None, "tp")),
        P(None, None, "tp"),
        [x, w],
        ["all_gather_matmul", "all_gather_matmul backward"],
    )
    x, w = numbers(mesh, 4, (world * 3, 2, world * 8), P(None, None, "tp")), numbers(mesh, 5, (world * 8, 5), P("tp"))
    both(
        mesh,
        lambda x, w: tandem.jax.matmul_reduce_scatter(x, w, "tp"),
        lambda x, w: lax.psum_scatter(x @ w, "tp", tiled=True),
        (P(None, None, "tp"), P("tp")),
        P("tp"),
        [x, w],
        ["matmul_reduce_scatter", "matmul_reduce_scatter backward"],
    )
    both(
        mesh,
        lambda x, w: tandem.jax.matmul_all_reduce(x, w, "tp"),
        lambda x, w: lax.psum(x @ w, "tp"),
        (P(None, None, "tp"), P("tp")),
        P(),
        [x, w],
        ["matmul_all_reduce"],
    )
    # Each rank multiplies by the same matrix.
    both(
        mesh,
        lambda x, w: tandem.jax.all_gather_matmul(x, w, "tp"),
        lambda x, w: lax.all_gather(x, "tp", tiled=True) @ w,
        (P("tp"), P()),
        P("tp"),
        [numbers(mesh, 6, (world * 4, 8), P("tp")), numbers(mesh, 7, (8, 5), P())],
        ["all_gather_matmul"],
    )


def plain_norm(x, residual, weight, eps=1e-5):
    hidden = lax.psum(x, "tp") + residual
    return hidden * lax.rsqrt(jnp.mean(hidden * hidden, -1, keepdims=True) + eps) * weight, hidden


@check
def norms(mesh):
    world = mesh.size
    x, residual = numbers(mesh, 8, (world, 6, 16), P("tp")), numbers(mesh, 9, (1, 6, 16), P())
    weight = numbers(mesh, 10, (16,), P())
    fused = lambda x, residual, weight: tandem.jax.all_reduce_rms_norm(x, residual, weight, 1e-5, "tp")  # noqa: E731
    both(mesh, fused, plain_norm, (P("tp"), P(), P()), (P(), P()), [x, residual, weight], ["all_reduce_rms_norm"])
    # Each rank's own residual and weights.
    own = [numbers(mesh, 11, (world, 6, 16), P("tp")), numbers(mesh, 12, (world * 16,), P("tp"))]
    specs = (P("tp"), P("tp"), P("tp"))
    both(mesh, fused, plain_norm, specs, (P("tp"), P("tp")), [x, *own], ["all_reduce_rms_norm backward"])


@check
def second_derivatives(mesh):
    """Gradients of what gradients are made of, by each function and its counterpart, with types and without."""
    world, eps = mesh.size, 1e-5
    x, w = numbers(mesh, 50, (world * 4, 2, 8), P("tp")), numbers(mesh, 51, (8, world * 5), P(None, "tp"))
    deep, tall = (
        numbers(mesh, 52, (world * 3, 2, world * 8), P(None, None, "tp")),
        numbers(mesh, 53, (world * 8, 5), P("tp")),
    )
    parts, residual = numbers(mesh, 54, (world, 6, 16), P("tp")), numbers(mesh, 55, (1, 6, 16), P())
    ours, plain = tandem.jax, lax
    cases = (
        (lambda x: ours.all_reduce(x, "tp"), lambda x: plain.psum(x, "tp"), P("tp"), P(), [x]),
        (lambda x: ours.all_gather(x, "tp"), lambda x: plain.all_gather(x, "tp"), P("tp"), P("tp"), [x]),
        (
            lambda x: ours.reduce_scatter(x, "tp", tiled=True),
            lambda x: plain.psum_scatter(x, "tp", tiled=True),
            P("tp"),
            P("tp"),
            [x],
        ),
        (
            lambda x, w: ours.all_gather_matmul(x, w, "tp"),
            lambda x, w: plain.all_gather(x, "tp", tiled=True) @ w,
            (P("tp"), P(None, "tp")),
            P(None, None, "tp"),
            [x, w],
        ),
        (
            lambda x, w: ours.matmul_reduce_scatter(x, w, "tp"),
            lambda x, w: plain.psum_scatter(x @ w, "tp", tiled=True),
            (P(None, None, "tp"), P("tp")),
            P("tp"),
            [deep, tall],
        ),
        (
            lambda x, w: ours.matmul_all_reduce(x, w, "tp"),
            lambda x, w: plain.psum(x @ w, "tp"),
            (P(None, None, "tp"), P("tp")),
            P(),
            [deep, tall],
        ),
        (
            lambda x, residual, weight: ours.all_reduce_rms_norm(x, residual, weight, eps, "tp"),
            plain_norm,
            (P("tp"), P(), P()),
            (P(), P()),
            [parts, residual, numbers(mesh, 56, (16,), P())],
        ),
    )
    for function, counterpart, in_specs, out_specs, arguments in cases:
        places = tuple(range(len(arguments)))
        for typed in (True, False):
            results = []
            for body in (function, counterpart):
                mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=typed)

                def loss(*arguments, mapped=mapped):
                    return sum(jnp.sum(jnp.sin(one)) for one in jax.tree.leaves(mapped(*arguments)))

                def steepness(*arguments, loss=loss):
                    return sum(jnp.sum(jnp.sin(one)) for one in jax.grad(loss, argnums=places)(*arguments))

                results.append(jax.jit(jax.grad(steepness, argnums=places))(*arguments))
            same(results[0], results[1], 1e-4)
    rows = {row.op: row.reason for row in tandem.jax.report().rows}
    for name in ("all_gather_matmul backward", "matmul_reduce_scatter backward", "matmul_all_reduce backward"):
        assert name in rows and not rows[name], (name, rows)


@check
def rows_never_seen(mesh):
    """A family serves any number of rows: no process meets another for them."""
    world = mesh.size

    def total(x, residual, weight):
        return tandem.jax.all_reduce(x, "tp"), tandem.jax.all_reduce_rms_norm(x, residual, weight, 1e-5, "tp")[0]

    step = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=(P("tp"), P(), P()), out_specs=P()))
    group = programs.group(mesh)
    prepared = None
    for rows in (5, 1, 3, 255, 17):
        x, residual = numbers(mesh, rows, (world * rows, 8), P("tp")), numbers(mesh, 1, (rows, 8), P())
        summed, normed = step(x, residual, jnp.ones(8))
        right = np.asarray(programs.whole(x)).reshape(world, rows, 8).sum(0)
        same(summed, right)
        hidden = right + np.asarray(programs.whole(residual))
        same(normed, hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-5))
        prepared = prepared or group._prepared
        assert group._prepared == prepared, "a new number of rows has prepared a plan"
    before = len(group._plans)
    big = numbers(mesh, 2, (world * 20000, 8), P("tp"))  # beyond the first bound
    total = jax.jit(jax.shard_map(lambda x: tandem.jax.all_reduce(x, "tp"), mesh=mesh, in_specs=P("tp"), out_specs=P()))
    same(total(big), np.asarray(programs.whole(big)).reshape(world, 20000, 8).sum(0), 1e-4)
    assert len(group._plans) == before + 1


@check
def layers(mesh):
    """A scan over layers, rematerialized, with its gradient."""
    world, count = mesh.size, 3
    x = numbers(mesh, 20, (world * 4, 8), P("tp"))
    up, down = (
        numbers(mesh, 21, (count, 8, world * 4), P(None, None, "tp")),
        numbers(mesh, 22, (count, world * 4, 8), P(None, "tp")),
    )

    def stack(gather, scatter, x, up, down):
        @jax.checkpoint
        def layer(x, weights):
            up, down = weights
            return x + scatter(jax.nn.gelu(gather(x, up)), down), jnp.float32(0)

        return lax.scan(layer, x, (up, down))[0]

    ours = partial(
        stack,
        partial(tandem.jax.all_gather_matmul, axis_name="tp"),
        partial(tandem.jax.matmul_reduce_scatter, axis_name="tp"),
    )
    plain = partial(
        stack,
        lambda x, w: lax.all_gather(x, "tp", tiled=True) @ w,
        lambda x, w: lax.psum_scatter(x @ w, "tp", tiled=True),
    )
    specs = (P("tp"), P(None, None, "tp"), P(None, "tp"))
    both(mesh, ours, plain, specs, P("tp"), [x, up, down], ["all_gather_matmul", "matmul_reduce_scatter"], 1e-4)


@check
def independent_calls(mesh):
    """Calls of one plan that do not depend on each other: XLA's CPU client runs them in any order."""
    world, count = mesh.size, 24
    arrays = [numbers(mesh, 30 + i, (world * 64, 32), P("tp")) for i in range(count)]

    def totals(*arrays):
        busy = [one @ one.T @ one * 1e-3 for one in arrays]
        return [tandem.jax.all_reduce(one, "tp") for one in busy]

    step = jax.jit(jax.shard_map(totals, mesh=mesh, in_specs=P("tp"), out_specs=P()))
    plain = jax.jit(
        jax.shard_map(
            lambda *arrays: [lax.psum(one @ one.T @ one * 1e-3, "tp") for one in arrays],
            mesh=mesh,
            in_specs=P("tp"),
            out_specs=P(),
        )
    )
    right = plain(*arrays)
    for _ in range(10):
        same(step(*arrays), right, 1e-4)


@check
def types(mesh):
    """Every type that Tandem has, and those that it has not, by jax.lax."""
    world = mesh.size
    for dtype in ("bfloat16", "float16", "int32", "uint8", "int8", "bool", "complex64"):
        x = put(mesh, (np.arange(world * 12).reshape(world * 2, 6) % 3), P("tp")).astype(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            ours = jax.jit(
                jax.shard_map(lambda x: tandem.jax.all_reduce(x, "tp"), mesh=mesh, in_specs=P("tp"), out_specs=P())
            )(x)
        right = jax.jit(jax.shard_map(lambda x: lax.psum(x, "tp"), mesh=mesh, in_specs=P("tp"), out_specs=P()))(x)
        assert ours.dtype == right.dtype, (ours.dtype, right.dtype)
        same(ours, right, 1e-2)
    reasons = {row.reason for row in tandem.jax.report().rows if row.op == "all_reduce"}
    assert {"Tandem does not run it on int8", "Tandem does not run it on complex64"} <= reasons, reasons


@check
def refusals(mesh):
    """What Tandem cannot serve runs by jax.lax, or raises where the program wants that; wrong shapes raise."""
    world = mesh.size
    x = numbers(mesh, 40, (world * 4, 8), P("tp"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        other = jax.sharding.Mesh(mesh.devices.reshape(1, -1), ("dp", "other"))
        f = jax.jit(
            jax.shard_map(lambda x: tandem.jax.all_reduce(x, "other"), mesh=other, in_specs=P("other"), out_specs=P())
        )
        same(f(x), np.asarray(programs.whole(x)).reshape(world, 4, 8).sum(0))
        f(x)
    texts = [str(one.message) for one in seen if "not attached" in str(one.message)]
    assert len(texts) == (1 if jax.process_index() == 0 else 0), texts
    tandem.jax.configure(on_unavailable="error")
    try:
        jax.shard_map(lambda x: tandem.jax.all_reduce(x, "tp"), mesh=mesh, in_specs=P("tp"), out_specs=P())(
            x.astype("int8")
        )
        raise AssertionError("no exception")
    except tandem.errors.Unimplemented as error:
        assert "int8" in str(error), error
    finally:
        tandem.jax.configure(on_unavailable="fallback")
    for wrong in (
        lambda x: tandem.jax.all_gather_matmul(x, jnp.ones((5, 3)), "tp"),
        lambda x: tandem.jax.matmul_reduce_scatter(x[: world + 1], jnp.ones((8, 3)), "tp"),
        lambda x: tandem.jax.all_reduce_rms_norm(x, x[:1], jnp.ones(8), 1e-5, "tp"),
    ):
        try:
            jax.shard_map(wrong, mesh=mesh, in_specs=P("tp"), out_specs=P("tp"))(x)
            raise AssertionError("no exception")
        except ValueError:
            pass
    swapped = jax.sharding.Mesh(mesh.devices[::-1], ("tp",))
    try:
        tandem.jax.attach(swapped)
        raise AssertionError("no exception")
    except ValueError as error:
        assert "other devices" in str(error), error


@check
def two_axes(mesh):
    """Groups side by side, and one of both axes."""
    if mesh.size < 4:
        return
    both_axes = jax.make_mesh((2, mesh.size // 2), ("dp", "mp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    assert tandem.jax.attach(both_axes) == ""
    x = numbers(both_axes, 50, (mesh.size * 2, 4), P(("dp", "mp")))
    for axes, out in (("dp", P("mp")), ("mp", P("dp")), (("dp", "mp"), P()), (("mp", "dp"), P())):
        both(
            both_axes,
            lambda x, axes=axes: tandem.jax.all_reduce(x, axes),
            lambda x, axes=axes: lax.psum(x, axes),
            P(("dp", "mp")),
            out,
            [x],
            ["all_reduce"],
        )
        size = int(np.prod([both_axes.shape[one] for one in ((axes,) if isinstance(axes, str) else axes)]))
        both(
            both_axes,
            lambda x, axes=axes: tandem.jax.reduce_scatter(x, axes, tiled=True),
            lambda x, axes=axes: lax.psum_scatter(x, axes, tiled=True),
            P(("dp", "mp")),
            P(("dp", "mp")),
            [numbers(both_axes, 52, (mesh.size * size, 4), P(("dp", "mp")))],
            ["reduce_scatter"],
        )
        both(
            both_axes,
            lambda x, axes=axes: tandem.jax.all_gather(x, axes, tiled=True),
            lambda x, axes=axes: lax.all_gather(x, axes, tiled=True),
            P(("dp", "mp")),
            P(("dp", "mp")),
            [x],
            ["all_gather"],
        )
    weight = numbers(both_axes, 51, (4, 2 * mesh.size), P(None, "mp"))
    both(
        both_axes,
        lambda x, w: tandem.jax.all_gather_matmul(x, w, "mp"),
        lambda x, w: lax.all_gather(x, "mp", tiled=True) @ w,
        (P(("dp", "mp")), P(None, "mp")),
        P("dp", "mp"),
        [x, weight],
        ["all_gather_matmul"],
    )


@check
def mapped_over(mesh):
    """jax.vmap() of a call."""
    x = numbers(mesh, 60, (mesh.size * 2, 3, 4), P("tp"))
    ours = jax.shard_map(
        jax.vmap(lambda x: tandem.jax.all_reduce(x, "tp"), in_axes=1), mesh=mesh, in_specs=P("tp"), out_specs=P()
    )
    plain = jax.shard_map(jax.vmap(lambda x: lax.psum(x, "tp"), in_axes=1), mesh=mesh, in_specs=P("tp"), out_specs=P())
    same(jax.jit(ours)(x), jax.jit(plain)(x))


def main():
    mesh = programs.start()
    for function in CHECKS:
        if len(sys.argv) > 4 and function.__name__ not in sys.argv[4:]:
            continue
        print("check", function.__name__, file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        failure = ""
        try:
            function(mesh)
            tandem.jax.synchronize()
        except Exception:
            failure = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"check": function.__name__, "failure": failure}), flush=True)
        if failure:
            os._exit(3)
    programs.stop()


main()
