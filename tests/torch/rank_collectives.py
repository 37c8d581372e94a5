"""A rank: eager collectives of torch.distributed, taken by Tandem behind install()."""

import os
from datetime import timedelta

import tandem.torch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from checks import CUDA, DEVICE, check, main
from tandem.torch import _plans

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
MOVED = (*TYPES, torch.float64, torch.bool, torch.int8, torch.int16, torch.complex64, torch.complex128)


def world():
    return dist.get_world_size()


def counted(taken, left=0):
    """Checks the calls since the last check of this kind, and clears the counts."""
    now = tandem.torch.report()
    before = counted.before
    counted.before = (now.seen, now.taken)
    got = (now.taken - before[1], now.seen - now.taken - before[0] + before[1])
    assert got == (taken, left), f"{got} taken and left, not {(taken, left)}:\n{now}"


counted.before = (0, 0)


def values(shape, dtype, rank=None):
    """Small whole numbers of one rank, so that sums are exact in every type."""
    torch.manual_seed(17 + (dist.get_rank() if rank is None else rank))
    return torch.randint(0, 7, shape).to(dtype).to(DEVICE)


def of_all(shape, dtype):
    return [values(shape, dtype, rank) for rank in range(world())]


def total(tensors):
    whole = tensors[0].clone()
    for one in tensors[1:]:
        whole += one
    return whole


@check
def test_sums_and_averages(name):
    for dtype in TYPES:
        for shape in ((1,), (5, 3), (2, 0), (3000,)):
            x = values(shape, dtype)
            dist.all_reduce(x)
            assert torch.equal(x, total(of_all(shape, dtype))), (dtype, shape)
        counted(3, 1)
    if CUDA:
        x = values((64,), torch.float32)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert torch.equal(x, total(of_all((64,), torch.float32)) / world())
        counted(1)
    x = values((8,), torch.complex64)
    dist.all_reduce(x)
    assert torch.equal(x, total(of_all((8,), torch.complex64)))
    counted(1)


def reduced(tensors, op):
    """Of whole numbers, and so exact in every type."""
    each = [tensor.long() for tensor in tensors]
    whole = each[0]
    for one in each[1:]:
        whole = {
            "MIN": torch.minimum,
            "MAX": torch.maximum,
            "PRODUCT": torch.mul,
            "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or,
            "BXOR": torch.bitwise_xor,
        }[op](whole, one)
    return whole.to(tensors[0].dtype)


@check
def test_reductions_that_are_no_sums(name):
    for dtype in (*TYPES, torch.bool):
        floating, bits = dtype.is_floating_point, ("BAND", "BOR") if dtype == torch.bool else ("BAND", "BOR", "BXOR")
        for op in ("MIN", "MAX", "PRODUCT", *(() if floating else bits)):
            x, each = values((37,), dtype), of_all((37,), dtype)
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            assert torch.equal(x, reduced(each, op)), (dtype, op)
            wide, every = values((2 * world(), 3), dtype), of_all((2 * world(), 3), dtype)
            part = torch.empty((2, 3), dtype=dtype, device=DEVICE)
            dist.reduce_scatter_tensor(part, wide, getattr(dist.ReduceOp, op))
            assert torch.equal(part, reduced(every, op).chunk(world())[dist.get_rank()]), (dtype, op)
            counted(2)
    x = torch.tensor([1.0, float("nan") if dist.get_rank() == 0 else 2.0, -3.0], device=DEVICE)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x[0] == 1 and x[1].isnan() and x[2] == -3, x
    got = functional.wait_tensor(functional.all_reduce(values((9,), torch.float32), "max", dist.group.WORLD))
    assert torch.equal(got, reduced(of_all((9,), torch.float32), "MAX"))
    counted(2)


@check
def test_what_tandem_has_no_sum_of_stays_with_the_backend(name):
    x = values((8,), torch.float64)
    dist.all_reduce(x)
    assert torch.equal(x, total(of_all((8,), torch.float64)))
    counted(0, 1)
    reasons = {row.reason for row in tandem.torch.report().rows}
    assert "Tandem has no sums of Double" in reasons, reasons
    assert "Tandem has run" in str(tandem.torch.report())


