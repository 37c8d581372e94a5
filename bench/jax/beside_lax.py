"""tandem.jax beside jax.lax in one run: collectives, sums with a norm, and tensor-parallel layers with and without gradients.

    TANDEM_RUNTIME_DIR=DIR python3 bench/jax/beside_lax.py [--world 2] [--device cuda] [--json FILE] [PART ...]

It starts its ranks itself. Parts: collectives, norms, layers, gradients. A case is one jitted program, a chain in which each call needs
the one before. Printed are microseconds of a call or layer, of the slowest rank, and Tandem's part of jax.lax's: medians over rounds,
and the quartiles. Both take turns in each round.

The results are compared before the first round, and behind the last one with other data in other buffers, as a program that XLA has
captured must see them. A call that Tandem cannot serve ends the run with the reason.

--device cpu is for a trial on the host backend, with --small: jax.lax's collectives are then gloo's.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from functools import partial

PARTS = ("collectives", "norms", "layers", "gradients")
BOUND = 3e-2  # of a result, relative norm, bfloat16
EPSILON = 1e-5
WARM_UP = 3
AXIS = "tp"


def started(given):
    """Starts the ranks with this program's own arguments and waits for them; the exit status."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    ranks = [
        subprocess.Popen([sys.executable, "-B", *sys.argv, "--rank", str(rank), "--address", address])
        for rank in range(given.world)
    ]
    end = time.monotonic() + given.limit
    try:
        while any(rank.poll() is None for rank in ranks):
            if time.monotonic() > end or any(rank.poll() for rank in ranks):
                return 1
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return int(any(rank.returncode for rank in ranks))


class Rank:
    """This rank's part of the run: the mesh, arrays over it, and rounds."""

    def __init__(self, given):
        import jax
        import tandem.jax

        cuda = given.device == "cuda"
        if not cuda:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        own = [given.rank] if cuda else None
        jax.distributed.initialize(given.address, given.world, given.rank, local_device_ids=own)
        tandem.jax.configure(on_unavailable="error")
        self.given, self.rows, self.wrong = given, [], []
        self.mesh = jax.make_mesh((given.world,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
        reason = tandem.jax.attach(self.mesh)
        if reason:
            raise SystemExit(f"tandem.jax.attach: {reason}")

    def numbers(self, seed, shape, spec, scale=1.0):
        """A bfloat16 array over the mesh."""
        import jax
        import numpy as np
        from jax import numpy as jnp

        def draw(seed):  # by a hash of the index, which compiles sooner than jax.random
            x = jnp.arange(np.prod(shape), dtype="uint32") + seed * np.uint32(0x85EBCA6B)
            for shift in (16, 13, 16):
                x = (x ^ (x >> shift)) * np.uint32(0xC2B2AE35)
            return ((x.astype("float32") / 2.0**31 - 1) * scale).astype("bfloat16").reshape(shape)

        return jax.jit(draw, out_shardings=jax.sharding.NamedSharding(self.mesh, spec))(np.uint32(seed))

    def slowest(self, seconds):
        """Of each round, the rank that took longest."""
        import numpy as np
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(np.array(seconds)).reshape(self.given.world, -1).max(axis=0).tolist()

    def compare(self, case, ours, right):
        """Notes a case whose results differ by more than rounding."""
        import jax
        import numpy as np

        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(right), strict=True):
            one, other = (np.asarray(x.addressable_data(0)).astype(np.float64) for x in (one, other))
            error = np.linalg.norm(one - other) / max(1e-30, np.linalg.norm(other))
            if one.shape != other.shape or not error <= BOUND:
                self.wrong.append(f"{case}: rank {self.given.rank} differs by {error:.1e}")

    def measure(self, case, programs, arguments, calls):
        """Compares and times the programs of tandem and lax, jitted. arguments: from a seed; calls: of a run of the program."""
        import jax
        import tandem.jax

        def run(by, given, runs=1):
            for _ in range(runs):
                results = programs[by](*given)
            return jax.block_until_ready(results)

        data = arguments(1)
        self.compare(case, run("tandem", data), run("lax", data))
        rounds = {by: [] for by in programs}
        for number in range(WARM_UP + self.given.rounds):
            for by, taken in rounds.items():
                run("lax", data)  # the ranks meet
                begun = time.perf_counter()
                run(by, data, self.given.runs)
                if number >= WARM_UP:
                    taken.append(time.perf_counter() - begun)
        tandem.jax.synchronize()  # raises what has failed
        others = arguments(2)
        self.compare(case, run("tandem", others), run("lax", others))
        times = {
            by: [1e6 * one / (calls * self.given.runs) for one in self.slowest(taken)] for by, taken in rounds.items()
        }
        times["ratio"] = [ours / theirs for ours, theirs in zip(times["tandem"], times["lax"], strict=True)]
        figures = {name: statistics.quantiles(taken, n=4, method="inclusive") for name, taken in times.items()}
        self.rows.append({"benchmark": "jax", "case": case, "calls": calls, **figures})
        if self.given.rank == 0:
            us = "".join(
                f"{middle:10.1f} ({low:.1f}-{high:.1f})" for low, middle, high in map(figures.get, ("tandem", "lax"))
            )
            low, middle, high = figures["ratio"]
            print(f"{case:44}{us}{middle:8.2f} ({low:.2f}-{high:.2f})", flush=True)


def functions():
    """{"tandem": …, "lax": …} with the functions of both under one name."""
    import tandem.jax
    from jax import lax
    from jax import numpy as jnp

    def all_reduce_rms_norm(x, residual, weight, eps, axis):
        hidden = lax.psum(x, axis) + residual
        wide = hidden.astype(jnp.float32)
        normed = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps) * weight.astype(jnp.float32)
        return normed.astype(hidden.dtype), hidden

    plain = {
        "all_reduce": lax.psum,
        "all_gather": partial(lax.all_gather, tiled=True),
        "reduce_scatter": partial(lax.psum_scatter, tiled=True),
        "all_gather_matmul": lambda x, w, axis: lax.all_gather(x, axis, tiled=True) @ w,
        "matmul_reduce_scatter": lambda x, w, axis: lax.psum_scatter(x @ w, axis, tiled=True),
        "all_reduce_rms_norm": all_reduce_rms_norm,
    }
    ours = {name: getattr(tandem.jax, name) for name in plain}
    ours |= {name: partial(ours[name], tiled=True) for name in ("all_gather", "reduce_scatter")}
    return {"tandem": ours, "lax": plain}


