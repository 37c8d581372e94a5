"""A rank that compiles collectives without a product beside them: which become Tandem's, and why the others stay."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from rank_pass import Compiler, compare
from reference_ops import near, rand, rank, world
from tandem.torch import _lone, _rewrite
from torch._inductor.utils import run_and_get_code
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

C10D = torch.ops._c10d_functional
GROUP = dist.group
TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
MOVED = (*TYPES, torch.float64, torch.int8, torch.uint32)


def some(*shape, dtype=torch.float32, seed=0):
    """A tensor of this rank's own, of any type, whose sums are exact in it."""
    values = (rand(*shape, seed=seed) * 8).round()
    return values > 0 if dtype == torch.bool else values.abs().to(dtype) if dtype == torch.uint32 else values.to(dtype)


def gather(x, dim=0):
    return funcol.all_gather_tensor(x, dim, GROUP.WORLD)


def scatter(x, dim=0, op="sum"):
    return funcol.reduce_scatter_tensor(x, op, dim, GROUP.WORLD)


def reduce(x, op="sum"):
    return funcol.all_reduce(x, op, GROUP.WORLD)


def exchange(x):
    return funcol.all_to_all_single(x, None, None, GROUP.WORLD)


def stays(function, *tensors, reason, collective=None, **options):
    """All collectives, or those of this name, are torch's, for this reason, and the values are eager mode's."""
    compiler = compare(function, *tensors, fused=None if collective else [], left=None, grads=False, **options)
    told = [one for one in compiler.records if collective in (None, one.collective)]
    assert told and all(not one.fused_into and reason in one.reason for one in told), [str(one) for one in told]


def of_all(x):
    """All ranks' tensors, on the CPU."""
    found = [None] * world()
    dist.all_gather_object(found, x.tolist())  # gloo has not all types
    return [torch.tensor(one, dtype=x.dtype) for one in found]


def exact(function, x, want, op):
    """The function's one collective becomes the op, forward only, and the result is this one to the bit. Its record."""
    torch._dynamo.reset()
    compiler = Compiler()
    got = torch.compile(function, backend=compiler, fullgraph=True, dynamic=False)(x)
    assert got.dtype == want.dtype and torch.equal(got.cpu(), want), (got, want)
    assert got.stride() == want.stride(), (got.stride(), want.stride())
    assert compiler.fused() == [op], [str(record) for record in compiler.records]
    (record,) = compiler.records
    return record


@check
def test_gathers(name):
    for dtype in MOVED:
        for shape, dims in (((3,), (0,)), ((5, 7), (0, -1)), ((3, 1, 5), (1,))):
            x = some(*shape, dtype=dtype)
            whole = of_all(x)
            for dim in dims:
                record = exact(lambda x: gather(x, dim), x, torch.cat(whole, dim), "all_gather")
                size = x.numel() * x.element_size() * world()
                assert record.collective == "all_gather" and f"{size} bytes" in record.reason, str(record)


@check
def test_scatters(name):
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for shape, dims in (((3 * world(),), (0,)), ((world(), 5 * world()), (0, -1)), ((3, world(), 7), (1,))):
            x = some(*shape, dtype=dtype)
            total = sum(of_all(x)[1:], of_all(x)[0])
            for dim in dims:
                mine = total.chunk(world(), dim)[rank()].contiguous()
                record = exact(lambda x: scatter(x, dim), x, mine, "reduce_scatter")
                assert record.collective == "reduce_scatter" and "bytes" in record.reason, str(record)
                if dtype.is_floating_point:
                    exact(lambda x: scatter(x, dim, "avg"), x, mine / world(), "reduce_scatter")


@check
def test_exchanges(name):
    def written(x):  # dist's own, which changes its argument
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    for dtype in MOVED:
        for shape in ((3 * world(),), (5 * world(), 3, 1)):
            x = some(*shape, dtype=dtype)
            mine = torch.cat([one.chunk(world())[rank()] for one in of_all(x)])
            for function in (exchange, written):
                record = exact(function, x, mine, "all_to_all")
                assert record.collective == "all_to_all_single" and "bytes" in record.reason, str(record)


@check
def test_gradients(name):
    """A gather's is a scatter, a scatter's a gather, an exchange's an exchange: all are Tandem's."""

    def gathered(dim):
        return lambda x: torch.sin(funcol.all_gather_tensor_autograd(x, dim, GROUP.WORLD))

    def scattered(dim):
        return lambda x: torch.sin(funcol.reduce_scatter_tensor_autograd(x, "sum", dim, GROUP.WORLD))

    def exchanged(x):
        return torch.sin(funcol.all_to_all_single_autograd(x, None, None, GROUP.WORLD))

    both = ["all_gather", "reduce_scatter"]
    x = rand(3 * world(), 5 * world())
    for dim in (0, 1, -1):
        compare(gathered(dim), x, fused=both)
        compare(scattered(dim), x, fused=both)
    compare(exchanged, x, fused=["all_to_all", "all_to_all"])