@check
def test_elements_that_are_moved_keep_their_bits(name):
    for dtype in MOVED:
        x, each = values((3, 4), dtype), of_all((3, 4), dtype)
        into = torch.empty((3 * world(), 4), dtype=dtype, device=DEVICE)
        dist.all_gather_into_tensor(into, x)
        assert torch.equal(into, torch.cat(each)), dtype
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x)
        assert all(torch.equal(got, want) for got, want in zip(parts, each, strict=True)), dtype
        for root in range(world()):
            y = x.clone()
            dist.broadcast(y, root)
            assert torch.equal(y, each[root]), (dtype, root)
        counted(2 + world())
    x = torch.tensor([float("nan"), -0.0, float("inf")], device=DEVICE).to(torch.bfloat16).repeat(4)
    into = torch.empty(12 * world(), dtype=torch.bfloat16, device=DEVICE)
    dist.all_gather_into_tensor(into, x)
    assert torch.equal(into.view(torch.int16), x.view(torch.int16).repeat(world()))
    counted(1)


@check
def test_scatters_and_exchanges(name):
    n = world()
    for dtype in TYPES:
        wide = values((2 * n, 5), dtype)
        out = torch.empty((2, 5), dtype=dtype, device=DEVICE)
        dist.reduce_scatter_tensor(out, wide)
        mine = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
        assert torch.equal(out, total(of_all((2 * n, 5), dtype))[mine]), dtype
        got = torch.empty_like(wide)
        dist.all_to_all_single(got, wide)
        assert torch.equal(got, torch.cat([one[mine] for one in of_all((2 * n, 5), dtype)])), dtype
        counted(2)
    got = torch.empty_like(wide)
    dist.all_to_all_single(got, wide, [2] * n, [2] * n)  # another rank's splits may be uneven
    assert torch.equal(got, torch.cat([one[mine] for one in of_all((2 * n, 5), dtype)]))
    counted(0, 1)


def left(run, reason):
    """A call that the backend gets, with this reason in the report."""
    calls = sum(row.calls for row in tandem.torch.report().rows if row.reason == reason)
    run()
    now = tandem.torch.report()
    assert sum(row.calls for row in now.rows if row.reason == reason) == calls + 1, str(now)
    counted(0, 1)


@check
def test_exchanges_with_uneven_splits(name):
    """The backend has them on all ranks alike, also where a rank's own splits are even: rank 1 alone sends itself more."""
    n, rank = world(), dist.get_rank()
    sent = [[5 if source == target == 1 else 2 for target in range(n)] for source in range(n)]
    x = values((sum(sent[rank]), 3), torch.float32)
    into = [sent[source][rank] for source in range(n)]
    each = [values((sum(sent[source]), 3), torch.float32, source).split(sent[source])[rank] for source in range(n)]
    got = torch.empty((sum(into), 3), device=DEVICE)
    left(lambda: dist.all_to_all_single(got, x, into, sent[rank]), "its splits are given")
    assert torch.equal(got, torch.cat(each))
    results = []
    left(
        lambda: results.append(functional.all_to_all_single(x, into, sent[rank], dist.group.WORLD).clone()),
        "its splits are given",
    )
    assert torch.equal(results[0], torch.cat(each))


@check
def test_sums_with_a_factor(name):
    """The backend has them on all ranks alike: NCCL multiplies, and gloo refuses, as without Tandem."""
    factor = dist._make_nccl_premul_sum(2.0)
    part = torch.empty((2, 3), device=DEVICE)
    for run, result, want in (
        (lambda x: dist.all_reduce(x, factor), lambda x: x, lambda whole: whole),
        (
            lambda x: dist.reduce_scatter_tensor(part, x, factor),
            lambda _: part,
            lambda whole: whole.chunk(world())[dist.get_rank()],
        ),
    ):
        x = values((2 * world(), 3), torch.float32)
        refused = []

        def call(run=run, x=x, refused=refused):
            try:
                run(x)
            except RuntimeError as error:
                refused.append(str(error))

        left(call, "Tandem has no such reduction")
        if CUDA:
            assert torch.equal(result(x), want(2 * total(of_all((2 * world(), 3), torch.float32)))), refused
        else:
            assert len(refused) == 1 and "Gloo" in refused[0], refused


@check
def test_sums_of_sparse_tensors(name):
    if CUDA:  # NCCL has none
        return
    dense = values((6, 4), torch.float32) * (torch.arange(6) % 2).unsqueeze(1)
    x = dense.to_sparse()
    left(lambda: dist.all_reduce(x), "its tensor is sparse")
    want = total(of_all((6, 4), torch.float32)) * (torch.arange(6) % 2).unsqueeze(1)
    assert torch.equal(x.to_dense(), want)
    y = dense.to_sparse()
    left(lambda: dist.all_reduce(y, async_op=True).wait(), "its tensor is sparse")
    assert torch.equal(y.to_dense(), want)


