"""A rank that uses symmetric tensors as torch tensors: buffers of peers, signals, names, several groups; and the plans that ops hold."""

import gc
import os

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import CUDA, DEVICE, check, main
from reference_ops import OPS, near, rand, rank, reference, world

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float8_e4m3fn)


def fails(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


@check
def test_peers_buffers(name):
    for dtype in DTYPES:
        x = tandem.torch.empty(2, 3, dtype=dtype)
        assert (x.dtype, tuple(x.shape), x.device.type, x.is_contiguous()) == (dtype, (2, 3), DEVICE, True)
        assert tandem.torch.is_symmetric(x) and tandem.torch.is_symmetric(x[1:])
        x.copy_(torch.full((2, 3), float(rank() + 1)))
        memory = tandem.torch.rendezvous(x)
        assert (memory.rank, memory.world_size, memory.offset) == (rank(), world(), 0)
        memory.barrier()
        for peer in range(world()):
            assert (memory.get_buffer(peer, (2, 3), dtype).float() == peer + 1).all()
            assert memory.get_buffer(peer, (2,), dtype, 4).shape == (2,)
        fails(tandem.errors.OutOfRange, lambda: memory.get_buffer(0, (7,), dtype))
        fails(tandem.errors.OutOfRange, lambda: memory.get_buffer(world(), (1,), dtype))
        memory.barrier()
        assert len(memory.buffer_ptrs) == world() and memory.buffer_ptrs[rank()] == x.data_ptr()
    assert not tandem.torch.is_symmetric(rand(3))
    fails(ValueError, lambda: tandem.torch.rendezvous(rand(3)))


@check
def test_writes_to_a_peer_arrive(name):
    x = tandem.torch.empty((4,), dtype=torch.float32).zero_()
    memory = tandem.torch.rendezvous(x, name)
    memory.barrier()
    peer = (rank() + 1) % world()
    memory.get_buffer(peer, (4,), torch.float32).copy_(rand(4, same=True) + rank())
    memory.put_signal(peer)
    sender = (rank() - 1) % world()
    memory.wait_signal(sender)
    near(x.clone(), rand(4, same=True) + sender)
    memory.barrier()


@check
def test_signals_and_their_limits(name):
    x = tandem.torch.empty(4)
    memory = tandem.torch.rendezvous(x)
    peer = (rank() + 1) % world()
    late = fails(tandem.DeadlineExceeded, lambda: memory.wait_signal(peer, channel=1, timeout_ms=50))
    assert late.rank == peer, late
    memory.barrier(channel=2)
    if world() == 2:
        memory.put_signal(peer, channel=3)
        memory.barrier()
        fails(tandem.DeadlineExceeded, lambda: memory.put_signal(peer, channel=3, timeout_ms=50))  # not taken yet
        memory.barrier()
        memory.wait_signal(peer, channel=3)
    for call in (
        lambda: memory.barrier(channel=10**6),
        lambda: memory.put_signal(world()),
        lambda: memory.wait_signal(world()),
    ):
        fails(tandem.errors.OutOfRange, call)
    pad = memory.get_signal_pad(rank())
    assert pad.dtype == torch.int32 and pad.numel() * 4 == memory.signal_pad_size
    assert memory.get_signal_pad(rank(), (2, 2), torch.int32, 4).shape == (2, 2)
    fails(tandem.errors.OutOfRange, lambda: memory.get_signal_pad(0, (memory.signal_pad_size,)))
    memory.barrier()


@check
def test_own_words_of_the_pad_do_not_touch_data(name):
    x = tandem.torch.empty(8).fill_(3.0)
    memory = tandem.torch.rendezvous(x)
    dist.barrier()  # not the tensor's own, whose signals lie in the pad
    own = memory.get_signal_pad(rank())
    before = own.clone()
    x.fill_(4.0)
    assert torch.equal(own, before)
    dist.barrier()


@check
def test_words_in_stream_order(name):
    x = tandem.torch.empty(6, dtype=torch.int32).zero_()
    tandem.torch.memset32(x, 1, 7, 3)
    tandem.torch.stream_write_value32(x, 5, 9)
    tandem.torch.memset32(x[3:], 1, 8)
    assert x.tolist() == [0, 7, 7, 7, 8, 9], x
    memory = tandem.torch.rendezvous(x)
    memory.barrier()
    memory.memset32(0, 40 + rank(), rank=(rank() + 1) % world())
    memory.barrier()
    assert x[0].item() == 40 + (rank() - 1) % world()
    fails(tandem.errors.OutOfRange, lambda: tandem.torch.memset32(x, 5, 1, 2))
    fails(ValueError, lambda: tandem.torch.memset32(tandem.torch.empty(2, dtype=torch.float16), 0, 1))
    fails(ValueError, lambda: tandem.torch.memset32(torch.zeros(2, dtype=torch.int32), 0, 1))
    memory.barrier()


@check
def test_persistent_names(name):
    first = tandem.torch.empty(16, name="state").fill_(rank() + 5.0)
    address = first.data_ptr()
    del first
    gc.collect()
    again = tandem.torch.empty(4, 4, name="state")
    assert again.data_ptr() == address and (again == rank() + 5.0).all()
    both = tandem.torch.empty(16, name="state")
    assert both.data_ptr() == address
    other = tandem.torch.empty(16, name="other")
    assert other.data_ptr() != address


@check
def test_several_groups(name):
    x = tandem.torch.empty(4).fill_(float(rank()))
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world(), 2)]
    mine = pairs[rank() // 2]
    memory = tandem.torch.rendezvous(x, mine)
    memory.barrier()
    assert (memory.world_size, memory.rank) == (2, rank() % 2)
    other = memory.get_buffer(1 - memory.rank, (4,), torch.float32)
    assert (other == float(rank() ^ 1)).all()
    memory.barrier()
    tandem.torch.rendezvous(x).barrier()
    tandem.torch.detach(mine)


@check
def test_ops_take_symmetric_tensors(name):
    x, y = tandem.torch.empty(5, 3), tandem.torch.empty(5, 3)
    x.copy_(rand(5, 3))
    OPS.all_reduce.out(x, "sum", name, out=y)
    near(y.clone(), OPS.all_reduce(rand(5, 3), "sum", name))


@check
def test_memory_goes_with_the_last_tensor(name):
    def held():
        gc.collect()
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")

    for _ in range(3):
        tandem.torch.empty(1 << 18)
    descriptors, size = held()
    for _ in range(60):
        x = tandem.torch.empty(1 << 18)
        view = tandem.torch.rendezvous(x).get_buffer((rank() + 1) % world(), (1 << 18,), torch.float32)
        del x
        view[0].item()  # a view keeps the memory
        del view
    after, grown = held()
    assert after <= descriptors + 8, (descriptors, after)
    assert CUDA or grown < size + (16 << 20), (size, grown)


@check
def test_plans_are_bounded_and_released_alike(name):
    tandem.torch.detach(name)
    before = tandem.torch._config.current()
    tandem.torch.configure(max_plans=3)
    try:
        attached = tandem.torch.attach(name)
        for _ in range(2):
            for rows in (1, 2, 3, 4, 5):
                x = rand(rows, 2)
                near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
                assert len(attached.plans) <= 3
    finally:
        tandem.torch.configure(max_plans=before.max_plans)
        tandem.torch.detach(name)


@check
def test_ten_thousand_steps_grow_nothing(name):
    if world() > 2:
        return  # two ranks show it, and sooner
    x, a, b = rand(64), rand(4, 6), rand(6, 4, seed=1)

    def step():
        OPS.all_reduce(x, "sum", name)
        OPS.all_gather_matmul(a, [b], 0, name)

    def held():
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return pages, len(os.listdir("/proc/self/fd")), len(tandem.torch.attach(name).plans)

    for _ in range(500):
        step()
    pages, descriptors, plans = held()
    for _ in range(4750):
        step()
    after = held()
    assert after[1:] == (descriptors, plans), (after, descriptors, plans)
    assert (after[0] - pages) * os.sysconf("SC_PAGE_SIZE") < 8 << 20, (after[0], pages)


if __name__ == "__main__":
    main()
