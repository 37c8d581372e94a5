"""A rank that compiles a function by Inductor under the pass, and prints the records and whether Inductor's cache had the graph."""

import json

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, start, stop
from torch.distributed import _functional_collectives as funcol


def function(x, w):
    """One gather for a product, and one that stays: the gathered tensor is the right operand."""
    return funcol.all_gather_tensor(x, 0, dist.group.WORLD) @ w, w.t() @ funcol.all_gather_tensor(
        w[:4], 0, dist.group.WORLD
    )[:8]


def main():
    start()
    x, w = torch.ones(4, 8, device=DEVICE), torch.ones(8, 6, device=DEVICE)
    with tandem.torch.compile_config(), torch.no_grad():
        product, _ = torch.compile(function, fullgraph=True)(x, w)
    counters = torch._dynamo.utils.counters
    told = {
        "hits": counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        "right": bool((product == 8).all()),
        "records": [
            (record.collective, record.fused_into, record.reason, record.cached)
            for record in tandem.torch.explain_graph()
        ],
    }
    print(json.dumps(told), flush=True)
    stop()


if __name__ == "__main__":
    main()
