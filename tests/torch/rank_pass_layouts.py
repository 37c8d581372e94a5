"""A rank that compiles functions with the pass whose gathers and scatters along a dimension are written as slices or as a split of
sizes, as torch 2.13 and later write them, and gathers of rows that were padded."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from rank_pass import AG, RS, compare, dtensor
from reference_ops import near, rand, world
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.distributed import _functional_collectives as funcol
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

aten = torch.ops.aten


def slices(tensor, dim, order=None):
    """The ranks' equal chunks, by slices; or chunks of this order."""
    size = tensor.shape[dim] // world()
    return [tensor.narrow(dim, i * size, size) for i in order or range(world())]


def sizes(tensor, dim):
    """The same by one split of sizes."""
    return torch.split_with_sizes(tensor, [tensor.shape[dim] // world()] * world(), dim)


def gathered(x, dim, cut=slices):
    return torch.cat(cut(funcol.all_gather_tensor(x, 0, dist.group.WORLD), 0), dim)


def scattered(product, dim, cut=slices, reduce_op="sum"):
    return funcol.reduce_scatter_tensor(torch.cat(cut(product, dim), 0), reduce_op, 0, dist.group.WORLD)


def has(compiler, *targets):
    """The graph that the pass got is written so: nothing has put another form in its place."""
    assert any(target in compiler.given for target in targets), compiler.given


CUTS = ((slices, (aten.slice.Tensor,)), (sizes, (aten.split_with_sizes.default, aten.split.sizes)))


@check
def test_gather_along_another_dimension(name):
    for cut, targets in CUTS:
        for x, dim, k in (
            (rand(2, 4, 6), 1, 6),
            (rand(1, 4, 6), 1, 6),
            (rand(2, 3, 4, 6), 2, 6),
            (rand(4, 6), 1, 6 * world()),
        ):
            given = x, rand(k, 5, seed=1)
            compiler = compare(lambda x, w: gathered(x, dim, cut) @ w, *given, fused=[AG], grads=False)
            assert f"dimension {dim}" in compiler.records[0].reason, compiler.records
            has(compiler, *targets)

    def to_the_end(x, w):
        whole = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
        return torch.cat([whole[: x.shape[0]], *slices(whole, 0)[1:-1], whole[-x.shape[0] :]], -2) @ w

    compare(to_the_end, rand(2, 4, 6), rand(6, 5, seed=1), fused=None, left=None, grads=False)


@check
def test_gather_along_another_dimension_for_several_users(name):
    def block(x, q, k):
        whole = gathered(x, 1)
        return (whole @ q) * (whole @ k) + whole.sum()

    compiler = compare(block, rand(2, 4, 6), rand(6, 5, seed=1), rand(6, 5, seed=2), fused=[AG], grads=False)
    assert "2 product(s), and returns" in compiler.records[0].reason, compiler.records


@check
def test_scatter_along_another_dimension(name):
    w = rand(6, 2 * world(), seed=1)
    for cut, targets in CUTS:
        for x, dim in (
            (rand(2 * world(), 6), 1),
            (rand(3, 2 * world(), 6), 1),
            (rand(1, world(), 6), 1),
            (rand(2, 3, 6), 2),
        ):
            compiler = compare(lambda x, w: scattered(x @ w, dim, cut), x, w, fused=[RS], grads=False)
            assert f"dimension {dim}" in compiler.records[0].reason, compiler.records
            has(compiler, *targets)
    compare(lambda x, w: scattered(x @ w, -1, reduce_op="avg"), rand(2, 3, 6), w, fused=[RS], grads=False)


def scattered_after_move(product, dim):
    return funcol.reduce_scatter_tensor(product.movedim(dim, 0).contiguous(), "sum", 0, dist.group.WORLD)


@check
def test_scatter_of_a_dimension_that_is_moved_to_the_front(name):
    """As torchtitan writes it: moved, gathered in memory, scattered, and often moved back."""
    moved = scattered_after_move
    w = rand(6, 5, seed=1)
    for x, dim in ((rand(3, 2 * world(), 6), 1), (rand(3, 2, 2 * world(), 6), 2), (rand(1, world(), 6), 1)):
        for function in (
            lambda x, w: moved(x @ w, dim),
            lambda x, w: moved(x @ w, dim).movedim(0, dim),
            lambda x, w: moved(x @ w + x @ (w * 2), dim).movedim(0, dim) * 2,
        ):
            # The pass copies nothing that is moved back. Inductor restores strides where they matter.
            compiler = compare(function, x, w, fused=[RS], grads=False, strides=False)
            assert f"dimension {dim}" in compiler.records[0].reason, compiler.records
    compiler = compare(lambda x, w: moved(x @ w, 0), rand(2 * world(), 3, 6), w, fused=[RS], grads=False)
    if not SHARED_GPUS:
        compiler = compare(
            lambda x, w: moved(x @ w, 1), rand(4, 6), rand(6, 2 * world()), fused=["reduce_scatter"], grads=False
        )
        assert "no matrix product" in compiler.records[0].reason, compiler.records


@check
def test_both_with_gradients(name):
    def block(x, w, v):
        return scattered(torch.relu(gathered(x, 1) @ w) @ v, 1)

    compiler = compare(block, rand(2, 4, 6), rand(6, 5, seed=1), rand(5, 6, seed=2), fused=None, left=None)
    assert {AG, RS} <= set(compiler.fused()), compiler.records


@check
def test_other_parts_are_not_fused(name):
    if SHARED_GPUS:
        return  # what stays is torch's own, which has no backend for ranks that share a GPU
    group, n = dist.group.WORLD, world()
    x, w = rand(4, 6), rand(6, 2 * n, seed=1)
    backwards = list(reversed(range(n)))
    for parts, reason in (
        (lambda whole: slices(whole, 0, backwards), "equal chunks"),
        (lambda whole: [*slices(whole, 0)[:-1], whole[:4]], "equal chunks"),
        (lambda whole: torch.split(whole, 2), "equal chunks"),
        (lambda whole: [whole[:3], whole[3:6]], "equal chunks"),
        (lambda whole: [whole[i::n] for i in range(n)], "equal chunks"),
    ):

        def function(x, w):
            wide = torch.cat(parts(funcol.all_gather_tensor(x, 0, group)), 1)
            return wide @ torch.cat([w] * (wide.shape[1] // 6))

        compiler = compare(function, x, w, fused=["all_gather"], grads=False)
        assert reason in compiler.records[0].reason, compiler.records

    def part(x, w):
        parts = slices(funcol.all_gather_tensor(x, 0, group), 0)
        return torch.cat(parts, 1) @ torch.cat([w] * n) + parts[0].sum()

    compiler = compare(part, x, w, fused=["all_gather"], grads=False)
    assert "on its own" in compiler.records[0].reason, compiler.records
    y = rand(2 * n, 6)
    for function, reason in (
        (
            lambda y, w: funcol.reduce_scatter_tensor(torch.cat(slices(y @ w, 1, backwards), 0), "sum", 0, group),
            "equal chunks",
        ),
        (
            lambda y, w: funcol.reduce_scatter_tensor(torch.cat(torch.split(y @ w, 1, 1), 0), "sum", 0, group),
            "equal chunks",
        ),
        (
            lambda y, w: (
                funcol.reduce_scatter_tensor(torch.cat(p := slices(y @ w, 1), 0), "sum", 0, group) + p[0].sum()
            ),
            "on its own",
        ),
    ):
        compiler = compare(function, y, w, fused=["reduce_scatter"], grads=False)
        assert reason in compiler.records[0].reason, compiler.records


@check
def test_padded_rows_behind_a_gather(name):
    """The product has them, too, and they are cut off behind it."""
    group, n = dist.group.WORLD, world()
    w, v = rand(6, 5, seed=1), rand(6, 3, seed=2)
    for x, dim in ((rand(4, 6), 0), (rand(4, 3, 6), 0), (rand(2, 4, 6), 1), (rand(1, 4, 6), 1), (rand(2, 3, 4, 6), 2)):
        for whole in (lambda x: funcol.all_gather_tensor(x, dim, group), lambda x: gathered(x, dim) if dim else x):
            if whole(x) is x:
                continue

            def function(x, w):
                return whole(x).narrow(dim, 0, 4 * n - 1).flatten(0, -2) @ w

            compiler = compare(function, x, w, fused=[AG], grads=False)
            has(compiler, aten.slice.Tensor)
            assert "returns" not in compiler.records[0].reason, compiler.records

    def shared(x, w, v):
        every = gathered(x, 1)
        rows = every.narrow(1, 0, 4 * n - 1)
        return (rows.flatten(0, 1) @ w).sum() + (every @ v).sum() + rows.sum() * every.sum()

    compiler = compare(shared, rand(2, 4, 6), w, v, fused=[AG], grads=False)
    assert "2 product(s), and returns" in compiler.records[0].reason, compiler.records
    compiler = compare(
        lambda x, b, w: torch.addmm(b, funcol.all_gather_tensor(x, 0, group)[: 4 * n - 1], w),
        rand(4, 6),
        rand(5, seed=3, same=True),
        w,
        fused=[AG, "reduce_scatter"],
    )
    # The gradient's, padded before its scatter.
    assert "no matrix product" in compiler.records[1].reason, compiler.records


@check
def test_padded_rows_of_fp8(name):
    fp8, one = torch.float8_e4m3fn, torch.tensor(0.5, device=DEVICE)

    def product(a, b, s):
        whole = funcol.all_gather_tensor(a.view(torch.uint8), 0, dist.group.WORLD).view(fp8)
        return torch._scaled_mm(whole[:-1], b, s, s, out_dtype=torch.float32)

    given = rand(4, 16).to(fp8), rand(16, 16, seed=1).to(fp8).t(), one
    compare(product, *given, fused=["all_gather_scaled_matmul"], grads=False)


@check
def test_other_slices_of_a_gathered_tensor_are_not_fused(name):
    if SHARED_GPUS:
        return
    x, w, group = rand(4, 6), rand(6, 5, seed=1), dist.group.WORLD
    for rows, reason in (
        (lambda whole: whole[:3], "a part of the gathered rows"),
        (lambda whole: whole[1:], "other rows than the first"),
        (lambda whole: whole[::2], "other rows than the first"),
        (lambda whole: whole[:, :4], "columns are cut"),
    ):
        compiler = compare(
            lambda x, w: (p := rows(funcol.all_gather_tensor(x, 0, group))) @ w[: p.shape[1]],
            x,
            w,
            fused=["all_gather"],
            grads=False,
        )
        assert reason in compiler.records[0].reason, compiler.records


@check
def test_dtensor_of_rows_that_do_not_divide(name):
    """Each rank's rows are padded to one number, gathered, and cut to what they were."""
    for dim, shape in ((1, (4, 2 * world() - 1, 8)), (1, (1, 2 * world() - 1, 8)), (0, (2 * world() - 1, 8))):
        plan = {
            "norm": SequenceParallel(sequence_dim=dim),
            "up": ColwiseParallel(input_layouts=Shard(dim)),
            "down": RowwiseParallel(),
        }
        compiler = dtensor(plan, True, shape)
        assert compiler.fused().count(AG) >= 1, [str(record) for record in compiler.records]


class Spy(CustomGraphPass):
    """Has the targets of the graphs that Inductor hands to its passes."""

    targets: list = []

    def __call__(self, graph):
        self.targets += [node.target for node in graph.nodes]

    def uuid(self):
        return None  # no graphs of a cache


@check
def test_inductor_keeps_the_strides_of_what_is_moved_back(name):
    def function(x, w):
        return scattered_after_move(x @ w, 1).movedim(0, 1)

    x, w = rand(3, 2 * world(), 6), rand(6, 5, seed=1)
    with torch.no_grad():
        compiled = torch.compile(function, options={"post_grad_custom_post_pass": tandem.torch.TandemPass()})(x, w)
        want = function(x.cpu(), w.cpu())
    near(compiled, want.to(DEVICE))
    assert compiled.stride() == want.stride(), (compiled.stride(), want.stride())


@check
def test_inductor_keeps_the_slices(name):
    def block(x, w, v):
        return scattered(torch.relu(gathered(x, 1)[:, :-1].flatten(0, 1) @ w) @ torch.cat([v, v], 1), 1, sizes)

    def symbolic(x, w, v):
        return scattered(torch.relu(gathered(x, 2)[:, :, :-1].flatten(0, 2) @ w) @ v, 1)

    for function, dynamic, extents in ((block, None, [(2, 4, 6)]), (symbolic, 2, [(2, 3, 4, 6), (2, 3, 5, 6)])):
        spy, before = Spy(), len(tandem.torch.explain_graph())
        spy.targets.clear()
        options = {"post_grad_custom_post_pass": tandem.torch.TandemPass(previous=spy)}
        compiled = torch.compile(function, options=options, fullgraph=True)
        for shape in extents:
            x, w, v = rand(*shape), rand(6, 5, seed=1), rand(5, 6, seed=2)
            if dynamic is not None:
                torch._dynamo.mark_dynamic(x, dynamic)
            with torch.no_grad():
                near(compiled(x, w, v), function(x.cpu(), w.cpu(), v.cpu()).to(DEVICE))
        assert spy.targets.count(aten.slice.Tensor) > world(), spy.targets
        assert dynamic or aten.split_with_sizes.default in spy.targets, spy.targets
        records = tandem.torch.explain_graph()[before:]
        assert sorted(record.fused_into for record in records) == [AG, RS], records


if __name__ == "__main__":
    main()
