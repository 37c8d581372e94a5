"""A rank whose calls are broken off, whose groups end or are used by several threads, and that comes late or forks."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import PATIENCE, check, main
from rank_plans import daemon_objects
from reference_ops import OPS, rank, world
from tandem import _c
from tandem.torch import _groups, _meeting, _plans

# Where a thread is that waits for other ranks.
WAITS = {
    "launch": _plans.Prepared.wait.__code__,
    "attach": _meeting.Meeting.receive.__code__,
    "prepare": tandem.Group.prepare.__code__,
    "meet": _c._Call.run.__code__,
    "slices": _c.Library.wait_in_slices.__code__,
}


def store():
    return dist.distributed_c10d._get_process_group_store(dist.group.WORLD)


def reach(name):
    """All ranks come to this place. By the store: a rank that stays away does not break torch's collectives for the others."""
    store().add(f"reached/{name}", 1)
    until(lambda: store().add(f"reached/{name}", 0) >= world())


def until(there):
    """Polls: nothing announces the events that these tests wait for."""
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline, "has not come in time"
        time.sleep(0.002)


def in_wait(frame, kind):
    """Whether the frame, or one that called it, waits so for other ranks."""
    while frame is not None:
        if frame.f_code is WAITS[kind]:
            return True
        frame = frame.f_back
    return False


class BrokenOff(BaseException):
    """As KeyboardInterrupt, which would end the test as well."""


