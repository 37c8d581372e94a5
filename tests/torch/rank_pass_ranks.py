"""A rank that compiles what may differ from rank to rank: unequal shards, several types in one sum, and scales of fp8."""

import warnings

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from rank_pass import AG, AR, RS, Compiler, compare
from rank_pass_norms import by_torch, compared, operands
from reference_ops import near, rand, rank, world
from tandem.torch import _rewrite
from torch import nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

UNEQUAL = "ranks have unequal shards of a matrix"


class Layers(nn.Module):
    """Two pairs of layers: one whose features divide by the ranks, one whose may not."""

    def __init__(self, features):
        super().__init__()
        torch.manual_seed(5)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.wide, self.narrow = nn.Linear(8, features), nn.Linear(features, 8)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(self.down(torch.relu(self.up(x))))))


def trained(features, layout):
    """Records, after a comparison of results and gradients with eager mode."""
    torch._dynamo.reset()
    compiler, outcomes = Compiler(), []
    plan = {
        "up": ColwiseParallel(input_layouts=layout, use_local_output=False),
        "down": RowwiseParallel(output_layouts=layout, use_local_output=False),
        "wide": ColwiseParallel(input_layouts=layout, use_local_output=False),
        "narrow": RowwiseParallel(output_layouts=layout),
    }
    for device in ("cpu", DEVICE):
        mesh = DeviceMesh.from_group(dist.group.WORLD, device)
        model = parallelize_module(Layers(features).to(device), mesh, plan, src_data_rank=None)
        run = model if device == "cpu" and not outcomes else torch.compile(model, backend=compiler, fullgraph=True)
        x = rand(4, 8, same=isinstance(layout, Replicate)).to(device).requires_grad_()
        out = run(x)
        out.square().sum().backward()
        outcomes.append([out.detach(), x.grad, *(one.grad.to_local() for one in model.parameters())])
    for want, got in zip(*outcomes, strict=True):
        near(got, want)
    return compiler.records


@check
def test_unequal_shards_of_dtensors(name):
    """Their whole shapes say so on all ranks alike: each rank leaves these collectives, and fuses the others."""
    if SHARED_GPUS:
        return  # what stays is torch's own
    for layout, ops in ((Replicate(), [AR]), (Shard(0), [AG, RS])):
        whole = trained(8 * world(), layout)
        assert not [record for record in whole if UNEQUAL in record.reason], [str(record) for record in whole]
        for features in (8 * world() - 1, 2 * world() + 1):
            records = trained(features, layout)
            taken = [record.fused_into for record in records]
            assert all(op in taken for op in ops), [str(record) for record in records]
            assert any(UNEQUAL in record.reason for record in records), [str(record) for record in records]
            told = [None] * world()
            dist.all_gather_object(told, taken)
            assert told[1:] == told[:-1], told


