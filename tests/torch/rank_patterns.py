"""A rank that compiles under the pass what PyTorch's own tests of async-TP and of compiled collectives compile.
test_upstream.py has the names of these tests."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from rank_pass import AG, AR, RS, Compiler, compare
from reference_ops import OPS, near, rand, rank, reference, world
from torch.distributed import _functional_collectives as funcol

GROUP = dist.group
FP8 = torch.float8_e4m3fn


@check
def test_every_gathered_dimension(name):
    """A of two and three dimensions, every dimension, with and without the gathered A as a result."""
    for shape in ((4, 6), (2, 4, 6)):
        for dim in range(len(shape)):
            w = rand(6 * (world() if dim == len(shape) - 1 else 1), 5, seed=1)
            for returned in (False, True):

                def function(x, w):
                    whole = funcol.all_gather_tensor(x, dim, GROUP.WORLD)
                    return whole @ w + whole.sum() if returned else whole @ w

                compiler = compare(function, rand(*shape), w, fused=[AG], grads=False)
                assert ("returns the gathered" in compiler.records[0].reason) == returned, compiler.records


@check
def test_every_scattered_dimension(name):
    w = rand(6, 2 * world(), seed=1)
    for shape in ((2 * world(), 6), (world(), 2 * world(), 6)):
        for dim in range(len(shape)):
            compare(
                lambda x, w: funcol.reduce_scatter_tensor(x @ w, "avg", dim, GROUP.WORLD),
                rand(*shape),
                w,
                fused=[RS],
                grads=False,
                eager=lambda x, w: funcol.reduce_scatter_tensor(x @ w, "sum", dim, GROUP.WORLD) / world(),
            )


def gathered_parts(a, dim):
    """As float8 libraries gather: along the first dimension, and then the parts are put together as bytes."""
    whole = funcol.all_gather_tensor(a, 0, GROUP.WORLD)
    if dim == 0:
        return whole.view(a.dtype)
    return torch.cat([part.view(torch.uint8) for part in whole.chunk(world())], dim).view(a.dtype)


@check
def test_fp8_that_is_put_together_as_bytes(name):
    one = torch.tensor(0.5, device=DEVICE)
    for shape in ((4, 16), (2, 4, 16)):
        for dim in range(len(shape)):
            deep = 16 * (world() if dim == len(shape) - 1 else 1)
            b = rand(16, deep, seed=1).to(FP8).t()
            for returned in (False, True):

                def product(whole, b, s):
                    out = torch._scaled_mm(whole.flatten(0, -2), b, s, s, out_dtype=torch.float32)
                    return out + whole.float().sum() if returned else out

                compare(
                    lambda a, b, s: product(gathered_parts(a, dim), b, s),
                    rand(*shape).to(FP8),
                    b,
                    one,
                    fused=["all_gather_scaled_matmul"],
                    grads=False,
                    eager=lambda a, b, s: product(
                        funcol.all_gather_tensor(a.view(torch.uint8), dim, GROUP.WORLD).view(FP8), b, s
                    ),
                )


@check
def test_fp8_products_of_viewed_rows_are_scattered(name):
    """Rows and their scales are viewed alike before the product, and the product back."""
    rows = 2 * world()
    a, b = rand(world(), rows, 16).to(FP8), rand(32, 16, seed=1).to(FP8).t()
    by_row, columns = rand(world(), rows, 1, seed=2).abs() + 0.5, rand(1, 32, seed=3).abs() + 0.5
    one = torch.tensor(0.5, device=DEVICE)

    def scaled(a, b, by_row, columns, dim, op):
        flat, scale = a.reshape(-1, a.shape[-1]), by_row.reshape(-1, by_row.shape[-1])
        product = torch._scaled_mm(flat, b, torch.reciprocal(scale), columns, out_dtype=torch.float32)
        return funcol.reduce_scatter_tensor(product.view(*a.shape[:-1], b.shape[1]), op, dim, GROUP.WORLD)

    def eager(a, b, by_row, columns, dim, op):
        product = (a.float() / by_row) @ (b.float() * columns)
        return funcol.reduce_scatter_tensor(product, "sum", dim, GROUP.WORLD) / (world() if op == "avg" else 1)

    for dim in (0, 1):
        for op in ("sum", "avg"):
            for scales in ((by_row, columns), (one.view(1, 1, 1), one.view(1, 1))):
                compare(
                    lambda *given: scaled(*given, dim, op),
                    a,
                    b,
                    *scales,
                    fused=["scaled_" + RS],
                    grads=False,
                    eager=lambda *given: eager(*given, dim, op),
                )


@check
def test_only_the_named_group_is_fused(name):
    """Of one graph with two groups, as of a mesh with two dimensions."""
    if SHARED_GPUS:
        return  # what stays is torch's own, which has no backend for ranks that share a GPU
    mine, other = dist.new_group(), dist.new_group()

    def block(x, w, u, v):
        hidden = funcol.all_gather_tensor(x, 0, mine) @ w
        whole = funcol.all_gather_tensor(hidden, 0, other)
        hidden = funcol.reduce_scatter_tensor(whole / whole.pow(2).sum().sqrt(), "sum", 0, other)
        hidden = funcol.all_gather_tensor(hidden, 0, other) @ u  # could be fused
        hidden = funcol.reduce_scatter_tensor(hidden @ u, "sum", 0, other)
        return funcol.reduce_scatter_tensor(hidden @ v, "sum", 0, mine)

    tensors = rand(4, 6), rand(6, 5, seed=1), rand(5, 5, seed=2), rand(5, 6, seed=3)
    compiler = compare(block, *tensors, fused=[AG, RS], left=4, grads=False, groups=[mine.group_name])
    for record in compiler.records:
        assert bool(record.fused_into) == (record.group == mine.group_name), compiler.records
    compare(block, *tensors, fused=[AG, AG, RS, RS, "all_gather", "reduce_scatter"], grads=False)
    tandem.torch.detach(mine), tandem.torch.detach(other)


@check
def test_collectives_that_write_their_arguments(name):
    """dist's own collectives in a compiled function: they are functional in the graph."""

    def reduced(x, w):
        y = x @ w
        dist.all_reduce(y)
        return y * 2

    def scattered(x, w):
        y = x @ w
        out = y.new_empty(y.shape[0] // world(), y.shape[1])
        dist.reduce_scatter_tensor(out, y)
        return out * 2

    def gathered(x, w):
        whole = x.new_empty(world() * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(whole, x)
        return whole @ w

    for function, fused in ((reduced, AR), (scattered, RS), (gathered, AG)):
        compare(function, rand(2 * world(), 6), rand(6, 5, seed=1), fused=[fused], grads=False)


def stays(function, *tensors, reasons, **options):
    """Nothing is fused, each collective has its reason, and the values are eager mode's."""
    compiler = compare(function, *tensors, fused=[], grads=False, **options)
    told = [(record.collective, record.reason) for record in compiler.records]
    assert len(told) == len(reasons), told
    for (collective, reason), (wanted, part) in zip(told, reasons, strict=True):
        assert collective == wanted and part in reason, told


@check
def test_collectives_beside_products_stay_right(name):
    if SHARED_GPUS:
        return
    x, w = rand(2 * world(), 1 << 14), rand(4, 1 << 14, seed=1)  # too many bytes to be lowered alone
    gather, none = ("all_gather", "no matrix product"), "no fused form"

    def along_columns(x):
        whole = funcol.all_gather_tensor(x, 0, GROUP.WORLD)
        return torch.cat(torch.chunk(whole, world(), dim=0), dim=-1)

    stays(along_columns, x, reasons=[gather], left=1)

    def unused(x):
        y = x.t().contiguous()
        funcol.all_gather_tensor(y, 0, GROUP.WORLD)
        return y.t() + 1

    stays(unused, x, reasons=[gather], left=1)
    stays(
        lambda x, w: funcol.all_gather_tensor(x[:, :4] @ w, 0, GROUP.WORLD) + 1,
        x,
        w,
        reasons=[gather],
        left=1,
    )

    def vectors(x):
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x)
        return torch.stack(parts)

    stays(
        vectors,
        torch.full((1 << 15,), float(rank())),
        reasons=[("all_gather", "fewer than 2 dimensions")],
        left=1,
    )
    stays(
        lambda x: funcol.permute_tensor(x, [(r + 1) % world() for r in range(world())], GROUP.WORLD) * 2,
        rand(6),
        reasons=[("all_to_all_single", none)],
    )
    splits = [1] * (world() - 1) + [world() + 1]
    stays(
        lambda x: funcol.all_to_all_single(x, [splits[rank()]] * world(), splits, GROUP.WORLD) * 2,
        x,
        reasons=[("all_to_all_single", none)],
    )

    def coalesced(x, w):
        more, whole = funcol.all_gather_into_tensor_coalesced([x + 1, w], GROUP.WORLD)
        parts = funcol.reduce_scatter_tensor_coalesced([more, whole], "sum", [0, 0], GROUP.WORLD)
        return torch.cat([more, whole, *parts])

    stays(
        coalesced,
        x,
        w,
        reasons=[("all_gather_into_tensor_coalesced", none), ("reduce_scatter_tensor_coalesced", none)],
    )


def wait_for_all(tensors):
    """By one op, where torch has it."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensors(tensors) if hasattr(ops, "wait_tensors") else [ops.wait_tensor(one) for one in tensors]


@check
def test_one_wait_for_several_collectives(name):
    """Each is fused as if it had a separate wait; a tensor that no op reads is waited for as well."""
    ops = torch.ops._c10d_functional

    def function(x, w):
        begun = [
            ops.all_gather_into_tensor(x, world(), name),
            ops.all_reduce(x @ w, "sum", name),
            ops.all_reduce(x + 1, "sum", name),
            ops.reduce_scatter_tensor(x @ w, "sum", world(), name),
        ]
        whole, total, _, part = wait_for_all(begun)
        return torch.cat([whole @ w, total * 2, part])

    compare(function, rand(2 * world(), 4), rand(4, 4, seed=1), fused=[AG, AR, "all_reduce", RS], grads=False)

    def twice(x, w):
        total = ops.all_reduce(x @ w, "sum", name)
        one, other, _ = wait_for_all([total, total, w + 1])
        return one * 2 + torch.relu(other)

    if not hasattr(ops, "wait_tensors"):
        return  # two waits for one tensor are two users
    compare(twice, rand(4, 4), rand(4, 4, seed=1), fused=[AR], grads=False)


@check
def test_waits_on_either_side_of_a_graph(name):
    """A collective that begins in a compiled function and is waited for in eager mode, and the other way round."""
    if SHARED_GPUS:
        return
    all_reduce, wait = torch.ops._c10d_functional.all_reduce, torch.ops._c10d_functional.wait_tensor
    x, w = rand(4, 4), rand(4, 4, seed=1)
    wanted = reference.all_reduce(x @ w, "sum", name)
    compiler = Compiler()
    torch._dynamo.reset()
    begins = torch.compile(lambda x, w: all_reduce(x @ w, "sum", name), backend=compiler, fullgraph=True)
    near(wait(begins(x, w)) + 0, wanted)
    assert compiler.reasons() == ["it is used before it is waited for"], compiler.records
    ends = torch.compile(lambda y, x, w: wait(y) + x @ w, backend=compiler, fullgraph=True)
    near(ends(all_reduce(x @ w, "sum", name), x, w), wanted + x @ w)
    y = x @ w
    with funcol.allow_inflight_collective_as_graph_input_ctx():
        work = dist.all_reduce(y, async_op=True)
        near(ends(y, x, w), wanted + x @ w)
    work.wait()
    assert len(compiler.records) == 1, compiler.records


@check
def test_the_ops_are_marked_for_tracing(name):
    for op in ("all_reduce", "all_gather_matmul", "scaled_matmul_reduce_scatter"):
        for overload in ("default", "out", "noted", "noted_out"):
            assert torch.Tag.pt2_compliant_tag in getattr(getattr(OPS, op), overload).tags, (op, overload)
    x = torch.empty(2, 3, 4, device="meta")
    assert OPS.all_reduce(x, "sum", name).shape == (2, 3, 4)
    assert OPS.all_gather(x, 1, name).shape == (2, 3 * world(), 4)


@check
def test_products_that_are_put_together_before_the_sum(name):
    def function(a, b, c):
        total = funcol.all_reduce(torch.cat((a @ b, b @ c)), "sum", GROUP.WORLD)
        return total + (a @ c).repeat(2, 1)

    compiler = compare(function, rand(4, 4), rand(4, 4, seed=1), rand(4, 4, seed=2), fused=["all_reduce"], grads=False)
    assert "no matrix product" in compiler.records[0].reason, compiler.records


@check
def test_a_gather_of_what_was_gathered(name):
    def function(x, w):
        whole = funcol.all_gather_tensor(x, 0, GROUP.WORLD)
        return funcol.all_gather_tensor(whole, 0, GROUP.WORLD) @ w

    compiler = compare(function, rand(2, 4), rand(4, 3, seed=1), fused=["all_gather", AG], grads=False)
    assert [record.fused_into for record in compiler.records] == ["all_gather", AG], compiler.records


@check
def test_small_all_reduces_of_all_sources(name):
    """Also of a graph's input, which symm_mem does not lower: no memory has to be symmetric."""
    all_reduce, wait = torch.ops._c10d_functional.all_reduce, torch.ops._c10d_functional.wait_tensor
    for before, fused in (
        (lambda x: x + 1, "all_reduce"),
        (lambda x: (x + 1)[2:], "all_reduce"),
        (lambda x: x, "all_reduce"),
        (lambda x: x @ x, AR),
    ):
        compare(lambda x: wait(all_reduce(before(x), "sum", name)), rand(4, 4), fused=[fused], grads=False)


@check
def test_all_reduces_of_symm_mem(name):
    """Of a program that calls them: the pass takes them, of any size, with their products."""
    ops, big = torch.ops.symm_mem, 256

    def total(x):
        return funcol.all_reduce(x, "sum", GROUP.WORLD)

    for call, eager, fused in (
        (lambda x: ops.one_shot_all_reduce(x, "sum", name), total, "all_reduce"),
        (
            lambda x: ops.one_shot_all_reduce(x[1:] * 2, "sum", group_name=name),
            lambda x: total(x[1:] * 2),
            "all_reduce",
        ),
        (lambda x: ops.one_shot_all_reduce_copy(x + 9, x, "sum", name), total, "all_reduce"),
        (lambda x: ops.one_shot_all_reduce(x @ x, "sum", name), lambda x: total(x @ x), AR),
        (lambda x: ops.one_shot_all_reduce_copy(x, x @ x, "sum", name), lambda x: total(x @ x), AR),
    ):
        compiler = compare(call, rand(big, big) / 16, fused=[fused], grads=False, eager=eager)
        assert compiler.records[0].collective.startswith("one_shot"), compiler.records


if __name__ == "__main__":
    main()
