"""For programs that are a rank: checks that run one after another on all ranks, and a result as the last line."""

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


def check(function):
    """Marks a check of the program: it gets the group's name, and fails by an exception."""
    if function.__module__ == "__main__":
        CHECKS.append(function)
    return function


def start():
    """Joins torch's process group; the settings are a test's: short deadlines."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    patience = float(
        os.environ.get("TANDEM_TEST_PATIENCE", "30")
    )  # more where ranks compile, which takes one longer than another
    dist.init_process_group("gloo", timeout=timedelta(seconds=60 + 2 * patience))
    tandem.torch.configure(rendezvous_timeout=patience, launch_deadline=patience)
    return dist.group.WORLD.group_name


def stop(result):
    """Prints the result and ends the process, without torch's own end (it aborts at times)."""
    tandem.torch.detach()
    print(json.dumps(result), flush=True)
    store = dist.distributed_c10d._get_process_group_store(dist.group.WORLD)
    store.add("ended", 1)
    while dist.get_rank() == 0 and store.add("ended", 0) < dist.get_world_size():
        pass
    sys.stderr.flush()
    os._exit(0)


def main():
    """Runs all checks, or those named on the command line; the result is {name: "" or what failed}."""
    name = start()
    outcome = {}
    for function in CHECKS:
        if len(sys.argv) > 1 and function.__name__ not in sys.argv[1:]:
            continue
        print("check", function.__name__, file=sys.stderr, flush=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # a fallback that no check asked for
                function(name)
            outcome[function.__name__] = ""
        except Exception:
            outcome[function.__name__] = traceback.format_exc()
            print(traceback.format_exc(), file=sys.stderr, flush=True)
    stop(outcome)
