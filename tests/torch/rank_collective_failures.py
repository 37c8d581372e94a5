"""A rank of test_collectives: eager collectives of torch.distributed that fail in the way that the command line names."""

import json
import os
import sys
import threading
import warnings

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, PATIENCE, start, stop


def summed(count=100):
    x = torch.full((count,), dist.get_rank() + 1.0, device=DEVICE)
    dist.all_reduce(x)
    return bool((x == sum(range(1, dist.get_world_size() + 1))).all())


def outcome(call):
    """(the failure's class and text, or None and "")."""
    try:
        call()
        return None, ""
    except RuntimeError as error:
        return type(error).__name__, str(error)


def tell(error, text, **more):
    print(json.dumps({"rank": dist.get_rank(), "error": error, "text": text, **more}), flush=True)


def killed():
    assert summed()
    if dist.get_rank() == 1:
        print("ready", flush=True)
        threading.Event().wait(10 * PATIENCE)
        os._exit(1)
    # CUDA tensors raise it in a later call.
    tell(*outcome(lambda: [summed() for _ in range(3)]))
    os._exit(0)  # rank 1 ends no more


def other():
    assert summed()
    wide = torch.ones(64, device=DEVICE)
    part = torch.empty(64 // dist.get_world_size(), device=DEVICE)
    if dist.get_rank() == 0:
        error = outcome(lambda: dist.reduce_scatter_tensor(part, wide))
    else:  # as new as rank 0's call, so that both ranks prepare a plan
        error = outcome(lambda: dist.all_gather_into_tensor(wide, part))
    tandem.torch.renew(dist.group.WORLD.group_name)
    tell(*error, right_again=summed())
    stop()


def alone():
    if dist.get_rank() == 1:
        tandem.torch.uninstall()
        outcome(summed)  # the backend waits for rank 0
        os._exit(0)
    tell(*outcome(summed))
    os._exit(0)


def served():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        error = outcome(lambda: [summed() or 1 / 0 for _ in range(5)])
    ours = [one for one in seen if "tandem" in str(one.message)]
    tell(*error, taken=tandem.torch.report().taken, warnings=len(ours))
    stop()


def between():
    error = outcome(lambda: [summed() for _ in range(3)])
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    try:
        assert summed()
        raise ValueError("the program's own")
    except ValueError:
        pass
    right = summed()
    bad = outcome(
        lambda: dist.all_reduce(torch.ones(4, 4, device=DEVICE)[:, 1])
    )  # gaps: the backend's own error, or its result
    tell(*error, right_again=right and summed(), bad=bad[0])
    stop()


if __name__ == "__main__":
    start()
    tandem.torch.install()
    {"killed": killed, "other": other, "alone": alone, "served": served, "between": between}[sys.argv[1]]()
