"""A rank of the failure tests. Rank 1 stops where the parent kills it; the others print how the failure reached them."""

import json
import os
import sys
import threading
import time

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, PATIENCE, start, stop

OPS = torch.ops.tandem
STEPS = 50  # replays, which a killed rank must cut short


def block(x, w, v, name):
    _, (hidden,) = OPS.all_gather_matmul(x, [w], 0, name, return_A=False)
    return OPS.matmul_reduce_scatter(torch.relu(hidden), v, "sum", 0, name)


def wait_for_the_end():
    """The parent kills this rank; without a parent it ends by itself."""
    print("ready", flush=True)
    threading.Event().wait(10 * PATIENCE)
    os._exit(1)


def captured(x, w, v, name):
    """Replays of a captured block; each step is one."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        block(x, w, v, name)
    return graph


def renewed(name):
    """Rank 1 comes too late for a launch on the ranks' own streams. All go on with the same plan, and with the same graph."""
    rank = dist.get_rank()
    x = torch.full((300,), rank + 1.0, device=DEVICE)
    right = torch.full_like(x, sum(range(1, dist.get_world_size() + 1)))
    told = {"right": [], "errors": []}
    for _ in range(2):
        torch.testing.assert_close(OPS.all_reduce(x, "sum", name), right)
        told["placement"] = tandem.torch.attach(name).plans.infos()[0]["placement"]
        dist.barrier()
        if rank != 1:
            error = outcome(lambda: OPS.all_reduce(x, "sum", name))
            told["errors"].append([type(error).__name__, getattr(error, "rank", None)])
        dist.barrier()
        tandem.torch.renew(name)
        total = OPS.all_reduce(x, "sum", name)
        tandem.torch.synchronize()
        told["right"].append(bool(torch.equal(total, right)))
    print(json.dumps(told), flush=True)


def outcome(call):
    """The failure of a call, or of the launches that it has made."""
    try:
        call()
        tandem.torch.synchronize()
        return None
    except tandem.TandemError as error:
        return error


def main():
    mode = sys.argv[1]
    name = start()
    if mode == "late":
        tandem.torch.configure(placement="client", launch_deadline=5.0)  # ranks that launch together come within it
        renewed(name)
        stop()
    world, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(2 * world, 8, requires_grad=mode != "captured", device=DEVICE)
    w, v = torch.randn(8, 8, device=DEVICE), torch.randn(8, 8, device=DEVICE)
    step = torch.compile(block) if mode == "compiled" else block
    loss = step(x, w, v, name).sum()  # prepared and right before anything happens
    if mode != "captured":
        loss.backward()
    graph = captured(x, w, v, name) if mode == "captured" else None
    if graph is not None:
        graph.replay()
    tandem.torch.synchronize()
    if rank == 1:
        if mode == "backward":
            loss = step(x, w, v, name).sum()
            tandem.torch.synchronize()
        wait_for_the_end()

    def attempt():
        if mode == "prepare":
            OPS.all_reduce(torch.ones(77, device=DEVICE), "sum", name)
        elif mode == "backward":
            step(x, w, v, name).sum().backward()
        elif graph is not None:
            for _ in range(STEPS):
                graph.replay()
            torch.cuda.synchronize()  # a replay never hangs
        else:
            step(x, w, v, name)

    begun = time.monotonic()
    error = outcome(attempt)
    told = {"error": "none"}
    if error is not None:
        told = {
            "error": type(error).__name__,
            "rank": error.rank,
            "pid": error.pid,
            "text": str(error),
            "code": error.code.name,
        }
    told["seconds"] = time.monotonic() - begun
    told["again"] = [
        type(outcome(call)).__name__
        for call in (
            lambda: OPS.all_reduce(torch.ones(3, device=DEVICE), "sum", name),
            lambda: block(x.detach(), w, v, name),
        )
    ]
    tandem.torch.detach(name)  # must not hang or raise
    told["detached"] = True
    print(json.dumps(told), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
