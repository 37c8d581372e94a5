"""A rank whose process group sleeps and wakes up: ops, families, symmetric tensors and, on GPUs, graphs."""

import os
import subprocess
import threading

import tandem.torch
import torch
import torch.distributed as dist
from checks import CUDA, DEVICE, check, configured, main
from node import BIN
from reference_ops import OPS, near, rand, rank, reference, world


def sleep(name, **options):
    """The memory that torch holds on the GPU meanwhile is torch's."""
    tandem.torch.suspend(name, **options)
    dist.barrier()  # on the host: NCCL and gloo are not the group's
    tandem.torch.resume(name)


def used(name):
    """Ops give what torch's own give."""
    for rows in (1, 3, 8):
        x = rand(rows, 16)
        near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
    a, b = rand(4, 16), rand(16, 8)
    near(OPS.matmul_all_reduce(a, b, "sum", name), reference.all_reduce(a @ b, "sum", name))


@check
def test_ops_go_on_without_a_new_plan(name):
    used(name)
    plans = tandem.torch.attach(name).plans
    made = plans._made
    for _ in range(3):
        sleep(name)
        used(name)
    assert plans._made == made, "a plan was made anew"


@check
def test_all_groups_sleep_by_one_call(name):
    """Another group has the ranks in the opposite order."""
    other = dist.new_group(list(reversed(range(world()))))
    names = [name, other.group_name]
    tandem.torch.attach(other)
    x = tandem.torch.empty(64)
    memory = tandem.torch.rendezvous(x)
    for keep in (True, False):
        used(name)
        OPS.all_reduce(rand(3, 16), "sum", other.group_name)
        x.fill_(rank() + 1.0)
        if CUDA:
            torch.cuda.synchronize()
        dist.barrier()
        tandem.torch.suspend(keep=keep)
        tandem.torch.suspend(keep=keep)  # nothing
        for one in names:
            try:
                OPS.all_reduce(rand(3, 16), "sum", one)
                raise AssertionError("it ran")
            except RuntimeError as error:
                assert "suspended" in str(error), error
        dist.barrier()
        tandem.torch.resume()
        tandem.torch.resume()  # nothing
        peer = memory.get_buffer((rank() + 1) % world(), (64,), torch.float32)
        assert (peer == ((rank() + 1) % world() + 1.0 if keep else 0.0)).all(), (keep, peer[0].item())
        dist.barrier()
    used(name)
    dist.destroy_process_group(other)


@check
def test_a_group_that_does_not_sleep_is_named(name):
    """With the process of the rank that does not come."""
    used(name)
    dist.barrier()
    if rank() == 0:
        try:
            tandem.torch.suspend(timeout=0.3)
            raise AssertionError("it slept alone")
        except tandem.RankLate as error:
            assert "does not sleep" in str(error) and "rank 1 is global rank 1, pid" in str(error), error
    dist.barrier()
    used(name)


@check
def test_ops_of_a_sleeping_group_say_so(name):
    used(name)
    tandem.torch.suspend(name)
    tandem.torch.suspend(name)  # nothing
    x = rand(3, 16)
    try:
        OPS.all_reduce(x, "sum", name)
        raise AssertionError("it ran")
    except RuntimeError as error:
        assert "suspended" in str(error), error
    tandem.torch.resume(name)
    tandem.torch.resume(name)
    used(name)


@check
def test_symmetric_tensors_keep_their_contents_where_asked(name):
    x = tandem.torch.empty(64)
    memory = tandem.torch.rendezvous(x)
    place = x.data_ptr()
    for keep in (True, False):
        x.fill_(rank() + 1.0)
        if CUDA:
            torch.cuda.synchronize()
        dist.barrier()
        sleep(name, keep=keep)
        assert x.data_ptr() == place
        for peer in range(world()):
            got = memory.get_buffer(peer, (64,), torch.float32)
            assert (got == (peer + 1.0 if keep else 0.0)).all(), (keep, peer, got[0].item())
        dist.barrier()


