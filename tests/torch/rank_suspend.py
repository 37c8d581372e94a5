"""A rank whose process group sleeps and wakes up: ops, families, symmetric tensors and, on GPUs, graphs."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import CUDA, DEVICE, check, main
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


if __name__ == "__main__":
    main()
