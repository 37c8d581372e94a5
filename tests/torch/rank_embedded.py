"""A rank that goes through steps, for a node without a tandemd: rank_embedded.py FOLDER STEP...

    op            an all-reduce of the world; prints a line of JSON: the sum, and which daemon serves
    op:0,1        the same of a subgroup, by its ranks alone; the group stays
    lost          an op that fails, since the daemon has been killed; detaches
    again         ends torch's process groups and makes the world anew
    wait:NAME     waits for a file of this name in FOLDER
The rank prints "did STEP" after each. TANDEM_TEST_SYSTEM stands for /run/tandem.
"""

import json
import logging
import os
import sys
import time
import warnings
from datetime import timedelta

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from tandem import _places
from tandem.torch import _groups

PATIENCE = float(os.environ.get("TANDEM_TEST_PATIENCE", "120"))
MADE = {}


def initialise(folder, number):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store{number}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=PATIENCE),
    )


def subgroup(ranks):
    """The group of these ranks, which make it without the others."""
    if ranks not in MADE:
        members = [int(rank) for rank in ranks.split(",")]
        MADE[ranks] = dist.new_group(members, use_local_synchronization=True)
    return MADE[ranks]


def run_op(group):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        total = torch.ops.tandem.all_reduce(torch.tensor([1.0 + dist.get_rank()]), "sum", group.group_name)
    attached = tandem.torch.attach(group)
    client = None if attached.group is None else attached.group.client
    print(
        json.dumps(
            {
                "sum": total.item(),
                "reason": attached.reason,
                "own": _groups._state.daemons.started,
                "gpus": 0 if client is None else len(client.gpus),
                "warnings": [str(one.message) for one in seen],
            }
        ),
        flush=True,
    )


def lose():
    try:
        torch.ops.tandem.all_reduce(torch.ones(1), "sum", dist.group.WORLD.group_name)
    except tandem.TandemError:
        tandem.torch.detach()
        return
    raise AssertionError("the op has been served by a daemon that is dead")


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def run(step, folder, number):
    name, _, argument = step.partition(":")
    if name == "op":
        if not argument:
            run_op(dist.group.WORLD)
        elif str(dist.get_rank()) in argument.split(","):
            run_op(subgroup(argument))
    elif name == "lost":
        lose()
    elif name == "again":
        dist.destroy_process_group()
        initialise(folder, number)
    elif name == "wait":
        wait_for(os.path.join(folder, argument))
    else:
        raise ValueError(step)


def main():
    folder, *steps = sys.argv[1:]
    if "TANDEM_TEST_SYSTEM" in os.environ:
        _places.SYSTEM = os.environ["TANDEM_TEST_SYSTEM"]
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    initialise(folder, 0)
    tandem.torch.configure(rendezvous_timeout=PATIENCE, launch_deadline=PATIENCE)
    for number, step in enumerate(steps, 1):
        run(step, folder, number)
        print("did " + step, flush=True)
    _groups._shutdown()  # as at the interpreter's end
    sys.stdout.flush()
    os._exit(0)  # torch's own end aborts at times


if __name__ == "__main__":
    main()
