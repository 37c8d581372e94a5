"""A rank whose compiled collectives write in the memory pool, and one whose ordinary tensors lie in expandable segments: test_ops
sets PYTORCH_CUDA_ALLOC_CONF for the latter."""

import os

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from rank_handles import works
from reference_ops import OPS, near, rand, reference, world
from tandem.torch import _native
from torch.distributed import _functional_collectives as funcol


@check
def test_compiled_outputs_in_the_pool(name):
    """Peers write the results of a compiled function where these lie."""
    group, pool = dist.group.WORLD, tandem.torch.mem_pool(64 << 20)

    def function(x, w, v):
        whole = funcol.all_gather_tensor(x, 0, group)
        return whole, whole @ w, funcol.all_reduce(x @ v, "sum", group)

    w, v = rand(64, 32, seed=1, same=True), rand(64, 32, seed=2)
    with tandem.torch.compile_config(), torch.no_grad():
        compiled = torch.compile(function, fullgraph=True)
        for step in range(3):
            x = rand(16, 64, seed=step + 3)
            before = _native.counts().launched
            with torch.cuda.use_mem_pool(pool):
                whole, product, total = compiled(x, w, v)
            assert tandem.torch.is_symmetric(whole) and tandem.torch.is_symmetric(total)
            assert step == 0 or _native.counts().launched == before + 2
            near(whole.clone(), reference.all_gather(x, 0, name))
            near(product.clone(), reference.all_gather(x, 0, name) @ w)
            near(total.clone(), reference.all_reduce(x @ v, "sum", name))
            del whole, product, total
    plans = tandem.torch.attach(name).plans.prepared()
    assert sorted(plan.plan.info["op"] for plan in plans if plan.symmetric) == [
        "all_gather_matmul",
        "matmul_all_reduce",
    ]
    if not SHARED_GPUS:  # torch's own gather is gloo's there, which has none of a GPU's memory
        plain, _, _ = compiled(x, w, v)
        assert not tandem.torch.is_symmetric(plain)


@check
def test_torchs_own_ops_in_the_pool(name):
    """Factories and products: their results have handles and are inputs of ops."""
    pool = tandem.torch.mem_pool(64 << 20)
    weights, row = torch.ones(1024, 1024, device=DEVICE), torch.ones(1, 1024, device=DEVICE)
    with torch.cuda.use_mem_pool(pool):
        counted, product = torch.arange(1024.0, device=DEVICE), row @ weights
    assert tandem.torch.is_symmetric(counted) and tandem.torch.is_symmetric(product)
    tandem.torch.rendezvous(counted).barrier()
    assert torch.equal(OPS.all_reduce(counted, "sum", name), torch.arange(1024.0, device=DEVICE) * world())
    assert torch.equal(OPS.all_reduce(product, "sum", name), (row @ weights) * world())


@check
def test_pieces_of_the_pool_that_are_used_again(name):
    pool = tandem.torch.mem_pool(64 << 20)
    for count in (1024, 1024, 4 << 20):
        with torch.cuda.use_mem_pool(pool):
            x = torch.empty(count, device=DEVICE)
        memory = tandem.torch.rendezvous(x)
        works(memory) if memory.offset == 0 else memory.barrier()
        x.fill_(dist.get_rank())
        memory.barrier()
        for peer in range(world()):
            assert (memory.get_remote_tensor(peer, (count,), torch.float32) == peer).all()
        memory.barrier()
        dist.barrier()
        assert not memory.get_signal_pad(memory.rank).any()
        dist.barrier()
        del x, memory


def in_segments(tensor):
    """Whether the tensor lies in a segment of torch's allocator that grows."""
    address = tensor.data_ptr()
    found = [
        one for one in torch.cuda.memory_snapshot() if one["address"] <= address < one["address"] + one["total_size"]
    ]
    return bool(found) and all(one["is_expandable"] for one in found)


@check
def test_ops_on_tensors_of_torchs_allocator(name):
    """Tensors of many chunks; and the same plan when the segment has grown, and on memory that was given back between."""
    expandable = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    held = []
    for rows in (world(), 1024 * world(), 4096 * world()):
        a, b = rand(rows, 1024), rand(1024, 512, seed=1, same=True)
        assert in_segments(a) == expandable and in_segments(b) == expandable
        for _ in range(3):
            near(OPS.all_reduce(a, "sum", name), reference.all_reduce(a, "sum", name))
            whole, (product,) = OPS.all_gather_matmul(a, [b], 0, name)
            assert torch.equal(whole, reference.all_gather(a, 0, name))
            near(product, whole @ b)
            near(OPS.matmul_reduce_scatter(a, b, "sum", 0, name), reference.reduce_scatter(a @ b, "sum", 0, name))
            held.append(torch.empty(24 << 20, dtype=torch.uint8, device=DEVICE))
    del a, b, whole, product, held
    tandem.torch.synchronize()
    torch.cuda.empty_cache()
    a = rand(world(), 1024)
    near(OPS.all_reduce(a, "sum", name), reference.all_reduce(a, "sum", name))


if __name__ == "__main__":
    main()
