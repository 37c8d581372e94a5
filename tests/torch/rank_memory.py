"""A rank that uses symmetric tensors as torch tensors: buffers of peers, signals, names, several groups; what ops write in place
there, and the memory pool."""

import gc
import os

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import CUDA, DEVICE, check, main
from reference_ops import OPS, near, rand, rank, reference, world
from tandem.torch import _native, _pool

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
def test_a_barrier_without_a_rank_ends(name):
    x = tandem.torch.empty(4)
    memory = tandem.torch.rendezvous(x)
    if rank() == 0:
        error = fails(tandem.DeadlineExceeded, lambda: memory.barrier(channel=5, timeout_ms=50))
        assert set(error.ranks) == set(range(1, world())), error.ranks
    dist.barrier()


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


def symmetric_like(tensor):
    return tandem.torch.empty(tensor.shape, dtype=tensor.dtype)


def last_plan(name):
    return tandem.torch.attach(name).plans.infos()[-1]


@check
def test_peers_write_symmetric_outputs_in_place(name):
    a, b, bias = rand(4 * world(), 6), rand(6, 10, seed=1), rand(10, same=True)
    calls = {
        "all_gather": (a, 0, name),
        "all_to_all": (a, 0, name),
        "broadcast": (a, 0, name),
        "all_reduce": (a, "sum", name),
        "matmul_all_reduce": (a, b, "sum", name, bias),
    }
    for op, arguments in calls.items():
        wanted = getattr(reference, op)(*arguments)
        plain, symmetric = torch.empty_like(wanted), symmetric_like(wanted)
        infos = []
        for out in (plain, symmetric, plain, symmetric, symmetric):
            before = _native.counts().launched
            out.fill_(float("nan"))
            getattr(OPS, op).out(*arguments, out=out)
            near(out.clone(), wanted)
            infos.append((last_plan(name), _native.counts().launched - before))
        plans = [info["plan_id"] for info, _ in infos]
        assert plans[0] == plans[2] != plans[1] == plans[3] == plans[4], (op, plans)
        if _native.kernels is not None:
            assert [launched for _, launched in infos] == [0, 0, 1, 1, 1], (op, infos)
        if op in ("all_gather", "all_to_all"):
            assert infos[0][0]["workspace_bytes"] > infos[1][0]["workspace_bytes"] == 0, (op, infos)


@check
def test_a_symmetric_output_in_place_and_in_parts(name):
    x = symmetric_like(rand(6, 4))
    x.copy_(rand(6, 4))
    OPS.all_reduce_(x, "sum", name)
    near(x.clone(), reference.all_reduce(rand(6, 4), "sum", name))
    whole = tandem.torch.empty(3, world() * 2, 5)
    for part in (whole[1], whole[2], whole[0]):  # one plan for all places
        OPS.all_gather.out(rand(2, 5), 0, name, out=part)
        near(part.clone(), reference.all_gather(rand(2, 5), 0, name))
    plan = last_plan(name)
    across = whole.view(3 * world(), 2, 5)[:, 0]  # not contiguous
    OPS.all_gather.out(rand(3, 5), 0, name, out=across)
    near(across.clone(), reference.all_gather(rand(3, 5), 0, name))
    assert last_plan(name)["plan_id"] != plan["plan_id"]
    del x, whole, across, part


@check
def test_exceptions_outlive_temporary_tensors(name):
    """A tensor's memory may go while an exception passes the expression that the tensor is a part of."""

    def fail():
        for _ in (1, tandem.torch.empty(5)):
            raise ValueError("meant")

    assert "must match" in str(
        fails(RuntimeError, lambda: torch.add(tandem.torch.empty(4), torch.empty(5, device=DEVICE)))
    )
    assert str(fails(ValueError, fail)) == "meant"
    whole = tandem.torch.attach(name).group.empty(4)
    assert "must match" in str(
        fails(RuntimeError, lambda: torch.add(torch.from_dlpack(whole), torch.empty(5, device=DEVICE)))
    )
    assert torch.from_dlpack(whole).shape == (4,)  # the owner still holds it


@check
def test_symmetric_outputs_must_lie_alike(name):
    whole = tandem.torch.empty(2, world() * 4)
    OPS.all_gather.out(rand(4), 0, name, out=whole[0])
    for _ in range(2):
        error = fails(
            tandem.errors.InvalidArgument,
            lambda: everywhere(lambda: OPS.all_gather.out(rand(4), 0, name, out=whole[rank() % 2])),
        )
        assert "symmetric operands" in str(error), error
        tandem.torch.renew()  # launches on the ranks' own streams
    OPS.all_gather.out(rand(4), 0, name, out=whole[1])
    near(whole[1].clone(), reference.all_gather(rand(4), 0, name))