def varying(x):
    """The value with a type that varies over the ranks, as the next call of a chain takes it."""
    import jax
    from jax import lax

    return x if AXIS in jax.typeof(x).mat.varying else lax.pcast(x, (AXIS,), to="varying")


def mapped(rank, body, ins, outs):
    import jax

    return jax.jit(jax.shard_map(body, mesh=rank.mesh, in_specs=ins, out_specs=outs))


def collectives(rank, calls):
    """Chains of one collective each. The bytes are those of a rank's smaller operand."""
    from jax import numpy as jnp
    from jax.sharding import PartitionSpec as P

    world = rank.given.world

    def chain(name, function):
        def body(x):
            for _ in range(calls):
                if name == "reduce_scatter":
                    x = jnp.tile(function(x * 0.5, AXIS), world)
                elif name == "all_gather":
                    x = x * 0.5 + function(x, AXIS).reshape(world, -1)[0]
                else:
                    x = varying(function(x, AXIS)) * 0.5
            return x

        return mapped(rank, body, P(AXIS), P(AXIS))

    for size in (4096, 65536) if rank.given.small else (8192, 131072, 2 << 20, 32 << 20):
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            count = world * size // 2 * (world if name == "reduce_scatter" else 1)
            programs = {by: chain(name, of[name]) for by, of in functions().items()}
            rank.measure(f"{name}, {size} bytes", programs, lambda seed: [rank.numbers(seed, (count,), P(AXIS))], calls)


