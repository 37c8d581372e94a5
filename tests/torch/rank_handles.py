"""A rank that uses the handles of symmetric tensors as PyTorch's own tests do (test_upstream.py has their names): elements of
peers, signal pads, bounds, views, groups that overlap, threads, and memory that is used again."""

import gc
import os
import threading
from datetime import timedelta

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import PATIENCE, check, main, once
from rank_memory import fails
from reference_ops import OPS, near, rand, rank, reference, world
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (it registers a backend)

OutOfRange = tandem.errors.OutOfRange
MILLISECONDS = int(1000 * PATIENCE)


def peers():
    """The next rank and the one before."""
    return (rank() + 1) % world(), (rank() - 1) % world()


@check
def test_elements_of_a_peer(name):
    """Views of the whole buffer, from an offset on, and into a part of another tensor."""
    count, float32 = 1024, torch.float32
    x = tandem.torch.empty(2 * count).copy_(torch.arange(2.0 * count) + 2 * count * rank())
    memory = tandem.torch.rendezvous(x)
    memory.barrier()
    for peer in range(world()):
        want = torch.arange(2.0 * count).to(x.device) + 2 * count * peer
        assert torch.equal(memory.get_buffer(peer, (2 * count,), float32), want)
        offset = count // 2
        part = memory.get_buffer(peer, (count,), float32, offset)
        assert torch.equal(part, want[offset : offset + count]), peer
        larger = torch.full((count + 1,), -1.0, device=x.device)
        larger[:count].copy_(part)
        assert torch.equal(larger[:count], part) and larger[count] == -1
        assert memory.get_buffer(peer, (2, 512), torch.int16, 8).data_ptr() == memory.buffer_ptrs[peer] + 16
        assert (memory.get_buffer(peer, (1,), float32).device, part.is_contiguous()) == (x.device, True)
    assert memory.get_buffer(rank(), (1,), float32).data_ptr() == x.data_ptr() == memory.buffer_ptrs[rank()]
    size = memory.buffer_size // 4
    for peer, sizes, offset in ((0, (1,), -1), (0, (1,), size), (0, (size + 1,), 0), (-1, (1,), 0), (world(), (1,), 0)):
        fails(OutOfRange, lambda: memory.get_buffer(peer, sizes, float32, offset))
    memory.barrier()