def everywhere(call):
    """The call and what it launched, since a launch on CUDA fails later."""
    call()
    tandem.torch.synchronize()


@check
def test_in_place_can_be_refused(name):
    tandem.torch.detach(name)
    tandem.torch.configure(write_in_place=False)
    try:
        whole = tandem.torch.empty(2, world() * 4)
        OPS.all_gather.out(rand(4), 0, name, out=whole[rank() % 2])
        near(whole[rank() % 2].clone(), reference.all_gather(rand(4), 0, name))
        del whole
    finally:
        tandem.torch.configure(write_in_place=True)
        tandem.torch.detach(name)


@check
def test_a_pools_pieces_are_symmetric(name):
    if _native.kernels is None:
        return
    pool, kernels = _pool.arenas(5 << 20, name, 77), _native.kernels  # no device's: torch does not take from it
    assert _pool.arenas(1 << 20, name, 77) is pool and [arena.numel() for arena in pool.arenas] == [6 << 20]
    pieces = [kernels.pool_allocate(2 << 20, 77, None) for _ in range(4)]
    assert None not in pieces[:3] and pieces[3] is None and kernels.pool_allocate(1, 78, None) is None, pieces
    kernels.pool_free(pieces[1], 2 << 20, 77, None)
    assert kernels.pool_allocate(1 << 20, 77, None) == pieces[1]
    device = (2, torch.cuda.current_device()) if CUDA else (1, 0)
    x = tandem.torch._memory._tensor_at(pieces[1], (world() * 2, 3), torch.float32, device, pool)
    assert tandem.torch.is_symmetric(x)
    OPS.all_gather.out(rand(2, 3), 0, name, out=x)
    near(x.clone(), reference.all_gather(rand(2, 3), 0, name))
    memory = tandem.torch.rendezvous(x[1:])
    assert memory.offset == pieces[1] + 12 - pool.arenas[0].data_ptr() and memory.buffer_size == 6 << 20
    x.fill_(rank())
    memory.barrier()
    for peer in range(world()):
        assert (memory.get_remote_tensor(peer, (3,), torch.float32) == peer).all()
    fails(tandem.errors.OutOfRange, lambda: memory.get_remote_tensor(0, (6 << 20,), torch.float32))
    memory.barrier()
    _pool.arenas(7 << 20, name, 77)
    assert [arena.numel() for arena in pool.arenas] == [6 << 20, 2 << 20]
    kernels.pool_free(pieces[1], 2 << 20, 77, None)


@check
def test_mem_pool(name):
    if not CUDA:
        error = fails(tandem.Unavailable, lambda: tandem.torch.mem_pool(1 << 20))
        assert "CUDA backend" in str(error), error
        return
    pool = tandem.torch.mem_pool(64 << 20)
    assert tandem.torch.mem_pool(1 << 20) is pool
    a, b, bias = rand(4 * world(), 6), rand(6, 10, seed=1), rand(10, same=True)
    with torch.cuda.use_mem_pool(pool):
        held = torch.zeros(1 << 20, device=DEVICE)
    assert tandem.torch.is_symmetric(held) and not tandem.torch.is_symmetric(a)
    offset, places = tandem.torch.rendezvous(held).offset, []
    for step in range(4):
        before = _native.counts().launched
        with torch.cuda.use_mem_pool(pool):
            results = (
                OPS.all_gather(a, 0, name),
                OPS.all_reduce(a, "sum", name),
                OPS.matmul_all_reduce(a, b, "sum", name, bias),
            )
            whole, (product,) = OPS.all_gather_matmul(a, [b], 0, name)
        launched = _native.counts().launched - before
        assert all(map(tandem.torch.is_symmetric, (*results, whole, product)))
        near(results[0].clone(), reference.all_gather(a, 0, name))
        near(results[1].clone(), reference.all_reduce(a, "sum", name))
        near(results[2].clone(), reference.matmul_all_reduce(a, b, "sum", name, bias))
        near(whole.clone(), results[0].clone())
        assert launched == (0 if step == 0 else 4), (step, launched)
        places.append([one.data_ptr() for one in (*results, whole, product)])
        # The first call prepares and makes its outputs in another order.
        assert step == 0 or places[-1] == places[1], (step, places)
        plans = tandem.torch.attach(name).plans.prepared()[-4:]
        assert [sorted(plan.symmetric) for plan in plans] == [[1], [1], [2], [3]], plans
        plain = OPS.all_gather(a, 0, name)  # out of the pool again
        assert not tandem.torch.is_symmetric(plain)
        near(plain, reference.all_gather(a, 0, name))
        del results, whole, product, plain
    assert tandem.torch.rendezvous(held).offset == offset
    with torch.cuda.use_mem_pool(pool):
        fails(torch.OutOfMemoryError, lambda: torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE))
    del held


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


if __name__ == "__main__":
    main()
