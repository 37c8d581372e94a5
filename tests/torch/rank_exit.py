"""A rank of the tests of failing programs: rank 0 fails with a launch in flight; rank 1 makes none, and ends when it is killed."""

import signal
import sys
import threading
import time

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, PATIENCE, start
from tandem.torch._prepared import Prepared


class Own(Exception):
    pass


def waits(frame):
    """Whether a function of this stack waits for a launch."""
    while frame is not None and frame.f_code is not Prepared.wait.__code__:
        frame = frame.f_back
    return frame is not None


def fail_once_it_waits(_number, frame):
    if waits(frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Own("the rank has failed")


def in_a_call(x, name):
    """The failure comes from a signal's handler, as that of a program that is interrupted."""
    signal.signal(signal.SIGALRM, fail_once_it_waits)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    torch.ops.tandem.all_reduce(x, "sum", name)


def behind_a_call(x, _name):
    """Another thread makes the call."""
    _work = dist.all_reduce(x, async_op=True)
    while not any(waits(frame) for frame in sys._current_frames().values()):
        time.sleep(0.01)
    raise Own("the rank has failed")


def main():
    mode, placement = sys.argv[1:]
    name = start("cpu:tandem" if mode == "behind" else None)
    tandem.torch.configure(placement=placement, launch_deadline=10 * PATIENCE)
    x = torch.ones(100, device=DEVICE)
    dist.all_reduce(x)
    torch.ops.tandem.all_reduce(x, "sum", name)
    tandem.torch.synchronize()
    if dist.get_rank() == 1:
        print("ready", flush=True)
        threading.Event().wait(10 * PATIENCE)
    print("fails", flush=True)
    in_a_call(x, name) if mode == "in" else behind_a_call(x, name)


main()
