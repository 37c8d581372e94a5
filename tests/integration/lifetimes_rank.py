"""A rank of test_lifetimes.py: sessions, groups, memory, plans and launches that are made, dropped in any order, broken off by signals and
left to forked children. `alike` draws the same on both ranks, `own` does not."""

import ctypes
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import traceback

import tandem
from tandem import _c

PATIENCE = 60
KEY = "0123456789abcdef-lifetimes"
# Frames of calls that wait for the other rank.
WAITS = {_c._Call.run.__code__, _c.Library.wait_in_slices.__code__}
RANK, PEER, SEED, ROUNDS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [int(count) for count in sys.argv[4:]]


class BrokenOff(BaseException):
    """As KeyboardInterrupt, which would end the rank as well."""


def tell():
    os.write(PEER, b".")


def hear():
    assert os.read(PEER, 1) == b".", "the other rank has ended"


def broken_off(call):
    """Runs the call until it waits for the other rank; a signal's handler ends it there."""

    def handle(number, frame):
        while frame is not None and frame.f_code not in WAITS:
            frame = frame.f_back
        if frame is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise BrokenOff

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    try:
        call()
    except BrokenOff:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    raise AssertionError("the call has ended by itself")


def together(alike, call):
    """The call of both ranks. At times one makes it alone, is broken off, and makes it again with the other."""
    early = alike.choice((None, None, None, 0, 1))
    if early == RANK:
        broken_off(call)
        tell()
    elif early is not None:
        hear()
    return call()


def values(memory):
    array = memory.__array_interface__
    return (ctypes.c_float * array["shape"][0]).from_address(array["data"][0])


def launch(alike, plan, mine, total, number):
    """A launch of both ranks, whose sum is right, also where one was broken off as it waited."""
    for place in range(len(values(mine))):
        values(mine)[place] = number % 100 + RANK + place % 3
    early = alike.choice((None, None, None, 0, 1))
    if early == 1 - RANK:
        hear()
    plan.launch(mine, total)
    if early == RANK:
        broken_off(lambda: plan.wait(PATIENCE))
        tell()
    plan.wait(PATIENCE)
    want = [2 * (number % 100 + place % 3) + 1 for place in range(3)]
    assert all(value == want[place % 3] for place, value in enumerate(values(total))), "a wrong sum"


def fork(made):
    """A child gets an error of each call, drops all that it has, and ends; its parent is unharmed."""
    child = os.fork()
    if child != 0:
        assert os.waitpid(child, 0)[1] == 0, "the child has failed"
        return
    signal.alarm(PATIENCE)  # ends a child that hangs
    status = 1
    try:
        plan, group = made["plan"], made["group"]
        calls = {
            "launch": lambda plan=plan: plan.launch(made["mine"], made["total"]),
            "wait": lambda plan=plan: plan.wait(1),
            "register": lambda group=group: group.registered(4),
            "leave": lambda group=group: group.leave(1),
            "check": group.client.check,
        }
        told = set()
        for name, call in calls.items():
            try:
                call()
                told.add(name)
            except tandem.TandemError as error:
                told.add(error.reason)
        del plan, group, calls, call
        made.clear()
        gc.collect()
        assert told == {"FORKED"}, told
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def end(own, made):
    """Ends or drops each thing, in an order of this rank's own."""
    order = list(made)
    own.shuffle(order)
    for name in order:
        one = made.pop(name)
        if own.random() < 0.5:
            one.leave(PATIENCE) if name == "group" else one.close()
        del one
        if own.random() < 0.2:
            gc.collect()


def prepared(made):
    operands = [("input", made["mine"]), ("output", made["total"])]
    return made["group"].prepare("sum", "all_reduce", operands, deadline=PATIENCE)


def play(client, number):
    alike, own = random.Random(f"{SEED} {number}"), random.Random(f"{SEED} {number} {RANK}")
    options = {"placement": alike.choice(("engine", "client"))}
    deadlines = {"deadline": PATIENCE, "launch_deadline": PATIENCE}
    name = f"group {number}"
    made = {}
    made["group"] = client.join(name, world_size=2, rank=RANK, job_key=KEY, options=options, **deadlines)
    count, symmetric = alike.randrange(1, 2000), alike.random() < 0.3
    for slot in ("mine", "total"):
        kind = made["group"].empty if symmetric else made["group"].registered
        made[slot] = together(alike, lambda kind=kind: kind(count)) if symmetric else kind(count)
        del kind
    made["plan"] = together(alike, lambda: prepared(made))
    for step in range(alike.randrange(4)):
        launch(alike, made["plan"], made["mine"], made["total"], number + step)
    if own.random() < 0.05:
        fork(made)
    if alike.random() < 0.5:  # in flight while all is dropped
        made["plan"].launch(made["mine"], made["total"])
    end(own, made)


def usage():
    for thread in threading.enumerate():  # those that keep memory of launches that are dropped in flight
        if thread is not threading.current_thread():
            thread.join(PATIENCE)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {"bytes": pages * os.sysconf("SC_PAGE_SIZE"), "descriptors": len(os.listdir("/proc/self/fd"))}


def main():
    faulthandler.enable()
    number = 0
    for rounds in ROUNDS:
        client = tandem.connect()
        for _ in range(rounds):
            play(client, number)
            number += 1
            if random.Random(f"{SEED} session {number}").random() < 0.02:
                client = None  # a session ends with its last handle
                gc.collect()
                client = tandem.connect()
        client.close()
        client = None
        gc.collect()
        print(json.dumps(usage()), flush=True)
        sys.stdin.readline()


main()
