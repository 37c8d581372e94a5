"""A rank of test_checkpoint.py that is checkpointed and restored as a whole process: it hears and tells by files in a folder."""

import ctypes
import json
import os
import sys
import time
import traceback

import tandem

RANK, FOLDER = int(sys.argv[1]), sys.argv[2]
WORLD = 2
COUNT = 1024
PATIENCE = 120


def tell(name, **told):
    path = os.path.join(FOLDER, f"{name}{RANK}")
    with open(path + ".part", "w") as file:
        json.dump(told, file)
    os.rename(path + ".part", path)


def hear(name):
    while not os.path.exists(os.path.join(FOLDER, name)):
        time.sleep(0.005)


def values(memory):
    array = memory.__array_interface__
    return (ctypes.c_float * COUNT).from_address(array["data"][0])


class Job:
    """Plans of both placements, a graph, and memory of the group's and of this process's own."""

    def __init__(self, client):
        self.group = client.join(
            "tp", world_size=WORLD, rank=RANK, job_key="0123456789abcdef-checkpoint", deadline=PATIENCE
        )
        self.mine, self.total = (self.group.registered((COUNT,)) for _ in range(2))
        self.kept = self.group.empty((COUNT,))
        operands = [("input", self.mine), ("output", self.total)]
        self.plans = [
            self.group.prepare(placement, "all_reduce", operands, placement=placement, deadline=PATIENCE)
            for placement in ("client", "engine")
        ]
        self.stream = tandem.Stream()
        self.stream.begin_capture()
        self.plans[0].launch(self.mine, self.total, stream=self.stream)
        self.graph = self.stream.end_capture()
        for place in range(COUNT):
            values(self.kept)[place] = place + RANK
        self.number = 0

    def launch(self, run):
        self.number += 1
        for place in range(COUNT):
            values(self.mine)[place] = self.number % 100 + RANK + place % 5
            values(self.total)[place] = -1
        run()
        self.stream.synchronize(PATIENCE)
        expected = [WORLD * (self.number % 100 + place % 5) + 1 for place in range(COUNT)]
        assert list(values(self.total)) == expected, (self.number, list(values(self.total))[:4], expected[:4])

    def check(self, replays):
        for plan in self.plans:
            self.launch(lambda plan=plan: plan.launch(self.mine, self.total, stream=self.stream))
        for _ in range(replays):
            self.launch(lambda: self.graph.launch(self.stream))
        for plan in self.plans:
            plan.wait(PATIENCE)
        assert list(values(self.kept)) == [place + RANK for place in range(COUNT)]

    def addresses(self):
        return [memory.__array_interface__["data"][0] for memory in (self.mine, self.total, self.kept)]


def main():
    client = tandem.connect()
    job = Job(client)
    job.check(3)
    places = job.addresses()
    tell("ready")
    hear("leave")
    job.group.suspend(keep=True)
    client.begin_checkpoint()
    tell("left")
    hear("restored")
    try:
        job.group.resume(PATIENCE)
    except tandem.TandemError as error:
        tell("refused", reason=error.reason)
        os._exit(0)
    job.check(200)
    assert job.addresses() == places
    client.check()
    tell("done")
    hear("end")
    job.group.leave(PATIENCE)
    client.close()


try:
    main()
except BaseException:  # at once: the other rank would be waited for
    with open(os.path.join(FOLDER, f"failed{RANK}"), "w") as file:
        traceback.print_exc(file=file)
    os._exit(1)
