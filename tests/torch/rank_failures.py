"""A rank of the failure tests. Rank 1 stops where the parent kills it; the others print what the failure told them."""

import json
import os
import sys
import time

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import start

OPS = torch.ops.tandem


def block(x, w, v, name):
    _, (hidden,) = OPS.all_gather_matmul(x, [w], 0, name, return_A=False)
    return OPS.matmul_reduce_scatter(torch.relu(hidden), v, "sum", 0, name)


def main():
    mode = sys.argv[1]
    name = start()
    world = dist.get_world_size()
    x, w, v = torch.randn(2 * world, 8, requires_grad=True), torch.randn(8, 8), torch.randn(8, 8)
    step = torch.compile(block) if mode == "compiled" else block
    loss = step(x, w, v, name).sum()  # prepared and right before anything happens
    loss.backward()
    if dist.get_rank() == 1:
        if mode == "prepare":
            print("ready", flush=True)
            time.sleep(600)
        if mode == "backward":
            loss = step(x, w, v, name).sum()
        print("ready", flush=True)
        time.sleep(600)
    begun = time.monotonic()
    try:
        if mode == "prepare":
            OPS.all_reduce(torch.ones(77), "sum", name)
        elif mode == "backward":
            step(x, w, v, name).sum().backward()
        else:
            step(x, w, v, name)
        told = {"error": "none"}
    except tandem.TandemError as error:
        told = {
            "error": type(error).__name__,
            "rank": error.rank,
            "pid": error.pid,
            "text": str(error),
            "code": error.code.name,
        }
    told["seconds"] = time.monotonic() - begun
    again = []
    for call in (lambda: OPS.all_reduce(torch.ones(3), "sum", name), lambda: block(x.detach(), w, v, name)):
        try:
            call()
            again.append("none")
        except tandem.TandemError as error:
            again.append(type(error).__name__)
    told["again"] = again
    tandem.torch.detach(name)  # must not hang or raise
    told["detached"] = True
    print(json.dumps(told), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