@check
def test_graphs_are_valid_afterwards(name):
    if not CUDA:
        return
    x, y = rand(8, 64), torch.empty(8, 64, device=DEVICE)
    OPS.all_reduce.out(x, "sum", name, out=y)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(10):
            OPS.all_reduce.out(x, "sum", name, out=y)
    for turn in range(5):
        x.copy_(rand(8, 64, seed=turn))
        y.zero_()
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        near(y, reference.all_reduce(x, "sum", name))
        dist.barrier()
        sleep(name)
    del graph


@check
def test_a_thousand_replays_give_the_same_bytes(name):
    """Of a captured sum, product and gather, whose outputs lie in symmetric memory, in torch's, and in the pool."""
    if not CUDA:
        return
    pool = tandem.torch.mem_pool(16 << 20)
    x, b = rand(8, 64), rand(64, 32, seed=1)
    with torch.cuda.use_mem_pool(pool):
        summed = torch.empty(8, 64, device=DEVICE)
    product, gathered = torch.empty(8, 32, device=DEVICE), tandem.torch.empty(8 * world(), 64)
    tandem.torch.rendezvous(gathered)

    def step():
        OPS.all_reduce.out(x, "sum", name, out=summed)
        OPS.matmul_all_reduce.out(summed, b, "sum", name, out=product)
        OPS.all_gather.out(x, 0, name, out=gathered)

    def outputs():
        torch.cuda.synchronize()
        return [one.clone() for one in (summed, product, gathered)]

    step()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    graph.replay()
    wanted = outputs()
    near(wanted[0], reference.all_reduce(x, "sum", name))
    dist.barrier()
    places = summed.data_ptr(), gathered.data_ptr()
    sleep(name)
    assert (summed.data_ptr(), gathered.data_ptr()) == places
    for replay in range(1000):
        graph.replay()
        if replay % 250 == 249:
            assert all(map(torch.equal, outputs(), wanted)), replay
            for one in (summed, product, gathered):
                one.zero_()
            torch.cuda.synchronize()
            dist.barrier()  # no rank zeroes what a peer's replay has written
    del graph


@check
def test_a_family_has_new_rows_afterwards(name):
    """Numbers of rows that no launch had before, also in a capture."""
    with configured(name, placement="client"):  # engines have no families
        used(name)
        sleep(name)
        plans = tandem.torch.attach(name).plans
        made = plans._made
        for rows in (2, 5, 7):
            x = rand(rows, 16)
            near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
        if CUDA:
            check_capture(name)
        assert plans._made == made, "a plan was made anew"


def check_capture(name):
    x, y = rand(6, 16), torch.empty(6, 16, device=DEVICE)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        OPS.all_reduce.out(x, "sum", name, out=y)
    graph.replay()
    torch.cuda.synchronize()
    near(y, reference.all_reduce(x, "sum", name))
    dist.barrier()


def operate(session, outcomes):
    """An operator who wants the memory for a while."""
    for command in ("suspend", "groups", "resume"):
        arguments = () if command == "groups" else (str(session), "--wait", "60")
        program = os.path.join(BIN, "tandemctl")
        outcomes.append(subprocess.run([program, command, *arguments], capture_output=True, text=True))


@check
def test_an_operator_suspends_the_job_between_two_steps(name):
    used(name)
    x = tandem.torch.empty(64)
    memory = tandem.torch.rendezvous(x)
    x.fill_(rank() + 1.0)
    assert not tandem.torch.suspend_if_asked(0)
    dist.barrier()
    outcomes = []
    session = tandem.torch.attach(name).group.client.session_id
    operator = threading.Thread(target=operate, args=(session, outcomes))
    if rank() == 0:
        operator.start()
    step = 1
    while not tandem.torch.suspend_if_asked(step):
        OPS.all_reduce(rand(3, 16), "sum", name)
        step += 1
    steps = torch.tensor([step, -step])
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    assert steps[0] == -steps[1] == step, (steps, step)  # the same on all ranks
    used(name)
    for peer in range(world()):
        assert (memory.get_buffer(peer, (64,), torch.float32) == peer + 1.0).all(), peer
    if rank() == 0:
        operator.join()
        assert [one.returncode for one in outcomes] == [0, 0, 0], outcomes
        assert "asleep" in outcomes[1].stdout, outcomes[1]
    dist.barrier()


if __name__ == "__main__":
    main()
