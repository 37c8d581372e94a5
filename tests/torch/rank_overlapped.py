"""A rank that checks collectives by copy engines, and products of rows that are still arriving."""

import threading
import time

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, check, main
from reference_ops import OPS, _Scatter, near, rand, rank, ref_gather, reference, same_gradients, world
from tandem.torch import _native


@check
def test_low_contention(name):
    for dtype in (torch.float32, torch.bfloat16):
        x = rand(2 * world(), 3, dtype=dtype)
        for _ in range(2):
            assert torch.equal(OPS.low_contention_all_gather(x, name), reference.all_gather(x, 0, name))
            for op in ("sum", "avg"):
                near(OPS.low_contention_reduce_scatter(x, op, name), reference.reduce_scatter(x, op, 0, name))
        out = torch.full((2, 3), float("nan"), dtype=dtype, device=DEVICE)
        OPS.low_contention_reduce_scatter.out(x, "sum", name, out=out)
        near(out, reference.reduce_scatter(x, "sum", 0, name))
    infos = tandem.torch.attachment(name).plans.infos()
    assert infos and {info["algorithm"] for info in infos if info["op"] != "async_input_matmul"} == {"copy_engine"}


@check
def test_low_contention_by_other_reductions(name):
    x = (rand(2 * world(), 3) * 9).round()
    each = torch.stack(reference.all_gather(x, 0, name).chunk(world()))
    for op, want in (("min", each.amin(0)), ("max", each.amax(0)), ("product", each.prod(0))):
        assert torch.equal(OPS.low_contention_reduce_scatter(x, op, name), want.chunk(world())[rank()]), op
    bits = x.to(torch.int32)
    want = each.to(torch.int32)[0]
    for one in each.to(torch.int32)[1:]:
        want = want ^ one
    assert torch.equal(OPS.low_contention_reduce_scatter(bits, "bxor", name), want.chunk(world())[rank()])


@check
def test_gradients_of_low_contention(name):
    x = rand(2 * world(), 3)
    same_gradients(lambda x: [OPS.low_contention_all_gather(x, name)], lambda x: [ref_gather(x, 0, name)], x)
    for op in ("sum", "avg"):
        same_gradients(
            lambda x: [OPS.low_contention_reduce_scatter(x, op, name)], lambda x: [_Scatter.apply(x, op, 0, name)], x
        )


@check
def test_opcheck(name):
    x, a, b = rand(2 * world(), 3).requires_grad_(), rand(2 * world(), 6), rand(6, 4, seed=1)
    ready = torch.ones(world(), dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(OPS.low_contention_all_gather.default, (x, name))
    torch.library.opcheck(OPS.low_contention_reduce_scatter.default, (x, "avg", name))
    torch.library.opcheck(OPS.async_input_matmul.default, (a, b, ready, 0, name))


@check
def test_chunks_that_are_there(name):
    for dtype in (torch.float32, torch.bfloat16):
        for rows, chunks in (((4,), 4), ((6,), 2), ((2, 4), 4), ((3,), 1)):
            a, b = rand(*rows, 8, dtype=dtype), rand(8, 5, dtype=dtype, seed=1)
            ready = torch.ones(chunks, dtype=torch.int32, device=DEVICE)
            for pivot in {0, chunks - 1}:
                for _ in range(2):
                    near(OPS.async_input_matmul(a, b, ready, pivot, name), (a.float() @ b.float()).to(dtype))
        before = _native.counts().launched
        near(OPS.async_input_matmul(a, b, ready, 0, name), (a.float() @ b.float()).to(dtype))
        assert _native.kernels is None or _native.counts().launched == before + 1


@check
def test_wrong_chunks(name):
    a, b = rand(4, 8), rand(8, 5, seed=1)
    for signals, pivot in (
        (torch.ones(3, dtype=torch.int32), 0),
        (torch.ones(2, dtype=torch.int64), 0),
        (torch.ones(2, 1, dtype=torch.int32), 0),
        (torch.ones(2, dtype=torch.int32), 2),
    ):
        try:
            OPS.async_input_matmul(a, b, signals.to(DEVICE), pivot, name)
        except ValueError:
            continue
        raise AssertionError("wrong chunks were taken")
    try:
        OPS.async_input_matmul(a.requires_grad_(), b, torch.ones(2, dtype=torch.int32, device=DEVICE), 0, name)
        raise AssertionError("gradients got lost in silence")
    except RuntimeError as error:
        assert "no gradients" in str(error)


@check
def test_chunks_that_arrive_while_the_product_runs(name):
    """Each rank's rows are written by its neighbour, chunk by chunk, after the product has begun."""
    chunks, b = 4, rand(8, 5, seed=1)
    a, signals = tandem.torch.empty(2 * chunks, 8), tandem.torch.empty(chunks, dtype=torch.int32)
    rows, words = tandem.torch.rendezvous(a), tandem.torch.rendezvous(signals)
    peer, sender = (rank() + 1) % world(), (rank() - 1) % world()
    there = rows.get_buffer(peer, (2 * chunks, 8), torch.float32)
    flags = words.get_buffer(peer, (chunks,), torch.int32)
    stream = torch.cuda.Stream() if DEVICE == "cuda" else None

    def send(mine):
        with torch.cuda.stream(stream):
            for chunk in range(chunks):
                time.sleep(0.05)
                there[2 * chunk : 2 * chunk + 2].copy_(mine[2 * chunk : 2 * chunk + 2])
                if stream is not None:
                    stream.synchronize()
                flags[chunk] = 1

    for step in range(3):
        a.fill_(float("nan"))
        signals.zero_()
        mine = rand(2 * chunks, 8, seed=10 * step + rank(), same=True)
        wanted = rand(2 * chunks, 8, seed=10 * step + sender, same=True) @ b
        torch.cuda.synchronize() if DEVICE == "cuda" else None
        rows.barrier()
        thread = threading.Thread(target=send, args=(mine,))
        thread.start()
        before = _native.counts().launched
        got = OPS.async_input_matmul(a, b, signals, rank() % chunks, name)
        tandem.torch.synchronize()
        thread.join()
        near(got, wanted)
        assert _native.kernels is None or _native.counts().launched == before + (step > 0), step
        rows.barrier()
    dist.barrier()


if __name__ == "__main__":
    main()