@check
def test_tensors_in_other_orders_and_places(name):
    x = values((4, 6), torch.float32).t()
    dist.all_reduce(x)  # dense, in another order
    assert torch.equal(x, total(of_all((4, 6), torch.float32)).t())
    whole = torch.zeros(40, dtype=torch.bfloat16, device=DEVICE)
    view = whole[3:20]  # at an odd address
    view.copy_(values((17,), torch.bfloat16))
    dist.all_reduce(view)
    assert torch.equal(view, total(of_all((17,), torch.bfloat16)))
    assert not whole[:3].any() and not whole[20:].any()
    counted(2)
    mine = values((4, 3), torch.float32)
    table = torch.zeros((4, 5), device=DEVICE)
    table[:, :3] = mine
    gaps = table[:, :3] if dist.get_rank() == 0 else mine  # on one rank alone
    dist.all_reduce(gaps)
    assert torch.equal(gaps, total(of_all((4, 3), torch.float32)))
    assert not table[:, 3:].any()
    counted(1)
    into = torch.zeros((world(), 6), device=DEVICE)
    own = into[dist.get_rank()]
    own.copy_(values((6,), torch.float32))
    dist.all_gather_into_tensor(into, own)  # in place
    assert torch.equal(into, torch.stack(of_all((6,), torch.float32)))
    counted(1)


@check
def test_asynchronous_works(name):
    tensors = [values((100 + i,), torch.float32) for i in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for i, (x, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        assert torch.equal(x, total(of_all((100 + i,), torch.float32)))
        assert work.is_completed() or CUDA
    x = values((64,), torch.float32)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    doubled.wait()
    assert torch.equal(doubled.value(), 2 * total(of_all((64,), torch.float32)))
    counted(21)


@check
def test_functional_collectives(name):
    x, group = values((4, 3), torch.float32), dist.group.WORLD
    assert torch.equal(functional.all_reduce(x, "sum", group), total(of_all((4, 3), torch.float32)))
    assert torch.equal(functional.all_gather_tensor(x, 0, group), torch.cat(of_all((4, 3), torch.float32)))
    wide = values((2 * world(), 3), torch.float32)
    mine = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    want = total(of_all((2 * world(), 3), torch.float32))[mine]
    assert torch.equal(functional.reduce_scatter_tensor(wide, "sum", 0, group), want)
    counted(3)


@check
def test_new_sizes_need_no_meeting(name):
    plans = tandem.torch.attach(name).plans
    for dtype in (torch.float32, torch.bfloat16):
        dist.all_reduce(values((900,), dtype))
        made = plans._made
        for count in (1, 2, 37, 511, 1000, 1023, 5):
            x = values((count,), dtype)
            dist.all_reduce(x)
            assert torch.equal(x, total(of_all((count,), dtype))), (dtype, count)
        families = CUDA or "TANDEM_TEST_CLIENT" in os.environ
        assert (plans._made == made) == families, (plans._made, made)
        counted(8)


@check
def test_sizes_at_which_nccl_is_faster(name):
    """Are left to the process group, alike on all ranks; smaller ones, and calls of Tandem's ops, are not."""
    if not (CUDA or "TANDEM_TEST_CLIENT" in os.environ):
        return  # plans of one shape
    whole, asked = _plans.nccl_is_faster, []

    def faster(info):
        asked.append(info["max_rows"])
        return info["max_rows"] > 1 << 20

    def served(count):
        before = tandem.torch.report().taken
        x = values((256 * count,), torch.float32)
        dist.all_reduce(x)
        assert torch.equal(x, total(of_all((256 * count,), torch.float32))), count
        return tandem.torch.report().taken - before

    _plans.nccl_is_faster = faster
    try:
        assert [served(count) for count in (5000, 1200, 5000, 4097, 8000, 4096, 900)] == [0, 1, 0, 0, 0, 1, 1]
        assert max(asked) == 1 << 21 and len(asked) < 4, asked
        assert any("NCCL is predicted" in row.reason for row in tandem.torch.report().rows)
        x = values((256 * 5000,), torch.float32)
        assert torch.equal(torch.ops.tandem.all_reduce(x, "sum", name), total(of_all((256 * 5000,), torch.float32)))
        assert served(5000) == 0, "for the process group still"
    finally:
        _plans.nccl_is_faster = whole
        counted.before = (tandem.torch.report().seen, tandem.torch.report().taken)
    refused = [{"algorithm": "sm", "predicted_us": 1.0}, {"algorithm": "nccl", "predicted_us": 60.0}]
    assert whole({"predicted_us": 91.0, "refused": refused}) and not whole({"predicted_us": 89.0, "refused": refused})
    assert not whole({"predicted_us": 91.0, "refused": [{"algorithm": "nccl", "predicted_us": 0.0}]})


@check
def test_shapes_at_which_nccl_is_faster(name):
    """Without families, too, calls are left to the process group: each shape's plan is made once, and dropped."""
    whole, before = _plans.nccl_is_faster, tandem.torch.configure()
    tandem.torch.detach(name)
    tandem.torch.configure(families="none")
    _plans.nccl_is_faster = lambda info: info["max_rows"] == 0 and info["slot_bytes"][0] > 4096

    def served(count):
        taken = tandem.torch.report().taken
        x = values((count,), torch.float32)
        dist.all_reduce(x)
        assert torch.equal(x, total(of_all((count,), torch.float32))), count
        return tandem.torch.report().taken - taken

    try:
        assert [served(count) for count in (2048, 512, 2048, 512, 2048)] == [0, 1, 0, 1, 0]
        plans = tandem.torch.attach(name).plans
        assert (plans._made, len(plans)) == (2, 1), (plans._made, len(plans))
        x = values((2048,), torch.float32)
        assert torch.equal(torch.ops.tandem.all_reduce(x, "sum", name), total(of_all((2048,), torch.float32)))
    finally:
        _plans.nccl_is_faster = whole
        tandem.torch.configure(families=before.families)
        tandem.torch.detach(name)
        counted.before = (tandem.torch.report().seen, tandem.torch.report().taken)


@check
def test_objects(name):
    got = [None] * world()
    dist.all_gather_object(got, {"rank": dist.get_rank(), "text": "x" * dist.get_rank()})
    assert got == [{"rank": rank, "text": "x" * rank} for rank in range(world())]
    told = ["from 0" if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, 0)
    assert told == ["from 0"]
    counted.before = (tandem.torch.report().seen, tandem.torch.report().taken)


@check
def test_subgroups_and_groups_made_again(name):
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world(), 2)]
    pair = pairs[dist.get_rank() // 2]
    x = values((5,), torch.float32)
    dist.all_reduce(x, group=pair)
    first = dist.get_rank() // 2 * 2
    assert torch.equal(x, values((5,), torch.float32, first) + values((5,), torch.float32, first + 1))
    counted(1)
    for _ in range(20):
        again = dist.new_group()
        y = torch.ones(3, device=DEVICE)
        dist.all_reduce(y, group=again)
        assert torch.equal(y, torch.full((3,), float(world()), device=DEVICE))
        dist.destroy_process_group(again)
    counted(20)


@check
def test_ddp(name):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)).to(DEVICE)
    alone = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)).to(DEVICE)
    alone.load_state_dict(model.state_dict())
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0001)
    for step in range(3):
        batches = [
            torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + r)).to(DEVICE) for r in range(world())
        ]
        wrapped.zero_grad()
        wrapped(batches[dist.get_rank()]).square().mean().backward()
        alone.zero_grad()
        (sum(alone(batch).square().mean() for batch in batches) / world()).backward()
        for got, want in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad)
    now = tandem.torch.report()
    assert now.taken > counted.before[1], str(now)
    counted.before = (now.seen, now.taken)