class Sharded(torch.nn.Module):
    """Parameters that are gathered before they are used, as FSDP's; uneven shards are padded."""

    def __init__(self, width, device, dtype):
        super().__init__()
        torch.manual_seed(4)
        mesh = DeviceMesh.from_group(GROUP.WORLD, device)
        self.parts = torch.nn.ParameterList(
            torch.nn.Parameter(distribute_tensor(whole.to(device), mesh, [Shard(0)], src_data_rank=None))
            for whole in (torch.randn(width, 6).to(dtype), torch.randn(width).to(dtype))
        )

    def forward(self, x):
        a, b = (one.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]) for one in self.parts)
        return torch.sin(torch.sin(x @ torch.relu(a).t()) * b)


@check
def test_parameters_that_are_gathered(name):
    for width, dtype in (
        (4 * world(), torch.float32),
        (4 * world() - 1, torch.float32),
        (4 * world(), torch.bfloat16),
    ):
        outcomes, compiler = [], Compiler()
        torch._dynamo.reset()
        for device, run in (
            ("cpu", lambda model: model),
            (DEVICE, lambda model: torch.compile(model, backend=compiler, fullgraph=True)),
        ):
            model = Sharded(width, device, dtype)
            out = run(model)(rand(3, 6, dtype=dtype).to(device))
            out.square().sum().backward()
            outcomes.append([out.detach(), *(one.grad.to_local() for one in model.parameters())])
        for want, got in zip(*outcomes, strict=True):
            near(got, want)
        fused = ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]
        assert compiler.fused() == fused, [str(record) for record in compiler.records]


@check
def test_gathers_along_other_dimensions_are_one_op(name):
    """No chunks are left that are put together behind it, unless a rank's part is used on its own."""
    for dim in (1, 2, -1):
        compiler = Compiler()
        torch._dynamo.reset()
        x = rand(3, 5, 7)
        got = torch.compile(lambda x: gather(x, dim) + 1, backend=compiler, fullgraph=True)(x)
        near(got.cpu(), gather(x.cpu(), dim) + 1)
        assert "cat" in str(compiler.given) and "cat" not in str(compiler.made), compiler.made

    def part(x):
        whole = gather(x)
        return torch.cat(torch.chunk(whole, world(), 0), 1) + torch.chunk(whole, world(), 0)[0].sum()

    compare(part, rand(4, 3), fused=["all_gather"], grads=False)


@check
def test_several_in_one_call(name):
    def gathered(x, y):
        a, b = funcol.all_gather_into_tensor_coalesced([x + 1, y], GROUP.WORLD)
        return torch.cat([a.flatten(), b.flatten()])

    def scattered(x, y):
        a, b = funcol.reduce_scatter_tensor_coalesced([x + 1, y], "sum", [0, 0], GROUP.WORLD)
        return torch.cat([a.flatten(), b.flatten()])

    def one_of_them(x, y):
        return funcol.all_gather_into_tensor_coalesced([x + 1, y], GROUP.WORLD)[1] * 2

    x, y = rand(2 * world(), 3), rand(world(), 5, seed=1)
    for function, op in ((gathered, "all_gather"), (scattered, "reduce_scatter"), (one_of_them, "all_gather")):
        (record,) = compare(function, x, y, fused=[op], grads=False).records
        assert record.collective.endswith("_coalesced"), str(record)


@check
def test_reductions_that_are_no_sums(name):
    """Behind a product, too: that is no product's sum."""
    if SHARED_GPUS:
        return  # the other half of the comparison is torch's own
    x, w = rand(2 * world(), 4), rand(4, 3)
    for op in ("max", "min"):
        compare(lambda x: scatter(x, 0, op), x, fused=["reduce_scatter"], grads=False)
        compare(lambda x: reduce(x, op) * 2, x, fused=["all_reduce"], grads=False)
        compare(lambda x, w: reduce(x @ w, op), x, w, fused=["all_reduce"], grads=False)


