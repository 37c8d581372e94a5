"""For programs that are a rank: checks that run one after another on all ranks, each under a separate deadline.

Every check's outcome is a line of JSON on standard output: its name, and what failed or "". A rank ends after the first check that
fails, since the ranks may disagree from then on; node.run_checks() starts them again with the checks that are left. A check
that outlasts its deadline prints the stacks of all threads and ends the rank.
"""

import contextlib
import faulthandler
import json
import os
import sys
import traceback
import warnings
from datetime import timedelta

import tandem.torch
import torch
import torch.distributed as dist

CHECKS = []
CUDA = os.environ.get("TANDEM_TEST_BACKEND", "host") == "cuda"
DEVICE = "cuda" if CUDA else "cpu"
# NCCL refuses ranks that share a GPU; gloo moves CUDA tensors for some collectives only.
SHARED_GPUS = CUDA and int(os.environ.get("TANDEM_TEST_ENGINES_PER_GPU", "1")) > 1
# Seconds in which ranks must meet: more where they compile, which takes one rank longer than another.
PATIENCE = float(os.environ.get("TANDEM_TEST_PATIENCE", "30"))
# More than once where what has been prepared runs another way.
ROUNDS = int(os.environ.get("TANDEM_TEST_ROUNDS", "1"))
FAILED = 3  # the exit status after a check that failed


def check(function):
    """Marks a check of the program: it gets the group's name, and fails by an exception."""
    if function.__module__ == "__main__":
        CHECKS.append(function)
    return function


@contextlib.contextmanager
def configured(name, **changes):
    """The group is attached anew within, with other values of the configuration, and again behind it."""
    before = {field: getattr(tandem.torch.configure(), field) for field in changes}
    tandem.torch.detach(name)
    tandem.torch.configure(**changes)
    try:
        yield
    finally:
        tandem.torch.configure(**before)
        tandem.torch.detach(name)


def once(function):
    """Marks a check that has another outcome the second time."""
    function.once = True
    return check(function)


def start(backend=None, **options):
    """Joins torch's process group, by the backend that suits if none is given; the settings are a test's: short deadlines."""
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fit = "cpu:gloo,cuda:nccl" if CUDA and not SHARED_GPUS else "gloo"
    dist.init_process_group(backend or fit, timeout=timedelta(seconds=2 * PATIENCE), **options)
    tandem.torch.configure(rendezvous_timeout=PATIENCE, launch_deadline=PATIENCE)
    return dist.group.WORLD.group_name


def stop(status=0):
    """Ends the process, without torch's own end (it aborts at times). Rank 0 has the store, and ends last."""
    tandem.torch.detach()
    sys.stdout.flush()
    sys.stderr.flush()
    store = dist.distributed_c10d._get_process_group_store(dist.group.WORLD)
    store.set(f"ended/{dist.get_rank()}", "")
    if dist.get_rank() == 0:
        store.wait([f"ended/{rank}" for rank in range(dist.get_world_size())], timedelta(seconds=PATIENCE))
    os._exit(status)


def main(backend=None, **options):
    """Runs all checks, or those that the command line names. The arguments are of start()."""
    name = start(backend, **options)
    for function in CHECKS:
        if len(sys.argv) > 1 and function.__name__ not in sys.argv[1:]:
            continue
        print("check", function.__name__, file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(5 * PATIENCE, exit=True)
        failure = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # a fallback that no check asked for
                for _ in range(1 if hasattr(function, "once") else ROUNDS):
                    function(name)
                tandem.torch.synchronize()
        except Exception:
            failure = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"check": function.__name__, "failure": failure}), flush=True)
        if failure:
            os._exit(FAILED)
    stop()
