"""A rank on a GPU: a launch that waits for late data, a program that is broken off behind a launch, and groups that end."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import check, main
from reference_ops import OPS, near, rand, rank, world

ROUNDS = 220  # more groups than the GPU had memory for while ended groups kept theirs
GROWTH = 64 << 20  # bytes; a group that stays takes 10 MiB


def reach(name):
    """All ranks come to this place, while launches wait on their streams."""
    store = dist.distributed_c10d._get_process_group_store(dist.group.WORLD)
    store.add(f"reached/{name}", 1)
    while store.add(f"reached/{name}", 0) < world():
        pass


@check
def test_late_chunks_hold_no_other_group(name):
    other = dist.new_group(range(world()))
    a, b = rand(4, 8), rand(8, 5, seed=1)
    signals = torch.ones(2, dtype=torch.int32, device="cuda")
    own, writer = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.full((4096,), rank() + 1.0, device="cuda")
    near(OPS.async_input_matmul(a, b, signals, 0, name), a @ b)
    OPS.all_reduce(x, "sum", other.group_name)
    signals.zero_()
    torch.cuda.synchronize()
    reach("prepared")
    with torch.cuda.stream(own):
        got = OPS.async_input_matmul(a, b, signals, 0, name)
    for _ in range(20):
        total = OPS.all_reduce(x, "sum", other.group_name)
    torch.cuda.current_stream().synchronize()
    # Copies alone: CUDA loads a kernel at its first launch, and then waits for all streams.
    assert set(total.tolist()) == {world() * (world() + 1) / 2}, total[0]
    assert not own.query(), "the launch did not wait for its chunks"
    reach("beside")
    with torch.cuda.stream(writer):
        signals.fill_(1)
    own.synchronize()
    near(got, a @ b)
    tandem.torch.synchronize()
    tandem.torch.detach(other)
    dist.destroy_process_group(other)


class BrokenOff(BaseException):
    """As KeyboardInterrupt, which would end the test as well."""


def broken_off(value, name):
    """Launches a sum of `value` and loses its tensors by an exception, while peers have not launched theirs."""
    try:
        total = OPS.all_reduce(torch.full((4096,), value, device="cuda"), "sum", name)
        assert total is not None
        raise BrokenOff
    except BrokenOff:
        return


@check
def test_memory_of_a_launch_that_is_broken_off_is_its_own(name):
    ones = torch.ones(4096, device="cuda")
    OPS.all_reduce(ones, "sum", name)
    OPS.all_gather(ones, 0, name)
    torch.cuda.synchronize()
    for step in range(10):
        reach(f"step {step}")
        if rank() == 0:
            broken_off(1.0, name)
            gathered = OPS.all_gather(torch.full((4096,), 5.0, device="cuda"), 0, name)
            reach(f"broken off {step}")
        else:
            reach(f"broken off {step}")
            total = OPS.all_reduce(torch.full((4096,), 7.0, device="cuda"), "sum", name)
            gathered = OPS.all_gather(torch.full((4096,), 9.0, device="cuda"), 0, name)
            assert (total == 1.0 + 7.0 * (world() - 1)).all(), total
        assert gathered[::4096].tolist() == [5.0] + [9.0] * (world() - 1), gathered[::4096]
    tandem.torch.synchronize()


@check
def test_groups_that_are_destroyed_leave_no_memory(name):
    x = torch.ones(4096, device="cuda")
    free = 0
    for step in range(ROUNDS):
        group = dist.new_group(range(world()))
        assert (OPS.all_reduce(x, "sum", group.group_name) == world()).all()
        dist.destroy_process_group(group)
        if step == 20:
            torch.cuda.synchronize()
            reach("measured")
            free = torch.cuda.mem_get_info()[0]
    torch.cuda.synchronize()
    reach("all groups ended")
    lost = free - torch.cuda.mem_get_info()[0]
    assert lost < GROWTH, f"{lost >> 20} MiB"


if __name__ == "__main__":
    main()
