"""Four ranks in two groups of two. In group {2, 3} global rank 2 hangs, or launches another op; rank 3 prints the failure."""

import json
import os
import sys
import threading

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, PATIENCE, start
from rank_failures import outcome

OPS = torch.ops.tandem


def main():
    mode = sys.argv[1]
    start()
    rank = dist.get_rank()
    name = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2].group_name
    tandem.torch.configure(placement="engine", launch_deadline=PATIENCE if mode == "other" else 5.0)
    x, more = torch.ones(8, device=DEVICE), torch.ones(2, 8, device=DEVICE)
    for value in (x, more):
        OPS.all_reduce(value, "sum", name)
    tandem.torch.synchronize()
    told = {"pid": os.getpid()}
    hangs = rank == 2 and mode == "hung"
    error = (
        None if hangs else outcome(lambda: OPS.all_reduce(more if rank == 2 and mode == "other" else x, "sum", name))
    )
    if error is not None:
        told |= {
            "error": type(error).__name__,
            "reason": error.reason,
            "ranks": error.ranks,
            "global": error.global_ranks,
            "blamed": error.pid,
            "text": str(error),
        }
    print(json.dumps(told) + "\ntold", flush=True)
    threading.Event().wait(10 * PATIENCE)  # until the test ends it


if __name__ == "__main__":
    main()