@check
def test_reasons_of_those_that_stay(name):
    if SHARED_GPUS:
        return  # what stays is torch's own, which has no backend for ranks that share a GPU
    x, big = rand(2 * world(), 4), rand(64 * world(), 257 * 8)
    for sums in (scatter, reduce):
        stays(lambda x: sums(x.double()).float(), x, reason="no sums of torch.float64")
    for function in (gather, scatter, exchange):
        stays(function, big, reason=f"are more than {_lone.SMALL_BYTES}")
        stays(function, x, reason="not enabled", groups=["other"])
    just = rand(_lone.SMALL_BYTES // 4 // world())
    compare(gather, just, fused=["all_gather"], grads=False)
    stays(gather, torch.cat([just, just[:1]]), reason="are more than")
    modes = {"bucket_all_gathers_fx": "all", "bucket_reduce_scatters_fx": "all"}
    with torch._inductor.config.patch(modes):
        for function in (gather, scatter):
            stays(function, x, reason="Inductor puts such collectives together")
    stays(
        lambda x: torch.view_as_real(gather(torch.view_as_complex(x.view(world(), 4, 2)))), x, reason="torch.complex64"
    )


@check
def test_exchanges_with_splits_stay(name):
    """One rank's graph has equal ones, but no other rank's: the part that a rank keeps has its own size."""
    if SHARED_GPUS:
        return
    splits = [2] * world()
    splits[rank()] += rank()

    def exchanged(x):
        return funcol.all_to_all_single(x, splits, splits, GROUP.WORLD) * 2

    stays(exchanged, rand(sum(splits), 3), reason="not known to be equal on all ranks")


@check
def test_work_that_a_collective_runs_beside(name):
    """A collective that is waited for behind a product stays torch's, which runs beside it."""
    if SHARED_GPUS:
        return

    def begun(x):
        return [
            C10D.all_gather_into_tensor(x, world(), name),
            C10D.reduce_scatter_tensor(x, "sum", world(), name),
        ]

    def beside_a_product(x):
        both, product = begun(x), x @ x.t()
        return torch.cat([*map(C10D.wait_tensor, both), product @ x])

    def beside_others(x):
        both, other = begun(x), torch.relu(x).t().contiguous() + 1
        return torch.cat([*map(C10D.wait_tensor, both), other.t()])

    x = rand(2 * world(), 4)
    stays(beside_a_product, x, reason="runs meanwhile")
    compare(beside_others, x, fused=["all_gather", "reduce_scatter"], grads=False)


@check
def test_collectives_that_write_an_output(name):
    """They are no functional ones, and stay."""
    graph = torch.fx.Graph()
    x, out = graph.placeholder("x"), graph.placeholder("out")
    node = graph.call_function(C10D.all_gather_into_tensor_out.default, (x, world(), name), {"out": out})
    wait = graph.call_function(C10D.wait_tensor.default, (node,))
    for one, rows in ((x, 2), (out, 2 * world()), (node, 2 * world()), (wait, 2 * world())):
        one.meta["val"] = torch.empty(rows, 3)
    graph.output(wait)
    rewrite = _rewrite.Rewrite(graph, lambda group: True)
    assert not rewrite.run(), rewrite.records
    (record,) = rewrite.records
    assert "writes its argument" in record.reason and record.group == name, str(record)


def lowered(function, *tensors, **options):
    """Compiled by Inductor, with the code."""
    with tandem.torch.compile_config(), torch.no_grad():
        torch._dynamo.reset()
        return run_and_get_code(torch.compile(function, fullgraph=True, **options), *tensors)


@check
def test_by_inductor(name):
    """Outputs are planned, and elements of types that Tandem has not travel as others."""
    for dtype in MOVED:
        x = some(2 * world(), 3, dtype=dtype)
        whole = of_all(x)
        wanted = torch.cat(whole), torch.cat(whole, 1), torch.cat([one.chunk(world())[rank()] for one in whole])
        results, (code,) = lowered(lambda x: (gather(x), gather(x, 1), exchange(x)), x)
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype and torch.equal(got.cpu(), want), (got, want)
        lines = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("#"))
        assert lines.count("tandem.all_gather.noted_out") == 2 and lines.count("tandem.all_to_all.noted_out") == 1, code
        assert "wait_tensor" not in lines, code


@check
def test_dynamic_shapes_compile_once(name):
    def function(x):
        return gather(x + 1, 1).relu(), scatter(x * 2), scatter(x, 1), exchange(x) * 2

    known = len(tandem.torch.explain_graph())
    with tandem.torch.compile_config(), torch.no_grad():
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True)
        for rows in (3, 2, 5, 4):
            x = rand(rows * world(), 2 * world())
            torch._dynamo.mark_dynamic(x, 0)
            for got, want in zip(compiled(x), function(x.cpu()), strict=True):
                near(got.cpu(), want)
    records = tandem.torch.explain_graph()[known:]
    fused = sorted(record.fused_into for record in records)
    assert fused == ["all_gather", "all_to_all", "reduce_scatter", "reduce_scatter"], [str(one) for one in records]


if __name__ == "__main__":
    main()