def norms(rank, calls):
    """Chains of a sum, its addition to a residual and the norm of that, as a decoder has them."""
    from jax.sharding import PartitionSpec as P

    world, width = rank.given.world, 256 if rank.given.small else 8192

    def stack(function):
        def body(x, residual, weight):
            for _ in range(calls):
                y, residual = function(x, residual, weight, EPSILON, AXIS)
                x = varying(y) * 0.5
            return residual

        return mapped(rank, body, (P(AXIS), P(), P()), P())

    for rows in (1, 16) if rank.given.small else (1, 16, 64, 1024):

        def arguments(seed):
            return [
                rank.numbers(seed, (world * rows, width), P(AXIS)),
                rank.numbers(seed + 100, (rows, width), P()),
                rank.numbers(seed + 200, (width,), P()),
            ]

        programs = {by: stack(of["all_reduce_rms_norm"]) for by, of in functions().items()}
        rank.measure(f"all_reduce_rms_norm, {rows} x {width}", programs, arguments, calls)


def layers(rank, calls, gradients=False):
    """A scan over feed-forward layers of a sharded sequence: gather, product, gelu, product, scatter. rows: of all ranks."""
    import jax
    from jax import lax
    from jax import numpy as jnp
    from jax.sharding import PartitionSpec as P

    world, small = rank.given.world, rank.given.small
    width, inner = (64, 128) if small else (4096, 14336)
    specs = (P(AXIS), P(None, None, AXIS), P(None, AXIS))

    def program(of):
        def layer(x, weights):
            hidden = jax.nn.gelu(of["all_gather_matmul"](x, weights[0], AXIS))
            return x + of["matmul_reduce_scatter"](hidden, weights[1], AXIS), None

        forward = mapped(rank, lambda x, up, down: lax.scan(layer, x, (up, down))[0], specs, P(AXIS))
        if not gradients:
            return forward
        return jax.jit(jax.grad(lambda *of: jnp.sum(forward(*of).astype(jnp.float32) ** 2), argnums=(0, 1, 2)))

    for rows in (16 * world,) if small else (64, 1024, 4096):

        def arguments(seed):
            return [
                rank.numbers(seed, (rows, width), P(AXIS)),
                rank.numbers(seed + 100, (calls, width, inner), P(None, None, AXIS), width**-0.5),
                rank.numbers(seed + 200, (calls, inner, width), P(None, AXIS), inner**-0.5),
            ]

        programs = {by: program(of) for by, of in functions().items()}
        case = f"{'gradients of a' if gradients else 'a'} layer, {rows} rows, {width} x {inner}"
        rank.measure(case, programs, arguments, calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=2, help="ranks, each with a device (default: 2)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=20, help="of a case (default: 20)")
    parser.add_argument(
        "--runs", type=int, default=10, help="of a program in a round, one behind another (default: 10)"
    )
    parser.add_argument("--small", action="store_true", help="fewer and smaller cases")
    parser.add_argument("--limit", type=float, default=1800, help="seconds until the ranks are ended (default: 1800)")
    parser.add_argument("--json", help="a file that gets a line of JSON for each case")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    given = parser.parse_args()
    if set(given.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    if given.rank is None:
        return started(given)

    import jax
    import tandem.jax

    rank = Rank(given)
    if given.rank == 0:
        print(f"jax {jax.__version__}, {given.world} x {jax.devices()[0].device_kind}")
        print(f"{'us a call: median (quartiles)':44}{'tandem.jax':>14}{'jax.lax':>20}{'ratio':>18}")
    runs = {
        "collectives": lambda: collectives(rank, 4 if given.small else 32),
        "norms": lambda: norms(rank, 4 if given.small else 32),
        "layers": lambda: layers(rank, 2 if given.small else 8),
        "gradients": lambda: layers(rank, 2 if given.small else 8, gradients=True),
    }
    for part in given.parts or PARTS:
        runs[part]()
    wrong = bool(max(rank.slowest([float(bool(rank.wrong))])))
    for one in rank.wrong:
        print(f"WRONG: {one}", flush=True)
    if given.rank == 0:
        print(tandem.jax.report(), flush=True)
        if given.json:
            with open(given.json, "a") as file:
                file.writelines(
                    json.dumps({**row, "device": given.device, "world": given.world}) + "\n" for row in rank.rows
                )
    tandem.jax.detach()
    jax.distributed.shutdown()  # waits for all
    sys.stdout.flush()
    os._exit(int(wrong))


if __name__ == "__main__":
    sys.exit(main())