@check
def test_unequal_shards_that_no_graph_shows(name):
    """Ranks meet at the first call with operands of other shapes: from then on all of them run what the program wrote, and say so
    once. Explicit calls raise, and other shapes have plans as before."""
    if SHARED_GPUS:
        return
    depth = 4 if rank() == 0 else 3

    def reduced(a, b):
        return funcol.all_reduce(a @ b, "sum", dist.group.WORLD)

    def gathered(a, b):
        return funcol.all_gather_tensor(a, 0, dist.group.WORLD) @ b

    tandem.torch.detach()
    a, b, even = rand(6, depth), rand(depth, 5, seed=1), (rand(6, 8), rand(8, 5, seed=1))
    wide = (rand(2, 8), rand(8, depth, seed=1))
    compare(reduced, *even, fused=[AR], grads=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for function, given, op in (
            (reduced, (a, b), AR),
            (reduced, (a, b), AR),
            (gathered, wide, AG),
            (reduced, even, AR),
        ):
            compare(function, *given, fused=[op], grads=False)
    told = [str(one.message) for one in told if issubclass(one.category, RuntimeWarning)]
    assert len(told) == (1 if rank() == 0 else 0), told  # the group's first rank speaks for all
    assert all("other shapes" in one and "shape" in one for one in told), told
    ops = torch.ops.tandem
    near(ops.matmul_all_reduce(*even, "sum", name), reduced(*even))
    try:
        ops.matmul_all_reduce(a, b, "sum", name)
        raise AssertionError("ranks had other shapes, and none has said so")
    except tandem.FieldMismatch as error:
        assert "shape" in str(error), error
    tandem.torch.detach()
    compare(reduced, *even, fused=[AR], grads=False)
    assert len(tandem.torch.attach().plans) == 1


@check
def test_sums_of_several_types(name):
    """A layer in bf16 and its adapter in fp32: the sum is of neither's type, or not of both."""
    x, w = rand(4, 8).bfloat16(), rand(8, 4, seed=1).bfloat16()
    a, b = rand(8, 2, seed=2), rand(2, 4, seed=3)

    def adapted(x, w, a, b):
        return funcol.all_reduce(x @ w + (x.float() @ a) @ b, "sum", dist.group.WORLD)

    def rounded(x, w, a, b):
        return funcol.all_reduce(x @ w + ((x.float() @ a) @ b).bfloat16(), "sum", dist.group.WORLD)

    for function, reason in ((adapted, "several types"), (rounded, "no matrix product")):
        (record,) = compare(function, x, w, a, b, fused=["all_reduce"], grads=False).records
        assert reason in record.reason, str(record)


@check
def test_residuals_and_weights_of_each_rank(name):
    """A norm behind a sum takes this rank's own residual, bias and weight."""
    x, a, b, residual, weight = operands(3, 4, 8)
    residual, weight, bias = rand(*residual.shape, seed=6), rand(8, seed=7), rand(8, seed=8)

    def plain(x, a, b, residual, weight, bias):
        h = residual + funcol.all_reduce(x, "sum", dist.group.WORLD)
        return h, by_torch(h, weight)

    def behind(x, a, b, residual, weight, bias):
        h = residual + (funcol.all_reduce(a @ b, "sum", dist.group.WORLD) + bias)
        return h, by_torch(h, weight)

    for function, op in ((plain, "all_reduce_rms_norm"), (behind, "matmul_all_reduce_rms_norm")):
        (record,) = compared(function, x, a, b, residual, weight, bias).records
        assert record.fused_into == op, str(record)


@check
def test_averages_of_integers(name):
    """torch's backends have no such averages everywhere, so the pass leaves them."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "avg", name))
    wait = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (node,))
    for one in (x, node, wait):
        one.meta["val"] = torch.empty(4, dtype=torch.int32)
    graph.output(wait)
    rewrite = _rewrite.Rewrite(graph, lambda group: True)
    assert not rewrite.run() and "averages torch.int32" in rewrite.records[0].reason, rewrite.records


@check
def test_scales_of_the_tensor_in_a_graph(name):
    """The graph multiplies all that is gathered by this rank's scale, and so does the op."""
    fp8, group = torch.float8_e4m3fn, dist.group.WORLD
    a, b = rand(4, 16).to(fp8), rand(16, 32, seed=1).to(fp8).t().contiguous().t()
    mine, columns = torch.tensor(0.5 + rank(), device=DEVICE), rand(1, 32, seed=2).abs() + 0.1

    def whole_of(a, dim):
        return funcol.all_gather_tensor(a.view(torch.uint8), dim, group).view(fp8)

    def product(a, b, mine, other):
        return torch._scaled_mm(whole_of(a, 0), b, mine, other, out_dtype=torch.float32)

    def along_k(a, b, mine, other):
        return torch._scaled_mm(whole_of(a, 1), b, mine, other, out_dtype=torch.float32)

    one, deep = torch.tensor(0.25, device=DEVICE), rand(16 * world(), 32, seed=1).to(fp8).t().contiguous().t()
    for function, right in ((product, b), (along_k, deep)):
        compare(function, a, right, mine, one, fused=["all_gather_scaled_matmul"], grads=False)
    # The CPU has no such product.
    compare(
        lambda a, b, mine, other: torch._scaled_mm(
            whole_of(a, 0), b, mine.expand(4 * world(), 1).contiguous(), other, out_dtype=torch.float32
        ),
        *(a, b, mine, columns),
        fused=["all_gather_scaled_matmul"],
        grads=False,
        eager=lambda a, b, mine, other: (whole_of(a, 0).float() * mine) @ (b.float() * other),
    )


if __name__ == "__main__":
    main()