def broken_off(kind, call, may_end=False):
    """Runs the call until it waits for other ranks; a signal's handler ends it there. Returns the seconds that this took.
    may_end: the call may end by itself before."""
    sent = []

    def handle(number, frame):
        if in_wait(frame, kind):
            sent.append(time.monotonic())
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise BrokenOff

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        call()
    except BrokenOff:
        return time.monotonic() - sent[0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert may_end, "the call has ended by itself"
    return 0.0


def both_prepared(name):
    OPS.all_reduce(torch.ones(16), "sum", name)
    OPS.all_gather(torch.ones(16), 0, name)


@check
def test_a_launch_that_is_broken_off_keeps_its_memory(name):
    for step in range(2):  # the second one by a plan that a launch was broken off of
        both_prepared(name)
        reach(f"prepared {step}")
        if rank() == 0:
            broken_off("launch", lambda: OPS.all_reduce(torch.full((16,), 1.0), "sum", name))
            reach(f"broken off {step}")
            gathered = OPS.all_gather(torch.full((16,), 5.0), 0, name)
        else:
            reach(f"broken off {step}")
            total = OPS.all_reduce(torch.full((16,), 7.0), "sum", name)
            assert (total == 8.0 + (world() - 2) * 7.0).all(), total
            gathered = OPS.all_gather(torch.full((16,), 9.0), 0, name)
        assert gathered[::16].tolist() == [5.0] + [9.0] * (world() - 1), gathered
        total = OPS.all_reduce(torch.full((16,), 3.0), "sum", name)
        assert (total == 3.0 * world()).all(), total
    tandem.torch.synchronize()
    assert not any(one._kept for one in tandem.torch.attach(name).plans.prepared())


@check
def test_a_family_that_is_dropped_ends_launches_that_were_broken_off(name):
    tandem.torch.detach(name)
    before = tandem.torch.configure()
    tandem.torch.configure(placement="client", families="all")
    try:
        plans = tandem.torch.attach(name).plans
        OPS.all_reduce(torch.ones(4, 8), "sum", name)
        members = plans.prepared()
        assert [one.rows for one in members] == [4], members
        if rank() == 0:
            broken_off("launch", lambda: OPS.all_reduce(torch.ones(4, 8), "sum", name))
            assert members[0]._kept
        reach("a family's launch broken off")
        if rank() != 0:
            OPS.all_reduce(torch.ones(4, 8), "sum", name)
        plans.drop()
        assert not members[0]._kept
    finally:
        tandem.torch.configure(placement=before.placement, families=before.families)
        tandem.torch.detach(name)


@check
def test_a_symmetric_output_outlives_a_call_that_is_broken_off(name):
    tensor = tandem.torch.empty(64)
    OPS.all_reduce.out(torch.ones(64), "sum", name, out=tensor)
    reach("a plan in place")
    if rank() == 0:
        broken_off("launch", lambda: OPS.all_reduce.out(torch.ones(64), "sum", name, out=tensor))
        del tensor
        gc.collect()
        assert tandem.torch.attach(name).symmetric._held, "freed under the launch"
        reach("dropped")
    else:
        reach("dropped")
        OPS.all_reduce.out(torch.ones(64), "sum", name, out=tensor)
        assert (tensor == world()).all(), tensor
    both_prepared(name)
    tandem.torch.synchronize()
    if rank() == 0:
        gc.collect()
        assert not tandem.torch.attach(name).symmetric._held, "kept for ever"


@check
def test_a_prepare_that_is_broken_off_is_made_again(name):
    def total(count):
        return OPS.all_reduce(torch.full((count,), rank() + 1.0), "sum", name)

    want = world() * (world() + 1) / 2
    both_prepared(name)
    for other in (33, 34):  # the same call again, and another one
        reach(f"{other} begins")
        if rank() == 0:
            assert broken_off("meet", lambda: total(33 if other == 33 else 35)) < PATIENCE / 3
        reach(f"{other} broken off")
        assert (total(other) == want).all()
        assert (total(other) == want).all()
    # The others wait already.
    if rank() == 0:
        broken_off("meet", lambda: total(36))
        reach("36")
        assert (total(36) == want).all()
    else:
        reach("36")
        assert (total(36) == want).all()


@check
def test_an_attach_that_is_broken_off_is_made_again(name):
    group = dist.new_group()
    if rank() == 0:
        for _ in range(2):
            assert broken_off("attach", lambda: tandem.torch.attach(group)) < PATIENCE / 3
    reach("attach broken off")
    assert tandem.torch.attach(group).reason == ""
    assert (OPS.all_reduce(torch.ones(32), "sum", group.group_name) == world()).all()
    dist.destroy_process_group(group)


@check
def test_a_join_that_is_broken_off_is_made_again(name):
    """Before the other rank comes, and as it comes: then the first call may succeed all the same."""
    client, joined = tandem.connect(), []
    for step in range(6):
        given = {
            "name": f"broken off {step}",
            "rank": rank(),
            "world_size": world(),
            "job_key": 16 * "k",
            "deadline": PATIENCE,
        }
        if rank() == 0:
            broken_off("meet", lambda: joined.append(client.join(**given)), may_end=step > 0)
        if step == 0:
            reach("join broken off")
        if len(joined) == step:
            joined.append(client.join(**given))
    dist.barrier()
    client.close()


@check
def test_a_leave_that_is_broken_off_is_made_again(name):
    """Beside a launch that the other ranks have not made, and as they make it: then the first call may succeed all the same."""
    client, want = tandem.connect(), world() * (world() + 1) / 2
    dist.barrier()
    before = daemon_objects()
    dist.barrier()
    for step in range(6):
        group = client.join(
            f"left {step}",
            rank=rank(),
            world_size=world(),
            job_key=16 * "k",
            deadline=PATIENCE,
            launch_deadline=PATIENCE,
        )
        mine, total = group.registered(16), group.registered(16)
        plan = group.prepare("sum", "all_reduce", [("input", mine), ("output", total)], deadline=PATIENCE)
        torch.from_dlpack(mine).fill_(rank() + 1.0)
        if rank() == 0:
            plan.launch(mine, total)
            assert broken_off("meet", lambda: group.leave(PATIENCE), may_end=step > 1) < PATIENCE / 3
        if step < 2:
            reach(f"leave {step} broken off")
        if rank() != 0:
            plan.launch(mine, total)
        group.leave(PATIENCE)  # nothing happens where the first call has succeeded
        assert (torch.from_dlpack(total) == want).all(), torch.from_dlpack(total)
        try:
            group.renew()
            raise AssertionError("the group has not been left")
        except ValueError as error:
            assert "has been left" in str(error)
    plan = mine = total = group = None
    dist.barrier()
    until(lambda: daemon_objects() == before)
    dist.barrier()
    client.close()


@check
def test_memory_that_is_broken_off_is_made_again(name):
    """Before the other ranks come, with the same tensor and another one, and as they come: then the first call may succeed."""
    both_prepared(name)
    for step in range(6):
        tensors = []
        if rank() == 0:
            seconds = broken_off("meet", lambda: tensors.append(tandem.torch.empty(64 + step)), may_end=step > 1)
            assert seconds < PATIENCE / 3
        if step < 2:
            reach(f"empty {step} broken off")
        if not tensors:
            tensors.append(tandem.torch.empty(64 + step))
        tensor = tensors[0]
        tensor.fill_(rank() + step)
        handle = tandem.torch.rendezvous(tensor)
        handle.barrier()
        for peer in range(world()):
            assert (handle.get_buffer(peer, (64 + step,), torch.float32) == peer + step).all(), (step, peer)
        handle.barrier()


@check
def test_core_memory_that_is_broken_off_is_made_again(name):
    """Also with other memory than the call that was broken off."""
    both_prepared(name)
    group = tandem.torch.attach(name).group
    for step in range(6):
        made = []
        if rank() == 0:
            broken_off("meet", lambda: made.append(group.empty(16 + step, "i32")), may_end=step > 1)
        if step < 2:
            reach(f"core {step} broken off")
        if not made:
            made.append(group.empty(16 + step, "i32"))
        made[0].barrier()
    if rank() == 0:
        broken_off("meet", lambda: group.empty(999))
    reach("another size")
    group.empty(7).barrier()


@check
def test_a_barrier_that_is_broken_off_goes_on(name):
    both_prepared(name)
    tensor = tandem.torch.empty(16)
    handle = tandem.torch.rendezvous(tensor)
    for step in range(3):
        if rank() == 0:
            assert broken_off("slices", handle.barrier) < PATIENCE / 3
        reach(f"barrier {step} broken off")
        handle.barrier()  # rank 0's arrival was the first call's
        if rank() == 0:
            tensor.fill_(step)
            store().add(f"reached/filled {step}", 1)
        handle.barrier()
        assert store().add(f"reached/filled {step}", 0) == 1, "the barrier has not waited for rank 0"
        assert (handle.get_buffer(0, (16,), torch.float32) == step).all()
        handle.barrier()
    # By its own timeout as well.
    if rank() == 0:
        try:
            handle.barrier(0, 50)
            raise AssertionError("has met nobody")
        except tandem.RankLate as error:
            assert error.ranks == tuple(range(1, world())), error
    reach("late")
    handle.barrier()
    handle.barrier()


@check
def test_a_signal_that_is_broken_off_is_waited_for_again(name):
    both_prepared(name)
    handle = tandem.torch.rendezvous(tandem.torch.empty(16))
    if rank() == 0:
        assert broken_off("slices", lambda: handle.wait_signal(1)) < PATIENCE / 3
    reach("wait broken off")
    if rank() == 1:
        handle.put_signal(0)
    if rank() == 0:
        handle.wait_signal(1)
        handle.put_signal(1, 2)
        assert broken_off("slices", lambda: handle.put_signal(1, 2)) < PATIENCE / 3  # nobody has taken the first
    reach("put broken off")
    if rank() == 1:
        handle.wait_signal(0, 2)
    reach("taken")
    if rank() == 0:
        handle.put_signal(1, 2)
    if rank() == 1:
        handle.wait_signal(0, 2)


@check
def test_threads_use_groups_in_opposite_orders(name):
    groups = [dist.new_group() for _ in range(2)]
    for kind, count in (("attach", 8), ("launch", 8), ("prepare", 16)):
        opposite(
            groups, kind, lambda group, n=count: OPS.all_reduce(torch.full((n,), rank() + 1.0), "sum", group.group_name)
        )
    for group in groups:
        dist.destroy_process_group(group)


def opposite(groups, kind, call):
    """Rank 0 waits in the first group, then comes to the second; the others come to the first after the second's end."""
    results = {}

    def run(index):
        results[index] = call(groups[index])

    if rank() == 0:
        first = threading.Thread(target=run, args=(0,), daemon=True)
        first.start()
        until(lambda: in_wait(sys._current_frames().get(first.ident), kind))
        run(1)
        first.join(PATIENCE)
    else:
        run(1)
        run(0)
    want = world() * (world() + 1) / 2
    assert [results[index][0].item() for index in range(2)] == [want, want], results


@check
def test_ranks_that_have_given_up_meet(name):
    group = dist.new_group()
    before = tandem.torch.configure()
    tandem.torch.configure(rendezvous_timeout=0.3)
    # Rank 1 comes and goes; then rank 0 finds its offer, and gives up in the middle of joining.
    for step, one in enumerate((1, 0, 1)):
        if rank() == one:
            try:
                tandem.torch.attach(group)
                raise AssertionError("attached alone")
            except tandem.RankLate as error:
                assert error.rank == 1 - one or world() > 2, error
        reach(f"given up {step}")
    tandem.torch.configure(rendezvous_timeout=before.rendezvous_timeout)
    assert tandem.torch.attach(group).reason == ""
    total = OPS.all_reduce(torch.ones(4), "sum", group.group_name)
    assert (total == world()).all()
    for _ in range(2):
        tandem.torch.detach(group)
        assert tandem.torch.attach(group).reason == ""
    dist.destroy_process_group(group)


@check
def test_groups_that_end_leave_nothing(name):
    both_prepared(name)
    dist.barrier()
    before = daemon_objects()
    dist.barrier()
    for _ in range(5):
        group = dist.new_group()
        attached = tandem.torch.attach(group)
        OPS.all_reduce(torch.ones(4096), "sum", group.group_name)
        dist.destroy_process_group(group)
        assert attached.group is None
    assert not [one for one in _groups._state.attachments.values() if one.group is None]
    dist.barrier()
    until(lambda: daemon_objects() == before)
    dist.barrier()


def in_child(call):
    """The exception of the call in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = f"no error: {call()}"
        except tandem.TandemError as error:
            text = error.reason
        except BaseException as error:
            text = repr(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    try:
        timer = threading.Timer(PATIENCE, os.kill, (child, signal.SIGKILL))
        timer.start()
        with os.fdopen(reader) as file:
            text = file.read()
        status = os.waitpid(child, 0)[1]
        timer.cancel()
        return text if status == 0 else f"status {status}"
    finally:
        timer.cancel()


class Rows(torch.utils.data.Dataset):
    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, index):
        return self.tensor[index]


@check
def test_a_forked_child_is_refused(name):
    both_prepared(name)
    unused = dist.new_group()
    tensor = tandem.torch.empty(16).fill_(3.0)
    part, ordinary = tensor[4:].view(3, 4), torch.full((4,), 5.0)
    handle = tandem.torch.rendezvous(tensor)
    for call in (
        lambda: OPS.all_reduce(torch.ones(16), "sum", name),
        lambda: OPS.all_reduce(torch.ones(5), "sum", name),
        lambda: OPS.all_reduce(torch.ones(5), "sum", unused.group_name),
        lambda: tandem.torch.attach(name),
        lambda: tandem.torch.empty(4),
        lambda: float(tensor[0]),
        lambda: part.sum(),
        lambda: tensor.fill_(4.0),
        lambda: repr(part),
        lambda: handle.barrier(),
        lambda: handle.get_buffer(0, (4,), torch.float32).sum(),
        lambda: tandem.torch.memset32(tensor, 0, 1),
    ):
        told = in_child(call)
        assert told == "FORKED", told
    assert in_child(lambda: float(ordinary.sum())) == "no error: 20.0"
    loader = torch.utils.data.DataLoader(
        Rows(tensor), num_workers=1, multiprocessing_context=multiprocessing.get_context("fork")
    )
    try:
        raise AssertionError(list(loader))
    except tandem.errors.FailedPrecondition as error:
        assert "FORKED" in str(error)
    # The parents go on.
    assert (tensor == 3.0).all()
    assert (OPS.all_reduce(torch.ones(16), "sum", name) == world()).all()


if __name__ == "__main__":
    main()
