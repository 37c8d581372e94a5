"""A rank of test_client_suspend.py: joins several groups at once, in an order that no other rank has, and suspends all of them by one
call. Its arguments are rank, world, and how often."""

import ctypes
import os
import sys
import threading
import traceback

import tandem

RANK, WORLD, TIMES = map(int, sys.argv[1:4])
KEY = "0123456789abcdef-orders"
PATIENCE = 120
COUNT = 64
NAMES = ("a", "b", "c")


def values(memory):
    return (ctypes.c_float * COUNT).from_address(memory.__array_interface__["data"][0])


def joined(client, turn):
    """Groups by name. All joins are under way at once, each begun by a thread of its own."""
    groups, failures = {}, []

    def join(name):
        try:
            groups[name] = client.join(f"{name}{turn}", world_size=WORLD, rank=RANK, job_key=KEY, deadline=PATIENCE)
        except tandem.TandemError as error:
            failures.append(error)

    order = NAMES[RANK:] + NAMES[:RANK] if turn % 2 else tuple(reversed(NAMES[RANK:] + NAMES[:RANK]))
    threads = [threading.Thread(target=join, args=(name,)) for name in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return groups


def main():
    client = tandem.connect()
    for turn in range(TIMES):
        groups = joined(client, turn)
        tensors = {}
        for name in NAMES:
            tensors[name] = groups[name].empty((COUNT,))
            values(tensors[name])[:] = [RANK + 1.0] * COUNT
        places = {name: tensors[name].__array_interface__["data"][0] for name in NAMES}
        for keep in (True, False):
            client.suspend(keep, PATIENCE)
            client.suspend(keep, PATIENCE)
            client.resume(PATIENCE)
            client.resume(PATIENCE)
            for name in NAMES:
                assert tensors[name].__array_interface__["data"][0] == places[name]
                assert list(values(tensors[name])) == [RANK + 1.0 if keep else 0.0] * COUNT, (name, keep)
        for name in NAMES:
            groups[name].leave(PATIENCE)
    client.close()


try:
    main()
except BaseException:  # at once: the other ranks would wait for this one
    traceback.print_exc()
    os._exit(1)
