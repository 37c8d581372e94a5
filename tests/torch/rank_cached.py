"""A rank that compiles functions by Inductor under the pass, and prints the records, what was logged of them, and whether Inductor's
cache had the graphs."""

import json
import logging
from dataclasses import replace

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, start, stop
from torch.distributed import _functional_collectives as funcol


def function(x, w, large):
    """One gather for a product, and one that stays: the gathered tensor is the right operand, and large."""
    return funcol.all_gather_tensor(x, 0, dist.group.WORLD) @ w, w.t() @ funcol.all_gather_tensor(
        large, 0, dist.group.WORLD
    )


class Doubled(torch.autograd.Function):
    """A gather and its gradient, a reduce-scatter, large and without a product: nothing of either graph is fused."""

    @staticmethod
    def forward(ctx, x):
        return funcol.all_gather_tensor(2 * x, 0, dist.group.WORLD)

    @staticmethod
    def backward(ctx, grad):
        return funcol.reduce_scatter_tensor(2 * grad, "sum", 0, dist.group.WORLD)


class Lines(logging.Handler):
    """Has the lines that are logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def main():
    start()
    logged = Lines()
    logging.getLogger("tandem.torch").addHandler(logged)
    logging.getLogger("tandem.torch").setLevel(logging.INFO)
    x, w = torch.ones(4, 8, device=DEVICE), torch.ones(8, 6, device=DEVICE)
    large = torch.ones(4, 1 << 14, device=DEVICE)
    with tandem.torch.compile_config():
        with torch.no_grad():
            product, _ = torch.compile(function, fullgraph=True)(x, w, large)
        torch._dynamo.reset()  # the compiler's callbacks, too
        leaf = large.clone().requires_grad_()
        doubled = torch.compile(Doubled.apply, fullgraph=True)(leaf)
        doubled.sum().backward()
    lines = list(logged.lines)
    counters = torch._dynamo.utils.counters
    records = tandem.torch.explain_graph()
    told = {
        "hits": counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        "right": bool((product == 8).all() and (doubled == 2).all() and (leaf.grad == 2 * dist.get_world_size()).all()),
        "records": [(record.collective, record.fused_into, record.reason, record.cached) for record in records],
        "logged": [lines.count(str(replace(record, declined=""))) for record in records],
    }
    print(json.dumps(told), flush=True)
    stop()


if __name__ == "__main__":
    main()
