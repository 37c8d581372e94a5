"""A rank of test_memory.py: makes and drops tensors, registered memory, plans, graphs and groups. After each step what the library counts is
what the kernel has mapped, and what was made."""

import dataclasses
import gc
import os
import re
import sys
import time
import traceback

import tandem

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
KEY = "0123456789abcdef-memory"
PATIENCE = 120
PAGE = 4096
SHAPE = (64, 64)
TENSOR = 64 * 64 * 4
ZERO = tandem.MemoryUsage(*(0 for _ in dataclasses.fields(tandem.MemoryUsage)))
CLIENT = tandem.connect()


def mapped():
    """Bytes of Tandem's memory files in this process, by their names."""
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            entry = re.match(r"(\w+)-(\w+) .* /memfd:tandem-([a-z]+)", line)
            if entry:
                found[entry[3]] = found.get(entry[3], 0) + int(entry[2], 16) - int(entry[1], 16)
    return found


def pages(size):
    return (size + PAGE - 1) // PAGE * PAGE


def check(registered=()):
    """The client's usage, which is what this process has mapped. `registered`: sizes of the registered memory."""
    usage, found = CLIENT.used_memory(), mapped()
    assert usage.segment_bytes + usage.peer_bytes == found.get("gpu", 0), (usage, found)
    assert usage.peer_bytes == (WORLD - 1) * usage.segment_bytes, usage
    assert usage.registered_bytes == sum(registered), usage
    assert sum(map(pages, registered)) == found.get("registered", 0), (usage, found)
    assert pages(usage.host_bytes) == sum(found.get(name, 0) for name in ("ring", "words", "verdict")), (usage, found)
    assert usage.symmetric_bytes + usage.workspace_bytes + usage.signal_bytes <= usage.segment_bytes, usage
    assert usage.imported_bytes == 0, usage
    return usage


def wait_until(condition):
    """Memory of graphs goes on a thread of the library's."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, CLIENT.used_memory()
        time.sleep(0.001)


def join(name):
    return CLIENT.join(name, world_size=WORLD, rank=RANK, job_key=KEY, deadline=PATIENCE)


def prepare(group, key, memories, placement):
    operands = list(zip(("input", "output"), memories, strict=True))
    return group.prepare(key, "all_reduce", operands, placement=placement, deadline=PATIENCE)


def tensors(group, other):
    first = group.empty(SHAPE)
    assert check().symmetric_bytes == group.used_memory().symmetric_bytes == TENSOR
    named, again = (group.empty((10,), name="named") for _ in range(2))
    assert check().symmetric_bytes == TENSOR + 40
    elsewhere = other.empty(SHAPE)
    assert check().symmetric_bytes == 2 * TENSOR + 40
    assert group.used_memory().symmetric_bytes == TENSOR + 40
    assert other.used_memory().symmetric_bytes == TENSOR
    parts, whole = [one.used_memory().segment_bytes for one in (group, other)], CLIENT.used_memory().segment_bytes
    assert max(parts) <= whole <= sum(parts), (parts, whole)
    named.close()
    assert check().symmetric_bytes == 2 * TENSOR + 40
    again.close()
    assert check().symmetric_bytes == 2 * TENSOR
    first.close()
    assert group.used_memory() == ZERO
    assert check() == dataclasses.replace(other.used_memory(), host_bytes=0)
    elsewhere.close()
    assert check() == ZERO


def registered(group):
    one, two = group.registered((3,)), group.registered((5000,))
    check(registered=(12, 20000))
    assert group.used_memory() == ZERO
    one.close()
    check(registered=(20000,))
    two.close()
    assert check() == ZERO


def client_plans(group):
    memories = [group.registered(SHAPE) for _ in range(2)]
    sizes = (TENSOR, TENSOR)
    plan, other = (prepare(group, key, memories, "client") for key in ("one", "two"))
    usage = check(registered=sizes)
    info = plan.info
    assert info["placement"].startswith("client"), info
    assert usage.workspace_bytes >= 2 * info["workspace_bytes"] + info["bulk_bytes"], (usage, info)
    assert usage.signal_bytes > 0 and usage.host_bytes == PAGE, usage
    assert group.used_memory() == dataclasses.replace(usage, registered_bytes=0)
    other.close()
    assert check(registered=sizes) == usage  # the plans share all of it
    # A graph holds what its launches need.
    stream = tandem.Stream()
    stream.begin_capture()
    plan.launch(*memories, stream=stream)
    graph = stream.end_capture()
    plan.close()
    del plan, other
    gc.collect()
    assert check(registered=sizes) == usage
    graph.close()
    del graph
    wait_until(lambda: CLIENT.used_memory().signal_bytes == 0)
    wait_until(lambda: "gpu" not in mapped())
    assert check(registered=sizes) == dataclasses.replace(ZERO, registered_bytes=sum(sizes), host_bytes=PAGE)
    stream.close()
    for memory in memories:
        memory.close()


def engine_plans(group):
    memories = [group.empty(SHAPE) for _ in range(2)]
    before = check()
    with prepare(group, "engine", memories, "engine") as plan:
        assert check() == before  # engines have all that it needs
        plan.launch(*memories)
        plan.wait(PATIENCE)
        assert check().host_bytes > before.host_bytes  # the channel of the client's stream
        assert group.used_memory().host_bytes == before.host_bytes
    for memory in memories:
        memory.close()


def main():
    assert check() == ZERO
    group, other = join("one"), join("two")
    assert check() == group.used_memory() == ZERO
    tensors(group, other)
    registered(group)
    client_plans(group)
    engine_plans(group)
    group.leave(PATIENCE)
    other.leave(PATIENCE)
    del group, other
    gc.collect()
    left = check()
    assert left == dataclasses.replace(ZERO, host_bytes=left.host_bytes), left
    assert "verdict" not in mapped(), mapped()
    CLIENT.close()


try:
    main()
except BaseException:  # at once: the other rank would be waited for
    traceback.print_exc()
    os._exit(1)
