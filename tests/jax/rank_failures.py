"""A rank of the failure tests. Rank 1 stops where the parent kills it; the others print how the failure reached them.

rank_failures.py RANK WORLD PORT run|trace|fail
"""

import json
import os
import sys
import threading
import time

import jax
import numpy as np
import programs
import tandem.jax
from jax import lax
from jax.sharding import PartitionSpec as P
from programs import PATIENCE, put
from tandem.jax._library import calls


def main():
    mode = sys.argv[4]
    mesh = programs.start()
    rank = jax.process_index()
    x = put(mesh, np.ones((mesh.size * 2, 8), np.float32), P("tp"))

    def total(x):
        return lax.fori_loop(0, 4, lambda _, x: tandem.jax.all_reduce(x, "tp") / mesh.size, x)

    step = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("tp"), out_specs=P("tp"), check_vma=False))
    jax.block_until_ready(step(x))
    other = jax.jit(
        jax.shard_map(lambda x: tandem.jax.all_gather(x, "tp"), mesh=mesh, in_specs=P("tp"), out_specs=P("tp"))
    )
    if rank == 1:
        print("ready", flush=True)
        threading.Event().wait(10 * PATIENCE)
    if mode == "fail":  # with a launch of another thread in flight
        before = calls().launches()
        threading.Thread(target=step, args=(x,), daemon=True).start()
        while calls().launches() == before:
            time.sleep(0.01)
        raise RuntimeError("the rank has failed")
    errors, begun = [], time.monotonic()
    for _ in range(2):
        try:
            jax.block_until_ready(step(x) if mode == "run" else other(x))
            errors.append(["", ""])
        except Exception as error:
            errors.append([type(error).__name__, str(error)])
    print(json.dumps({"errors": errors, "seconds": time.monotonic() - begun}), flush=True)
    os._exit(0)


main()
