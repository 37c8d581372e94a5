"""What the programs of these tests share: processes of jax.distributed, arrays of all processes, comparisons."""

import os
import sys

import jax
import numpy as np
import tandem.jax
from jax.sharding import NamedSharding

CUDA = os.environ.get("TANDEM_TEST_BACKEND", "host") == "cuda"
# Seconds in which processes must meet: they compile, which takes one of them longer than another.
PATIENCE = float(os.environ.get("TANDEM_TEST_PATIENCE", "60"))


def start(attach=True):
    """Joins the processes, by the command line's rank, world and port; returns a mesh of all with the axis "tp"."""
    rank, world, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if not CUDA:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", world, rank, local_device_ids=[rank] if CUDA else None)
    tandem.jax.configure(rendezvous_timeout=PATIENCE, launch_deadline=PATIENCE)
    mesh = jax.make_mesh((jax.device_count(),), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
    if attach:
        reason = tandem.jax.attach(mesh)
        assert not reason, reason
    return mesh


def stop(status=0):
    """Ends the process once all have come here."""
    tandem.jax.detach()
    jax.distributed.shutdown()  # waits for all
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def put(mesh, array, spec):
    """The array on all devices of the mesh. Each process has all of it."""
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])


def whole(array):
    """All elements, in each process."""
    spec = jax.sharding.PartitionSpec()
    gather = jax.jit(lambda x: x, out_shardings=NamedSharding(array.sharding.mesh, spec))
    return gather(array).addressable_data(0)


def same(ours, right, tolerance=1e-5):
    """Compares this process's parts."""
    ours, right = jax.tree.leaves(ours), jax.tree.leaves(right)
    assert len(ours) == len(right), (len(ours), len(right))
    for one, other in zip(ours, right, strict=True):
        one, other = (x.addressable_data(0) if isinstance(x, jax.Array) else x for x in (one, other))
        one, other = (np.asarray(x).astype(np.complex128) for x in (one, other))
        assert one.shape == other.shape, (one.shape, other.shape)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, np.abs(other).max(initial=0)))


def group(mesh):
    """Tandem's group of the mesh's axis "tp"."""
    from tandem.jax import _meshes

    return _meshes._attached[_meshes._key(mesh)].group(("tp",))