@check
def test_views_have_handles(name):
    whole = tandem.torch.empty(4, 3, 5).fill_(-1.0)
    for part, offset in ((whole, 0), (whole[1], 60), (whole[1:, 2], 100), (whole.view(-1)[7:], 28)):
        memory = tandem.torch.rendezvous(part)
        assert (memory.offset, memory.buffer_size) == (offset, 240), (memory.offset, memory.buffer_size)
        memory.barrier()
        whole.fill_(-1.0)
        part.fill_(10.0 * rank() + offset)
        memory.barrier()
        first = part.flatten()[:5].shape
        for peer in range(world()):
            assert (memory.get_remote_tensor(peer, first, torch.float32) == 10 * peer + offset).all()
            if offset:
                assert memory.get_buffer(peer, (1,), torch.float32, offset // 4 - 1) == -1
        fails(OutOfRange, lambda: memory.get_remote_tensor(0, (61 - offset // 4,), torch.float32))
        fails(OutOfRange, lambda: memory.get_remote_tensor(-1, (1,), torch.float32))
        memory.barrier()
    fails(ValueError, lambda: tandem.torch.rendezvous(whole.clone()))


@check
def test_signal_pads_are_tensors(name):
    x = tandem.torch.empty(1).zero_()
    memory = tandem.torch.rendezvous(x)
    for peer in range(world()):
        pad = memory.get_signal_pad(peer)
        assert pad.data_ptr() == memory.signal_pad_ptrs[peer] and pad.dtype == torch.int32
        assert pad.numel() * 4 == memory.signal_pad_size > 0
        assert memory.get_signal_pad(peer, (8, 8)).shape == (8, 8)
        wide = memory.get_signal_pad(peer, dtype=torch.int64)
        assert (wide.dtype, wide.numel() * 8) == (torch.int64, memory.signal_pad_size)
        wide = memory.get_signal_pad(peer, (8, 8), torch.int64, 2)
        assert (wide.shape, wide.data_ptr()) == ((8, 8), pad.data_ptr() + 16)
    dist.barrier()  # not the tensor's own, whose signals lie in the pad
    memory.get_signal_pad(rank()).fill_(42)
    x.fill_(7)
    assert (memory.get_signal_pad(rank()) == 42).all() and x == 7
    memory.get_signal_pad(rank()).zero_()
    dist.barrier()
    memory.barrier(timeout_ms=MILLISECONDS)


@check
def test_bounds_of_signals(name):
    x = tandem.torch.empty(64)
    memory = tandem.torch.rendezvous(x)
    after, before = peers()
    channels = memory.signal_pad_size // 4 // world()
    for channel in (channels, -1):
        for call in (memory.barrier, lambda c: memory.put_signal(after, c), lambda c: memory.wait_signal(before, c)):
            fails(OutOfRange, lambda: call(channel))
    for wrong in (-1, world()):
        for call in (memory.put_signal, memory.wait_signal, memory.get_signal_pad):
            fails(OutOfRange, lambda: call(wrong))
    memory.barrier(channels - 1, MILLISECONDS)
    memory.put_signal(after, channels - 1, MILLISECONDS)
    memory.wait_signal(before, channels - 1, MILLISECONDS)
    dist.barrier()
    assert not memory.get_signal_pad(rank()).any(), "signals that were taken leave nothing"
    dist.barrier()


@check
def test_bounds_of_words(name):
    x = tandem.torch.empty(64, dtype=torch.int32).zero_()
    tandem.torch.memset32(x, 32, 1, 16)
    assert x.tolist() == 32 * [0] + 16 * [1] + 16 * [0]
    tandem.torch.memset32(x, 0, 1, 64)
    tandem.torch.memset32(x, 63, -1)
    tandem.torch.stream_write_value32(x, 0, (1 << 32) - 1)
    assert x.tolist() == [-1, *(62 * [1]), -1]
    for offset, value, count in ((-1, 1, 1), (0, 1, -1), (0, 1, 0), (64, 1, 1), (0, 1, 65), (0, 1 << 32, 1)):
        fails(OutOfRange, lambda: tandem.torch.memset32(x, offset, value, count))
    for offset, value in ((-1, 1), (64, 1), (0, 1 << 32), (0, -(1 << 31) - 1)):
        fails(OutOfRange, lambda: tandem.torch.stream_write_value32(x, offset, value))
    fails(ValueError, lambda: tandem.torch.memset32(x.view(8, 8).t(), 0, 1))
    memory = tandem.torch.rendezvous(x)
    for offset, value, count in ((-1, 1, 1), (64, 1, 1), (0, 1, 65), (0, 1 << 32, 1)):
        fails(OutOfRange, lambda: memory.memset32(offset, value, count))
    assert x.tolist() == [-1, *(62 * [1]), -1]


def works(memory):
    """Writes of rank 1 to rank 0's buffer arrive, in the order of signals and barriers."""
    whole = memory.get_buffer(0, (memory.buffer_size // 4,), torch.float32)
    assert whole.storage_offset() == 0 and whole.untyped_storage().size() == memory.buffer_size
    if memory.rank == 0:
        memory.wait_signal(1, timeout_ms=MILLISECONDS)
        assert (whole == 42).all()
    elif memory.rank == 1:
        whole.fill_(42)
        memory.put_signal(0)
    memory.barrier(timeout_ms=MILLISECONDS)
    if memory.rank == 1:
        whole.fill_(43)
    memory.barrier(timeout_ms=MILLISECONDS)
    assert (whole == 43).all()
    memory.barrier(timeout_ms=MILLISECONDS)


@check
def test_a_handle_outlives_its_tensor(name):
    fails(ValueError, lambda: tandem.torch.rendezvous(rand(64, 64)))
    x = tandem.torch.empty(64, 64)
    memory = tandem.torch.rendezvous(x)
    del x
    gc.collect()
    works(memory)


@check
def test_named_memory_has_handles(name):
    """Also while a tensor of the name lives: both are the same memory."""
    x = tandem.torch.empty(64, 64, name="handles")
    address = x.data_ptr()
    works(tandem.torch.rendezvous(x))
    assert tandem.torch.empty(64, 64, name="handles").data_ptr() == address
    del x
    gc.collect()
    x = tandem.torch.empty(64, 64, name="handles")
    assert x.data_ptr() == address and (rank() > 0 or (x == 43).all())
    dist.barrier()  # rank 1 writes to rank 0's memory next
    works(tandem.torch.rendezvous(x))


@check
def test_memory_that_is_used_again_has_clear_pads(name):
    after, _ = peers()
    seen = set()
    for _ in range(3):
        x = tandem.torch.empty(1 << 20)
        seen.add(x.data_ptr())
        memory = tandem.torch.rendezvous(x)
        memory.barrier(timeout_ms=MILLISECONDS)
        memory.put_signal(after, channel=1)  # nobody takes it
        dist.barrier()
        assert memory.get_signal_pad(rank()).count_nonzero() == 1
        del x, memory
        gc.collect()
        dist.barrier()
        y = tandem.torch.empty(1 << 20).fill_(rank())
        memory = tandem.torch.rendezvous(y)
        assert not memory.get_signal_pad(rank()).any()
        dist.barrier()
        for channel in (0, 1):
            memory.barrier(channel, MILLISECONDS)
        for peer in range(world()):
            assert (memory.get_buffer(peer, (1 << 20,), torch.float32) == peer).all()
        memory.barrier(timeout_ms=MILLISECONDS)
        del y, memory
        gc.collect()
        dist.barrier()
    assert len(seen) < 3, "memory was to be used again"


@check
def test_two_gibibytes(name):
    size = 2 << 30
    x = tandem.torch.empty(size, dtype=torch.uint8)
    assert (x.numel(), x[-1].data_ptr()) == (size, x.data_ptr() + size - 1)
    x[-1] = x[0] = rank() + 1
    memory = tandem.torch.rendezvous(x)
    memory.barrier(timeout_ms=MILLISECONDS)
    for peer in range(world()):
        for at in (0, size - 1):
            assert memory.get_buffer(peer, (1,), torch.uint8, at).item() == peer + 1
    memory.barrier(timeout_ms=MILLISECONDS)


@check
def test_a_tensor_in_a_subgroup_and_in_all(name):
    """The peers' buffers by either handle."""
    halves = [dist.new_group(list(range(first, first + world() // 2))) for first in (0, world() // 2)]
    mine = halves[rank() // (world() // 2)]
    x = tandem.torch.empty(64).fill_(rank())
    wide, narrow = tandem.torch.rendezvous(x), tandem.torch.rendezvous(x, mine)
    half = world() // 2
    assert (wide.rank, wide.world_size, narrow.rank, narrow.world_size) == (rank(), world(), rank() % half, half)
    wide.barrier(timeout_ms=MILLISECONDS)
    assert (wide.get_buffer(peers()[0], (64,), torch.float32) == peers()[0]).all()
    first = rank() // half * half
    for peer in range(half):
        assert (narrow.get_buffer(peer, (64,), torch.float32) == first + peer).all()
    wide.barrier(timeout_ms=MILLISECONDS)
    tandem.torch.detach(mine)


@check
def test_groups_that_leave_ranks_out(name):
    """A group without the last rank, and then all; two groups that share a rank. No rank waits for one that is in none."""
    if world() < 3:
        return
    most = dist.new_group(list(range(world() - 1)))
    if rank() < world() - 1:
        tandem.torch.rendezvous(tandem.torch.empty(64, group=most), most).barrier(timeout_ms=MILLISECONDS)
    x = tandem.torch.empty(64).fill_(rank())
    memory = tandem.torch.rendezvous(x)
    memory.barrier(timeout_ms=MILLISECONDS)
    assert (memory.get_buffer(peers()[0], (64,), torch.float32) == peers()[0]).all()
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for first, pair in enumerate(pairs):
        if rank() in (first, first + 1):
            y = tandem.torch.empty(64, group=pair).fill_(rank())
            near(OPS.all_reduce(y.clone(), "sum", pair.group_name), torch.full_like(y, 2 * first + 1))
            memory = tandem.torch.rendezvous(y, pair)
            memory.barrier(timeout_ms=MILLISECONDS)
            for peer in (0, 1):
                assert (memory.get_buffer(peer, (64,), torch.float32) == first + peer).all()
            memory.barrier(timeout_ms=MILLISECONDS)
    dist.barrier()
    for group in (most, *pairs):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            tandem.torch.detach(group)


@check
def test_threads_meet_at_one_barrier(name):
    """Two threads of each rank at once, on one channel: none is lost, and no signal stays."""
    x = tandem.torch.empty(64)
    memory, failures = tandem.torch.rendezvous(x), []
    for turn in range(20):
        start, first_wrote = threading.Barrier(2), threading.Event()

        def first():
            start.wait(PATIENCE)
            memory.barrier(0, MILLISECONDS)
            x.fill_(turn + 1.0)
            first_wrote.set()

        def second():
            start.wait(PATIENCE)
            memory.barrier(0, MILLISECONDS)
            assert first_wrote.wait(PATIENCE)
            x.fill_(turn + 100.0 + rank())

        def kept(work):
            try:
                work()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=kept, args=(work,)) for work in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive()
        assert not failures, failures
        dist.barrier()
        for peer in range(world()):
            assert (memory.get_buffer(peer, (64,), torch.float32) == turn + 100 + peer).all()
            assert not memory.get_signal_pad(peer).any()
        dist.barrier()


@check
def test_memory_after_its_process_group(name):
    group = dist.new_group()
    x = tandem.torch.empty(64, group=group).fill_(rank())
    memory = tandem.torch.rendezvous(x, group)
    memory.barrier(timeout_ms=MILLISECONDS)
    before = [memory.get_buffer(peer, (64,), torch.float32) for peer in range(world())]
    dist.barrier()
    dist.destroy_process_group(group)
    for peer in range(world()):
        assert (before[peer] == peer).all()
        assert (memory.get_buffer(peer, (64,), torch.float32) == peer).all()
    dist.barrier()
    tandem.torch.detach(group.group_name)


@check
def test_a_backend_that_torch_does_not_know(name):
    """The ranks meet over the group's store, whatever its backend is."""
    if not hasattr(dist.Backend, "BORROWED"):
        dist.Backend.register_backend(
            "borrowed",
            lambda given, _: dist.ProcessGroupGloo(
                given.store, given.group_rank, given.group_size, timedelta(seconds=PATIENCE)
            ),
            extended_api=True,
            devices=["cpu"],
        )
    group = dist.new_group(backend="cpu:borrowed")
    x = tandem.torch.empty(64, group=group).fill_(rank())
    memory = tandem.torch.rendezvous(x, group)
    memory.barrier(timeout_ms=MILLISECONDS)
    for peer in range(world()):
        assert (memory.get_buffer(peer, (64,), torch.float32) == peer).all()
    near(OPS.all_reduce(rand(3), "sum", group.group_name), reference.all_reduce(rand(3), "sum", name))
    dist.barrier()
    tandem.torch.detach(group)


@check
def test_groups_without_memory(name):
    fails((ValueError, RuntimeError, LookupError), lambda: tandem.torch.attach("a group that nobody has made"))
    fake = dist.new_group(backend="fake")
    assert tandem.torch.attach(fake).group is None and tandem.torch.attach(name).group is not None
    error = fails(tandem.Unavailable, lambda: tandem.torch.empty(4, group=fake))
    assert "fake" in str(error), error
    tandem.torch.detach(fake)


@once
def test_names_that_later_groups_have_again(name):
    """All process groups end, and groups of other ranks get their names."""

    def in_pair(ranks):
        pair = dist.new_group(ranks)
        if rank() in ranks:
            x = tandem.torch.empty(64, group=pair).fill_(rank())
            memory = tandem.torch.rendezvous(x, pair)
            memory.barrier(timeout_ms=MILLISECONDS)
            for peer, one in enumerate(sorted(ranks)):
                assert (memory.get_buffer(peer, (64,), torch.float32) == one).all()
            memory.barrier(timeout_ms=MILLISECONDS)
            near(OPS.all_reduce(x.clone(), "sum", pair.group_name), torch.full_like(x, sum(ranks)))
        dist.barrier()
        return pair.group_name if rank() in ranks else ""

    store = os.path.join(os.environ["TANDEM_RUNTIME_DIR"], "store-" + os.environ["MASTER_PORT"])
    mine, size, names = rank(), world(), []
    for turn, ranks in enumerate(([0, 1], [1, 2] if size > 2 else [0, 1])):
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}-{turn}",
            rank=mine,
            world_size=size,
            timeout=timedelta(seconds=2 * PATIENCE),
        )
        names.append(in_pair(ranks))
    assert mine != 1 or names[0] == names[1], names
    assert dist.group.WORLD.group_name == name
    near(OPS.all_reduce(rand(3), "sum", name), reference.all_reduce(rand(3), "sum", name))


if __name__ == "__main__":
    main()