@check
def test_fsdp2(name):
    from torch.distributed.fsdp import fully_shard

    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(DEVICE)

    alone, model = make(), make()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    batches = [torch.randn(4, 6, generator=torch.Generator().manual_seed(r)).to(DEVICE) for r in range(world())]
    model(batches[dist.get_rank()]).square().mean().backward()
    (sum(alone(batch).square().mean() for batch in batches) / world()).backward()
    for got, want in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.grad.full_tensor(), want.grad)
    now = tandem.torch.report()
    assert now.taken > counted.before[1], str(now)
    counted.before = (now.seen, now.taken)


@check
def test_a_group_that_tandem_does_not_serve(name):
    tandem.torch.configure(runtime_dir="/nowhere")
    lone = dist.new_group(timeout=timedelta(seconds=60))
    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                x = values((5,), torch.float32)
                dist.all_reduce(x, group=lone)
                assert torch.equal(x, total(of_all((5,), torch.float32)))
        counted(0, 2)
    finally:
        tandem.torch.configure(runtime_dir=None)
        dist.destroy_process_group(lone)


@check
def test_uninstall(name):
    tandem.torch.uninstall()
    x = values((5,), torch.float32)
    dist.all_reduce(x)
    assert torch.equal(x, total(of_all((5,), torch.float32)))
    counted(0)


if __name__ == "__main__":
    if "TANDEM_TEST_CLIENT" in os.environ:
        tandem.torch.configure(placement="client")
    tandem.torch.install()
    main()
