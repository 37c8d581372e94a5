"""A rank without Tandem: ops fall back to torch's collectives with one warning, or raise, alike on all ranks."""

import json
import os
import sys
import warnings

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import start
from torch.distributed import _functional_collectives as funcol

OPS = torch.ops.tandem


def main():
    name = start()
    if sys.argv[1] == "one without" and dist.get_rank() == 1:
        tandem.torch.configure(runtime_dir="/nonexistent")
    x = torch.arange(8.0).view(4, 2) + dist.get_rank()
    w = torch.eye(2)
    result = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            result["sum"] = OPS.all_reduce(x, "sum", name).tolist()
            result["product"] = OPS.all_gather_matmul(x, [w], 0, name)[1][0].tolist()
            result["scattered"] = OPS.matmul_reduce_scatter(x, w, "avg", 0, name).tolist()
            residual = torch.ones(4, 2)
            result["normed"] = OPS.all_reduce_rms_norm(x, residual, torch.tensor([1.0, 2.0]), 0.0, name).tolist()
            result["residual"] = residual.tolist()
        planted = torch.library.Library("symm_mem", "IMPL")
        planted.impl("fused_matmul_reduce_scatter", lambda a, b, *rest: (a @ b)[:2] + 100, "CPU")
        tandem.torch.install(collectives=False)
        result["theirs"] = torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w, "avg", 0, name).tolist()
        result["no theirs"] = torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, name)[1][0].tolist()
        tandem.torch.uninstall()
    result["warnings"] = [str(one.message) for one in seen if "torch's own collectives" in str(one.message)]
    result["their warnings"] = [str(one.message) for one in seen if "symm_mem's own kernel" in str(one.message)]
    if sys.argv[1] == "all without":  # a compilation takes seconds
        with tandem.torch.compile_config(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(lambda a, b: funcol.all_reduce(a @ b, "sum", dist.group.WORLD) * 1.0)(x, w)
        result["records"] = [[one.fused_into, one.declined, str(one)] for one in tandem.torch.explain_graph()]
    result["reason"] = tandem.torch.attach(name).reason
    tandem.torch.detach(name)
    tandem.torch.configure(on_unavailable="error")
    try:
        OPS.all_reduce(x, "sum", name)
        result["strict"] = "none"
    except tandem.Unavailable as error:
        result["strict"] = str(error)
    dist.barrier()
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
