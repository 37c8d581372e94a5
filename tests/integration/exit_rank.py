"""A rank of test_exit.py: rank 0 launches, and its program fails; rank 1 does not launch, and ends when it is told to."""

import sys

import tandem
from tandem import _c

KEY = "0123456789abcdef-exit"
PATIENCE = 60
RANK, WHERE, PLACEMENT = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class Own(Exception):
    pass


def join():
    client = tandem.connect()
    options = {"placement": PLACEMENT}
    return client.join("exit", world_size=2, rank=RANK, job_key=KEY, deadline=PATIENCE, options=options)


def prepare(group):
    mine, total = group.registered(1000), group.registered(1000)
    return group.prepare("sum", "all_reduce", [("input", mine), ("output", total)], deadline=PATIENCE), mine, total


def fail(plan, mine, total):
    """Launches and fails, on rank 0."""
    if RANK == 1:
        print("prepared", flush=True)
        sys.stdin.read()
        return
    plan.launch(mine, total)
    raise Own("the rank has failed")


def in_a_function():
    """What it has lives as long as the traceback."""
    group = join()
    plan, mine, total = prepare(group)
    fail(plan, mine, total)


def in_contexts():
    with join() as group:
        plan, mine, total = prepare(group)
        with plan:
            fail(plan, mine, total)


if WHERE == "function":
    in_a_function()
elif WHERE == "contexts":
    in_contexts()
elif WHERE == "detaching":
    group = join()
    plan, mine, total = prepare(group)
    if RANK == 0:
        plan.launch(mine, total)
        library = _c.library()
        library.wait_within(0.1, library.client_detach, group.client._handle.value)
    fail(plan, mine, total)
elif WHERE == "listening":
    group = join()
    group.client.on_event(lambda event: None)
    plan, mine, total = prepare(group)
    fail(plan, mine, total)
else:
    group = join()
    plan, mine, total = prepare(group)
    fail(plan, mine, total)
