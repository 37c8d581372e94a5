"""Tandem for JAX: collectives and fused products inside jax.shard_map(), one process a device.

    jax.distributed.initialize(...)
    mesh = jax.make_mesh((jax.device_count(),), ("tp",))
    tandem.jax.attach(mesh)

    @partial(jax.shard_map, mesh=mesh, in_specs=(P("tp"), P(None, "tp")), out_specs=P(None, "tp"))
    def up(x, w):
        return tandem.jax.all_gather_matmul(x, w, "tp")

The processes meet where a call with a new plan is traced. A launch needs neither Python nor the daemon. Where Tandem cannot serve a
call, all processes run jax.lax's own collectives alike, and report() has the reason.
"""

from ._config import Config, configure
from ._meshes import attach, detach, synchronize
from ._norms import all_reduce_rms_norm
from ._ops import all_gather, all_reduce, reduce_scatter
from ._products import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from ._report import Report, ReportRow, report

__all__ = [
    "Config",
    "Report",
    "ReportRow",
    "all_gather",
    "all_gather_matmul",
    "all_reduce",
    "all_reduce_rms_norm",
    "attach",
    "configure",
    "detach",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "reduce_scatter",
    "report",
    "synchronize",
]
