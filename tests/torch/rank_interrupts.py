"""A rank whose eager collectives of torch.distributed are interrupted while they wait for the others. The next call is right."""

import os
import signal
import sys
import threading
import time

import tandem.torch
import torch
import torch.distributed as dist
from checks import PATIENCE, check, main
from rank_lifetimes import in_wait, reach
from reference_ops import rank, world

# In seconds, of calls that wait twice as long. Where TANDEM_TEST_IDLE says that nothing else runs, within one.
SOON = 1.0 if os.environ.get("TANDEM_TEST_IDLE") else PATIENCE / 2
GROUPS = []  # the names of those that have been used, for the places where ranks meet


def interrupted(kind, call):
    """Ctrl-C reaches this process once the call waits for other ranks; returns what the call raises, and the seconds since."""
    sent, done, main_thread = [], threading.Event(), threading.main_thread().ident

    def watch():
        while not done.is_set():
            frame = sys._current_frames().get(main_thread)
            if in_wait(frame, kind):
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
                return
            done.wait(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        try:
            call()
        finally:
            took = time.monotonic() - sent[0] if sent else -1.0
            done.set()
            watcher.join()
    except KeyboardInterrupt:
        return KeyboardInterrupt, took, ""
    except RuntimeError as error:
        return type(error), took, str(error)
    return None, took, ""


def summed(count, value):
    x = torch.full((count,), float(value))
    dist.all_reduce(x)
    return x


def gathered(count, value):
    out = torch.empty(count * world())
    dist.all_gather_into_tensor(out, torch.full((count,), float(value)))
    return out


def right(step):
    total = world() * (world() + 1) / 2
    assert (summed(16, rank() + 1) == total).all(), step
    assert gathered(16, rank() + 1)[::16].tolist() == [one + 1.0 for one in range(world())], step


def rank_0_is_interrupted(kind, call, step):
    """Rank 0's call waits for the others, which make it only behind the interrupt, and is made again there."""
    if rank() == 0:
        raised, took, text = interrupted(kind, call)
        assert raised is KeyboardInterrupt, (kind, step, raised, text)
        assert took < SOON, (kind, step, took)
    reach(f"{GROUPS[-1]} {kind} {step}")


def all_kinds(group):
    GROUPS.append(group)
    before = tandem.torch.report().taken
    tandem.torch.detach(group)
    rank_0_is_interrupted("attach", lambda: summed(16, 1), "")
    right("attach")
    rank_0_is_interrupted("prepare", lambda: summed(5000, 1), "")
    total = summed(5000, rank() + 1)
    assert (total == world() * (world() + 1) / 2).all(), total
    right("prepare")
    for step in range(2):
        # The launch is in flight: the others' call ends it, and rank 0's next call is theirs behind that.
        rank_0_is_interrupted("launch", lambda: summed(16, 1), step)
        if rank() != 0:
            summed(16, 1)
        right("launch")
    assert tandem.torch.report().taken > before


@check
def test_behind_install(name):
    tandem.torch.install()
    try:
        all_kinds(name)
    finally:
        tandem.torch.uninstall()


@check
def test_of_the_backend_tandem(name):
    made = dist.new_group(list(range(world())), backend="cpu:tandem")
    default = dist.distributed_c10d._get_default_group()
    dist.distributed_c10d._update_default_pg(made)
    try:
        all_kinds(made.group_name)
    finally:
        dist.distributed_c10d._update_default_pg(default)
    dist.destroy_process_group(made)


if __name__ == "__main__":
    main()
