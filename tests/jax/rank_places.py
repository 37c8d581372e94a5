"""A rank whose place Tandem may not serve, by the last argument; prints the reasons, and whether the results are right.

rank_places.py RANK WORLD PORT unserved|detached|several
"""

import json
import sys
import warnings

import jax
import numpy as np
import programs
import tandem.jax
from jax.sharding import PartitionSpec as P
from programs import put, same, whole


def total(mesh, x):
    """The sum over the axis, compared with numpy's."""
    step = jax.jit(jax.shard_map(lambda x: tandem.jax.all_reduce(x, "tp"), mesh=mesh, in_specs=P("tp"), out_specs=P()))
    out = step(x)
    same(out, np.asarray(whole(x)).reshape(mesh.size, -1, 4).sum(0))
    return step


def main():
    warnings.simplefilter("ignore", RuntimeWarning)
    mode = sys.argv[4]
    if mode == "several":
        jax.config.update("jax_num_cpu_devices", 2)
    mesh = programs.start(attach=False)
    reason = tandem.jax.attach(mesh)
    x = put(mesh, np.random.default_rng(0).standard_normal((mesh.size * 3, 4)).astype(np.float32), P("tp"))
    step = total(mesh, x)
    told = {"reason": reason, "rows": [row.reason for row in tandem.jax.report().rows], "failure": ""}
    if mode == "detached":
        tandem.jax.detach()
        try:
            jax.block_until_ready(step(x))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            told["failure"] = str(error)
        jax.clear_caches()
        tandem.jax.attach(mesh)
        total(mesh, x)
    print(json.dumps(told), flush=True)
    programs.stop()


main()
