"""Tandem behind the tensor-parallel linear layers of Megatron-core's local specification.

    import tandem.megatron
    tandem.megatron.install()                  # once, on all ranks; uninstall() ends it

ColumnParallelLinear and RowParallelLinear then run fused products and collectives of torch.ops.tandem, in the forward and in the
backward. Layers that Tandem does not serve run Megatron's own code, on all ranks alike; report() has the reasons.
"""

from ._install import install, installed, uninstall
from ._report import Report, ReportRow, report

__all__ = ["Report", "ReportRow", "install", "installed", "report", "uninstall"]
