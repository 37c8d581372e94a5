"""A rank of the tests of slips: rank 1 makes another call than its peers, skips one, or raises in between, beside plans that all have.
Prints how the failure reached the rank, how long that took, and the sums after the renewal."""

import json
import sys
import time

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, start, stop

OPS = torch.ops.tandem
DEADLINE = 120.0  # of a launch: a slip that waits for it shows in the seconds


def right(name, rows):
    """A sum of all ranks, and whether it is right."""
    x = torch.full((rows, 16), dist.get_rank() + 1.0, device=DEVICE)
    total = OPS.all_reduce(x, "sum", name)
    tandem.torch.synchronize()
    world = dist.get_world_size()
    return bool(torch.equal(total, torch.full_like(x, world * (world + 1) / 2)))


def step(slip, name):
    """The call of all ranks, but for rank 1, which slips."""
    x = torch.ones(8, 16, device=DEVICE)
    slips = dist.get_rank() == 1
    if slip == "type":
        OPS.all_reduce(x.bfloat16() if slips else x, "sum", name)
    elif slip == "other":
        OPS.all_reduce(torch.ones(4, 16, device=DEVICE) if slips else x, "sum", name)
    elif slip == "skipped":
        if not slips:
            OPS.all_reduce(x, "sum", name)
        OPS.all_reduce(torch.ones(4, 16, device=DEVICE), "sum", name)
    elif slip == "forgotten":  # no field differs
        if slips:
            tandem.torch.attach(name).plans.drop()
        OPS.all_reduce(x, "sum", name)
    elif slip == "raised" and not slips:
        OPS.all_reduce(x, "sum", name)
    tandem.torch.synchronize()


def main():
    placement, world_slips = sys.argv[1], sys.argv[2:]
    name = start()
    tandem.torch.configure(placement=placement, launch_deadline=DEADLINE, rendezvous_timeout=DEADLINE)
    told = {"before": [right(name, 8), right(name, 4)], "slips": {}}
    for slip in world_slips:
        dist.barrier()
        begin, error = time.monotonic(), None
        try:
            step(slip, name)
        except tandem.TandemError as failure:
            error = failure
        seconds = time.monotonic() - begin
        tandem.torch.renew(name)
        if slip == "forgotten" and dist.get_rank() != 1:
            tandem.torch.attach(name).plans.drop()
        told["slips"][slip] = {
            "error": type(error).__name__,
            "reason": getattr(error, "reason", ""),
            "text": str(error),
            "ranks": list(getattr(error, "ranks", ())),
            "seconds": seconds,
            # A plan that all have, one that none has, and the one that rank 1 alone has asked for.
            "after": [right(name, 8), right(name, 4), right(name, 32 + len(told["slips"]))],
        }
    print(json.dumps(told), flush=True)
    stop()


main()
