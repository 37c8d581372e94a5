"""A rank that uses signals, barriers and ops on several streams, as PyTorch's own tests of stream order do (test_upstream.py)."""

import gc
import threading

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, PATIENCE, check, main
from rank_handles import MILLISECONDS, peers, works
from rank_memory import fails
from reference_ops import OPS, near, rand, rank, reference, world

CYCLES = 2_000_000  # a millisecond at 2 GHz, and more than one at any lower clock


def busy(milliseconds):
    """Keeps the current stream busy for about so long."""
    torch.cuda._sleep(milliseconds * CYCLES)


def handle():
    x = tandem.torch.empty(64)
    return x, tandem.torch.rendezvous(x)


def holds(memory, value):
    for peer in range(world()):
        got = memory.get_buffer(peer, (64,), torch.float32)
        assert (got == value + peer).all(), (peer, got[0].item(), value + peer)


@check
def test_barriers_on_two_streams(name):
    """Work that a stream was given before a barrier is done after it, on every stream of every rank."""
    x, memory = handle()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for turn in range(3):
        with torch.cuda.stream(first):
            if rank() == 0:
                busy(100)
            x.fill_(turn + rank() + 1.0)
            memory.barrier(timeout_ms=MILLISECONDS)
        with torch.cuda.stream(second):
            holds(memory, turn + 1)
            memory.barrier(timeout_ms=MILLISECONDS)
            x.fill_(turn + rank() + 10.0)
        torch.cuda.synchronize()
        dist.barrier()
        holds(memory, turn + 10)
        dist.barrier()


@check
def test_signals_on_two_streams(name):
    x, memory = handle()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    after, before = peers()
    with torch.cuda.stream(first):
        if rank() == 0:
            busy(100)
        x.fill_(rank() + 1.0)
        memory.put_signal(after, timeout_ms=MILLISECONDS)
        memory.wait_signal(before, timeout_ms=MILLISECONDS)
        assert (memory.get_buffer(before, (64,), torch.float32) == before + 1).all()
    memory.barrier(timeout_ms=MILLISECONDS)
    with torch.cuda.stream(second):
        memory.put_signal(after, timeout_ms=MILLISECONDS)
        memory.wait_signal(before, timeout_ms=MILLISECONDS)
        x.fill_(rank() + 100.0)
    torch.cuda.synchronize()
    dist.barrier()
    holds(memory, 100)
    assert not memory.get_signal_pad(rank()).any()
    dist.barrier()


@check
def test_a_barrier_waits_for_its_own_stream_alone(name):
    _, memory = handle()
    first, second, slept = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(first):
        memory.barrier(timeout_ms=MILLISECONDS)
        busy(2000)
        slept.record()
    with torch.cuda.stream(second):
        memory.barrier(timeout_ms=MILLISECONDS)
    assert not slept.query(), "the barrier of one stream has waited for the other"
    torch.cuda.synchronize()


@check
def test_threads_with_streams_of_their_own(name):
    x, memory = handle()
    start, wrote, failures = threading.Barrier(2), threading.Event(), []
    streams, done = [torch.cuda.Stream(), torch.cuda.Stream()], torch.cuda.Event()

    def work(number):
        try:
            torch.cuda.set_device(x.device)
            with torch.cuda.stream(streams[number]):
                start.wait(PATIENCE)
                if number == 0 and rank() == 0:
                    busy(100)
                memory.barrier(timeout_ms=MILLISECONDS)
                if number == 0:
                    x.fill_(rank() + 1.0)
                    done.record()
                    wrote.set()
                else:
                    assert wrote.wait(PATIENCE)
                    streams[1].wait_event(done)
                    x.fill_(rank() + 10.0)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()
    assert not failures, failures
    torch.cuda.synchronize()
    dist.barrier()
    holds(memory, 10)
    dist.barrier()


@check
def test_one_plan_on_two_streams(name):
    """Launches of a plan share its workspace: one that waits on its stream does not get the other's values."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    inputs = [torch.zeros(4096, device=DEVICE) for _ in streams]
    OPS.all_reduce(inputs[0], "sum", name)
    tandem.torch.synchronize()
    for turn in range(10):
        results = []
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                if rank() == 0 and number == turn % 2:
                    busy(10)
                inputs[number].copy_(rand(4096, seed=2 * turn + number))
                results.append(OPS.all_reduce(inputs[number], "sum", name))
        torch.cuda.synchronize()
        tandem.torch.synchronize()
        for number, got in enumerate(results):
            near(got, reference.all_reduce(rand(4096, seed=2 * turn + number), "sum", name))


@check
def test_memory_goes_behind_its_last_kernel(name):
    x = tandem.torch.empty(1 << 20).fill_(1.0)
    out = torch.empty_like(x)
    torch.add(x, 1, out=out)
    torch.cuda.synchronize()
    out.zero_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        busy(200)
        torch.add(x, 1, out=out)
    device = torch.cuda.current_device()
    del x
    gc.collect()
    assert torch.cuda.current_device() == device
    stream.synchronize()
    assert (out == 2).all()


@check
def test_a_capture_takes_no_signals(name):
    _, memory = handle()
    memory.barrier(timeout_ms=MILLISECONDS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in (memory.barrier, lambda: memory.put_signal(peers()[0]), lambda: memory.wait_signal(peers()[1])):
            assert "cannot be captured" in str(fails(RuntimeError, call))
        torch.zeros(1, device=DEVICE)
    torch.cuda.synchronize()
    works(memory)


if __name__ == "__main__":
    main()
