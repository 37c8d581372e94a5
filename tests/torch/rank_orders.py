"""A rank that uses three groups of the same processes in another order than its peers, by eager collectives of torch.distributed."""

import itertools
import random

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from reference_ops import rank, world

STEPS = 40
COUNTS = (16, 300, 5000)


def want(count, step):
    return torch.full((count,), world() * (world() + 1) / 2 + step * world(), device=DEVICE)


def operand(count, step):
    return torch.full((count,), rank() + 1.0 + step, device=DEVICE)


def call(group, kind, count, step, asynchronous):
    """(the work or None, the result, what it must be) of one collective."""
    if kind == "sum":
        x = operand(count, step)
        return dist.all_reduce(x, group=group, async_op=asynchronous), x, want(count, step)
    out = torch.empty(count * world(), device=DEVICE)
    work = dist.all_gather_into_tensor(out, operand(count, step), group=group, async_op=asynchronous)
    whole = torch.cat([torch.full((count,), one + 1.0 + step, device=DEVICE) for one in range(world())])
    return work, out, whole


def run(groups, count, step, kinds, order):
    """Starts one collective of each group in this order, then waits in another one."""
    started = {index: call(groups[index], kinds[index], count, step, True) for index in order}
    for index in reversed(order):
        work, got, right = started[index]
        work.wait()
        assert torch.equal(got, right), (step, index, kinds[index], got[:4], right[:4])


@check
def test_asynchronous_works_in_opposite_orders(name):
    """Of sizes that are known: a new one is prepared with all ranks where it is called."""
    if SHARED_GPUS:
        return
    tandem.torch.install()
    groups = [dist.new_group() for _ in range(3)]
    for group in groups:
        for count, kind in itertools.product(COUNTS, ("sum", "gather")):
            call(group, kind, count, 0, False)
    draw = random.Random(7)
    before = tandem.torch.report().taken
    for step in range(STEPS):
        kinds = [draw.choice(("sum", "gather")) for _ in groups]
        count = draw.choice(COUNTS)
        order = [0, 1, 2]
        draw.shuffle(order)
        run(groups, count, step, kinds, order if rank() % 2 == 0 else order[::-1])
    assert tandem.torch.report().taken - before == STEPS * len(groups), tandem.torch.report()
    for group in groups:
        dist.destroy_process_group(group)
    tandem.torch.uninstall()


@check
def test_first_calls_in_opposite_orders_are_named(name):
    """A group's first call waits for all ranks where it is made. Each rank learns which one has not come, and may come again."""
    groups = [dist.new_group() for _ in range(3)]
    before = tandem.torch.configure()
    tandem.torch.configure(rendezvous_timeout=2.0)
    try:
        tandem.torch.attach(groups[rank()])
        raise AssertionError("nobody else has come")
    except tandem.RankLate as error:
        assert error.ranks == (1 - rank(),), error
    dist.barrier()  # else a rank that goes on joins the other's group
    tandem.torch.configure(rendezvous_timeout=before.rendezvous_timeout)
    tandem.torch.install()
    for step, group in enumerate(groups):
        _, got, right = call(group, "sum", 16, step, False)
        assert torch.equal(got, right)
    for group in groups:
        dist.destroy_process_group(group)
    tandem.torch.uninstall()


@check
def test_blocking_calls_in_opposite_orders_are_named(name):
    """No order of blocking calls can serve them, as of gloo's. The launches' deadline names a rank, and a renewal mends the group."""
    if DEVICE != "cpu":
        return  # they only enqueue there
    tandem.torch.install()
    groups = [dist.new_group() for _ in range(3)]
    before = tandem.torch.configure()
    tandem.torch.configure(launch_deadline=2.0, rendezvous_timeout=30.0)
    for group in groups:
        _, got, right = call(group, "sum", 16, 0, False)
        assert torch.equal(got, right)
    failures = []
    for index in (0, 1, 2) if rank() == 0 else (2, 1, 0):
        try:
            call(groups[index], "sum", 16, 1, False)
        except RuntimeError as error:
            failures.append(str(error))
    assert f"rank {1 - rank()} had not arrived" in failures[0], failures
    assert all("had not arrived" in text for text in failures), failures
    for group in groups:
        tandem.torch.renew(group)
    for step, group in enumerate(groups):
        _, got, right = call(group, "sum", 16, step, False)
        assert torch.equal(got, right)
    tandem.torch.configure(launch_deadline=before.launch_deadline, rendezvous_timeout=before.rendezvous_timeout)
    for group in groups:
        dist.destroy_process_group(group)
    tandem.torch.uninstall()


if __name__ == "__main__":
    main()
