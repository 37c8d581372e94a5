"""For programs that are a rank: a user's program runs by the process group's backend, and then by Tandem behind install()."""

import contextlib
import os
import sys
import tempfile
from collections import Counter

import tandem.torch
import torch
import torch.distributed as dist


def counts():
    """The calls since the process began, by collective and reason."""
    return Counter({(row.op, row.reason): row.calls for row in tandem.torch.report().rows})


def both_ways(title, program, taken, left=(), summed_in=torch.float32):
    """Runs a program that returns tensors or numbers, in lists or dicts, and compares what it returns.

    taken: the collectives that Tandem runs, all of them and no other. left: (collective, reason) of all those that it leaves.
    Sums of two ranks have one order, so results are equal bit by bit. Those of more ranks are as close as sums in `summed_in`.
    """
    want = program()
    before = counts()
    tandem.torch.install()
    try:
        got = program()
        tandem.torch.synchronize()
    finally:
        tandem.torch.uninstall()
    calls = counts() - before
    show(title, calls)
    near = 0 if dist.get_world_size() == 2 else 8 * torch.finfo(summed_in).eps
    torch.testing.assert_close(got, want, rtol=near, atol=near, msg=lambda text: f"{title}: {text}")
    assert {op for op, reason in calls if not reason} == set(taken), f"{title}: {calls}"
    assert {key for key in calls if key[1]} == set(left), f"{title}: {calls}"


def show(title, calls):
    """Writes what became of a program's calls to the log, and to the file that the test shows."""
    lines = [f"{title}, {dist.get_world_size()} ranks:"]
    for (op, reason), number in sorted(calls.items()):
        lines.append(f"  {number:4} {op:15} {reason or 'by Tandem'}")
    text = "\n".join(lines) + "\n"
    sys.stderr.write(text)
    if dist.get_rank() == 0 and "TANDEM_TEST_SHOWN" in os.environ:
        with open(os.environ["TANDEM_TEST_SHOWN"], "a") as file:
            file.write(text)


@contextlib.contextmanager
def shared_folder():
    """A folder that all ranks know; it is removed once all have left."""
    with tempfile.TemporaryDirectory() as own:
        path = [own]
        dist.broadcast_object_list(path, 0)
        yield path[0]
        dist.barrier()
