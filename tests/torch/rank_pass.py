"""A rank that compiles functions with the pass, without Inductor's code generation: each rewritten graph is run as it is, forward
and backward, and compared with eager mode."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from functorch.compile import default_partition
from reference_ops import near, rand, reference, world
from tandem.torch import _pass, _rewrite
from tandem.torch._graphs import c10d
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module


class Compiler:
    """A backend for torch.compile that ends where the pass has run. `records` has what it said of each collective, `given` and
    `made` the targets of the graphs that it got and made."""

    def __init__(self, partition=default_partition, **options):
        self.take, self.records, self.left, self.partition = _pass.TandemPass(**options), [], [], partition
        self.given, self.made = [], []

    def __call__(self, graph, example):
        return aot_autograd(
            fw_compiler=self.compile,
            bw_compiler=self.compile,
            decompositions=select_decomp_table(),
            partition_fn=self.partition,
        )(graph, example)

    def compile(self, module, example):
        view_to_reshape(module)
        self.given += [node.target for node in module.graph.nodes]
        rewrite = _rewrite.Rewrite(module.graph, lambda group: self.take.groups is None or group in self.take.groups)
        rewrite.run()
        module.graph.lint()
        module.recompile()
        self.records += rewrite.records
        self.made += [node.target for node in module.graph.nodes]
        self.left += [
            node.target
            for node in module.graph.nodes
            if node.target
            in (c10d.all_gather_into_tensor.default, c10d.reduce_scatter_tensor.default, c10d.all_reduce.default)
        ]
        from functorch.compile import make_boxed_func

        return make_boxed_func(module.forward)

    def fused(self):
        return sorted(record.fused_into for record in self.records if record.fused_into)

    def reasons(self):
        return [record.reason for record in self.records if not record.fused_into]


def compare(function, *tensors, fused, left=0, dynamic=None, grads=True, eager=None, strides=True, **options):
    """The function compiled gives what it gives in eager mode, also gradients, and these ops are in its graphs; None: any. strides:
    results lie alike, too."""
    torch._dynamo.reset()
    compiler = Compiler(**options)
    outcomes = []
    for run, device in (  # eager mode's own collectives run on the CPU, by gloo
        (eager or function, "cpu"),
        (torch.compile(function, backend=compiler, fullgraph=True, dynamic=dynamic), DEVICE),
    ):
        leaves = [
            tensor.detach().to(device, copy=True).requires_grad_(grads and tensor.dtype == torch.float32)
            for tensor in tensors
        ]
        output = run(*leaves)
        if grads:
            (
                output * torch.linspace(0.5, 1.5, output.numel(), device=output.device).view(output.shape)
            ).sum().backward()
        outcomes.append([output.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for want, got in zip(*outcomes, strict=True):
        near(got, want)
    lie = [one[0].stride() for one in outcomes]
    assert not strides or lie[0] == lie[1], lie
    assert fused is None or compiler.fused() == sorted(fused), [str(record) for record in compiler.records]
    assert left is None or len(compiler.left) == left, [str(record) for record in compiler.records]
    return compiler


AG, RS, AR = "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"


@check
def test_gather_then_product(name):
    w = rand(6, 5, seed=1)
    for shape, dims in (((4, 6), (0,)), ((2, 4, 6), (0, 1)), ((1, 4, 6), (0, 1))):
        for dim in dims:
            compare(
                lambda x, w: funcol.all_gather_tensor(x, dim, dist.group.WORLD) @ w,
                rand(*shape),
                w,
                fused=[AG],
                grads=False,
            )
    # Along the columns: a product whose rows of B are all ranks'. Under compare() a graph that torch ends at the gather fails.
    compare(
        lambda x, w: funcol.all_gather_tensor(x, 1, dist.group.WORLD) @ w,
        rand(4, 6),
        rand(6 * world(), 5),
        fused=[AG],
        grads=False,
    )


@check
def test_gather_for_several_products(name):
    def block(x, q, k, v):
        whole = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
        return (whole @ q) * (whole @ k) + torch.relu(whole) @ v

    compiler = compare(
        block, rand(4, 6), rand(6, 5, seed=1), rand(6, 5, seed=2), rand(6, 5, seed=3), fused=[AG], grads=False
    )
    assert "2 product(s), and returns" in compiler.records[0].reason, compiler.records


@check
def test_product_then_scatter(name):
    w = rand(6, 2 * world(), seed=1)
    for shape, dims in (((2 * world(), 6), (0, 1)), ((world(), 2 * world(), 6), (0, 1, 2)), ((1, world(), 6), (1, 2))):
        for dim in dims:
            compare(
                lambda x, w: funcol.reduce_scatter_tensor(x @ w, "sum", dim, dist.group.WORLD),
                rand(*shape),
                w,
                fused=[RS],
                grads=False,
            )


@check
def test_sum_of_products(name):
    x, y, w, v = rand(2 * world(), 6), rand(2 * world(), 4, seed=1), rand(6, 5, seed=2), rand(4, 5, seed=3)
    compare(
        lambda x, y, w, v: funcol.reduce_scatter_tensor(x @ w + y @ v + x @ w, "sum", 0, dist.group.WORLD),
        x,
        y,
        w,
        v,
        fused=[RS],
        grads=False,
    )
    compare(
        lambda x, y, w, v: funcol.all_reduce(x @ w + y @ v, "sum", dist.group.WORLD),
        x,
        y,
        w,
        v,
        fused=[AR],
        grads=False,
    )
    wide = x.view(2, world(), 6), y.view(2, world(), 4)
    compare(
        lambda x, y, w, v: funcol.reduce_scatter_tensor(x @ w + y @ v, "sum", 1, dist.group.WORLD),
        *wide,
        w,
        v,
        fused=[RS],
        grads=False,
    )
    compiler = compare(
        lambda x, y, w, v: funcol.reduce_scatter_tensor(x @ w + y, "sum", 0, dist.group.WORLD),
        x,
        rand(1, 5),
        w,
        v,
        fused=["reduce_scatter"],
        grads=False,
    )
    assert "no matrix product" in compiler.records[0].reason, compiler.records


@check
def test_product_then_reduce(name):
    for shape in ((1, 6), (4, 6), (2, 3, 6)):
        compare(
            lambda x, w: funcol.all_reduce(x @ w, "sum", dist.group.WORLD),
            rand(*shape),
            rand(6, 5, seed=1),
            fused=[AR],
            grads=False,
        )


@check
def test_fp8_products(name):
    one = torch.tensor(0.5, device=DEVICE)
    a, b = rand(2 * world(), 16).to(torch.float8_e4m3fn), rand(16, 16, seed=1).to(torch.float8_e4m3fn).t()

    def scattered(a, b, s):
        return funcol.reduce_scatter_tensor(
            torch._scaled_mm(a, b, s, s, out_dtype=torch.float32), "sum", 0, dist.group.WORLD
        )

    def reduced(a, b, s):
        return funcol.all_reduce(torch._scaled_mm(a, b, s, s, out_dtype=torch.float32), "sum", dist.group.WORLD)

    compare(scattered, a, b, one, fused=["scaled_" + RS], grads=False)
    compare(reduced, a, b, one, fused=["scaled_" + AR], grads=False)


@check
def test_fp8_products_behind_a_gather(name):
    fp8, one, group = torch.float8_e4m3fn, torch.tensor(0.5, device=DEVICE), dist.group.WORLD
    b, c = rand(16, 16, seed=1).to(fp8).t(), rand(32, 16, seed=2).to(fp8).t()
    scaled = "all_gather_scaled_matmul"

    def whole_of(a, dim=0):
        return funcol.all_gather_tensor(a.view(torch.uint8), dim, group).view(fp8)

    def product(a, b, sa, sb):
        return torch._scaled_mm(a.flatten(0, -2), b, sa, sb, out_dtype=torch.float32)

    compare(lambda a, b, s: product(whole_of(a), b, s, s), rand(4, 16).to(fp8), b, one, fused=[scaled], grads=False)
    compare(
        lambda a, b, s: product(whole_of(a, 1), b, s, s), rand(2, 4, 16).to(fp8), b, one, fused=[scaled], grads=False
    )
    compiler = compare(
        lambda a, b, c, s: product(p := whole_of(a), b, s, s) @ product(p, c, s, s)[:16],
        rand(8, 16).to(fp8),
        b,
        c,
        one,
        fused=[scaled],
        grads=False,
    )
    assert "2 product(s)" in compiler.records[0].reason, compiler.records

    # A scale for each row: gathered along with the rows, or there on every rank. The CPU has no kernel for them.
    def by_rows(whole, b, sa, sb):
        return (whole.float() * sa) @ (b.float() * sb)

    rows, columns = rand(4, 1).abs() + 0.1, rand(1, 16, seed=5).abs() + 0.1
    compare(
        lambda a, b, sa, sb: product(whole_of(a), b, funcol.all_gather_tensor(sa, 0, group), sb),
        rand(4, 16).to(fp8),
        b,
        rows,
        columns,
        fused=[scaled, scaled],
        grads=False,
        eager=lambda a, b, sa, sb: by_rows(whole_of(a), b, funcol.all_gather_tensor(sa, 0, group), sb),
    )
    compare(
        lambda a, b, sa, sb: product(whole_of(a), b, sa, sb),
        rand(4, 16).to(fp8),
        b,
        rand(4 * world(), 1, seed=6, same=True).abs() + 0.1,
        columns,
        fused=[scaled],
        grads=False,
        eager=lambda a, b, sa, sb: by_rows(whole_of(a), b, sa, sb),
    )


@check
def test_fp8_products_that_are_scattered_inside(name):
    one, group = torch.tensor(0.5, device=DEVICE), dist.group.WORLD
    a, b = rand(2 * 2 * world(), 16).to(torch.float8_e4m3fn), rand(16, 16, seed=1).to(torch.float8_e4m3fn).t()

    def scattered(a, b, s):
        product = torch._scaled_mm(a, b, s, s, out_dtype=torch.float32).view(2, 2 * world(), 16)
        return funcol.reduce_scatter_tensor(product, "sum", 1, group)

    compare(scattered, a, b, one, fused=["scaled_" + RS], grads=False)


@check
def test_scaled_mm_v2(name):
    """torch 2.11 does not trace torch.nn.functional.scaled_mm: the graph is made by hand."""
    fp8, one = torch.float8_e4m3fn, torch.tensor([0.5], device=DEVICE)
    a, b = rand(2 * world(), 16).to(fp8), rand(16, 16, seed=1).to(fp8).t()

    def graph_of(recipe):
        graph = torch.fx.Graph()
        nodes = []
        for label, value in (("a", a), ("b", b), ("s", one)):
            nodes.append(graph.placeholder(label))
            nodes[-1].meta["val"] = value
        args = (*nodes[:2], [nodes[2]], [recipe], [0], [nodes[2]], [recipe], [0], None, torch.bfloat16)
        product = graph.call_function(torch.ops.aten._scaled_mm_v2.default, args)
        product.meta["val"] = a.new_empty((2 * world(), 16), dtype=torch.bfloat16)
        scatter = graph.call_function(c10d.reduce_scatter_tensor.default, (product, "sum", world(), name))
        wait = graph.call_function(c10d.wait_tensor.default, (scatter,))
        for node in (scatter, wait):
            node.meta["val"] = a.new_empty((2, 16), dtype=torch.bfloat16)
        graph.output(wait)
        return graph

    graph = graph_of(0)
    rewrite = _rewrite.Rewrite(graph, lambda group: True)
    assert rewrite.run() and rewrite.records[0].fused_into == "scaled_" + RS, rewrite.records
    got = torch.fx.GraphModule(nn.Module(), graph)(a, b, one)
    near(got, reference.reduce_scatter((a.float() @ b.float()) * 0.25, "sum", 0, name).bfloat16())
    blocks = _rewrite.Rewrite(graph_of(4), lambda group: True)  # ScalingType.BlockWise1x128
    assert blocks.run() and "not of the tensor" in blocks.records[0].reason, blocks.records
    assert blocks.records[0].fused_into == "reduce_scatter", blocks.records


@check
def test_every_collective_that_stays_has_its_reason(name):
    if SHARED_GPUS:
        return  # what stays is torch's own, which has no backend for ranks that share a GPU
    group = dist.group.WORLD
    x, w = rand(512, 512), rand(512, 512, seed=1)  # too many bytes to be lowered alone
    for function, given, reason in (
        (lambda x, w: funcol.all_gather_tensor(x, 0, group) + 1, (x, w), "no matrix product"),
        (lambda x, w: w[:, : 64 * world()] @ funcol.all_gather_tensor(x[:64], 0, group), (x, w), "no matrix product"),
        (lambda x, w: funcol.reduce_scatter_tensor(x + w, "sum", 0, group), (x, w), "no matrix product"),
        (lambda x, w: funcol.reduce_scatter_tensor(p := x @ w, "sum", 0, group) + p.sum(), (x, w), "other users"),
        (lambda x, w: funcol.reduce_scatter_tensor(torch.relu(x @ w), "sum", 0, group), (x, w), "no matrix product"),
        (
            lambda x, w: funcol.reduce_scatter_tensor(torch.addmm(w[0], x, w), "sum", 0, group),
            (x, w),
            "bias of its own",
        ),
        (lambda x, w: funcol.all_reduce(x * 2, "sum", group), (x, w), "no matrix product"),
        (lambda x, w: (g := funcol.all_gather_tensor(x, 0, group)) @ g.t(), (x, w), "depends on the gathered"),
    ):
        compiler = compare(function, *given, fused=[], left=1, grads=False)
        assert reason in compiler.reasons()[0], compiler.reasons()
    compiler = compare(
        lambda x, w: funcol.all_reduce(x @ w, "sum", group), x, w, fused=[], left=1, grads=False, groups=["other"]
    )
    assert "not enabled" in compiler.reasons()[0]


@check
def test_small_all_reduces(name):
    compiler = compare(
        lambda x: funcol.all_reduce(x * 2, "sum", dist.group.WORLD), rand(4, 6), fused=["all_reduce"], grads=False
    )
    assert "bytes" in compiler.records[0].reason


@check
def test_symbolic_rows(name):
    def function(x, w, v):
        hidden = torch.relu(funcol.all_gather_tensor(x, 0, dist.group.WORLD) @ w)
        return funcol.reduce_scatter_tensor(hidden @ v, "sum", 0, dist.group.WORLD)

    compare(function, rand(4, 6), rand(6, 5, seed=1), rand(5, 6, seed=2), fused=[AG, RS], grads=False, dynamic=True)


class Mlp(nn.Module):
    def __init__(self, bias):
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16, bias=bias), nn.Linear(16, 8, bias=bias)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(self.norm(x))))


def dtensor(plan, bias, shape):
    """One step of a DTensor MLP, eager and compiled: the same loss and gradients. The compiler, to ask what it fused."""
    torch._dynamo.reset()
    compiler, outcomes = Compiler(), []
    for compiled in (False, True):
        device = DEVICE if compiled else "cpu"
        mesh = DeviceMesh.from_group(dist.group.WORLD, device)
        model = parallelize_module(Mlp(bias).to(device), mesh, plan, src_data_rank=None)
        run = torch.compile(model, backend=compiler, fullgraph=True) if compiled else model
        x = rand(*shape, same="norm" not in plan).to(device).requires_grad_()
        out = run(x)
        (out * torch.linspace(0.5, 1.5, out.numel(), device=out.device).view(out.shape)).sum().backward()
        grads = [parameter.grad for parameter in model.parameters()]
        outcomes.append([out.detach(), x.grad, *(g.to_local() if hasattr(g, "to_local") else g for g in grads)])
    for want, got in zip(*outcomes, strict=True):
        near(got, want)
    return compiler


@check
def test_dtensor_sequence_parallel(name):
    for bias in (False, True):
        for dim, shape in ((1, (4, 2, 8)), (1, (1, 2, 8)), (0, (4, 8)), (0, (2, 3, 8))):
            plan = {
                "norm": SequenceParallel(sequence_dim=dim, use_local_output=True),
                "up": ColwiseParallel(input_layouts=Shard(dim)),
                "down": RowwiseParallel(output_layouts=Shard(dim)),
            }
            compiler = dtensor(plan, bias, shape)
            fused = compiler.fused()
            # Forward and backward: each has a gather for a product and a product for a scatter.
            assert fused.count(AG) >= 2 and fused.count(RS) >= 2, [str(record) for record in compiler.records]
            assert not [
                r for r in compiler.records if not r.fused_into and r.collective in ("all_gather", "reduce_scatter")
            ]


@check
def test_dtensor_tensor_parallel(name):
    for bias in (False, True):
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        compiler = dtensor(plan, bias, (2, 3, 8))
        assert compiler.fused().count(AR) == 2, [str(record) for record in compiler.records]


@check
def test_public_entry(name):
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    tandem.torch.TandemPass()(module.graph)
    before = torch._inductor.config.post_grad_custom_post_pass
    with tandem.torch.compile_config(groups=[dist.group.WORLD]) as made:
        assert torch._inductor.config.post_grad_custom_post_pass is made and made.groups == (name,)
        with tandem.torch.compile_config() as outer:
            assert outer.previous is made and made.digest() in outer.uuid() or made.uuid() in outer.uuid()
    assert torch._inductor.config.post_grad_custom_post_pass is before
    assert (
        tandem.torch.TandemPass(["a"]).uuid()
        != tandem.torch.TandemPass(["b"]).uuid()
        != tandem.torch.TandemPass().uuid()
    )


@check
def test_a_plain_call_serves_what_is_compiled_later_too(name):
    before = torch._inductor.config.post_grad_custom_post_pass

    def function(x, w, times=0):
        y = torch.ops._c10d_functional.all_reduce(x @ w, "sum", name)
        return torch.ops._c10d_functional.wait_tensor(y) + times

    def products():
        return [record.graph for record in tandem.torch.explain_graph() if record.fused_into == "matmul_all_reduce"]

    x, w = rand(6, 8), rand(8, 16)
    known = len(products())
    padded = torch._inductor.config.shape_padding
    setting = tandem.torch.compile_config()
    assert padded and not torch._inductor.config.shape_padding, "each rank would time paddings by itself"
    try:
        with torch.no_grad():
            compiled = torch.compile(function, fullgraph=True, dynamic=False)
            for times in (0, 1):  # the second is compiled anew, some time after the first
                compiled(x, w, times)
                known += 1
                assert len(products()) == known, (times, products())
            compiled(rand(10, 8), w, 1)  # the same graph in another shape: one record more
            known += 1
            assert len(products()) == known, products()
    finally:
        setting.disable()
    with torch.no_grad():  # one function alone
        options = {"post_grad_custom_post_pass": tandem.torch.TandemPass()}
        torch.compile(lambda x, w: function(x, w, 2), options=options)(x, w)
    assert len(products()) == known + 1, products()
    other = tandem.torch.compile_config()
    setting.disable()  # a second time: the other one stays
    assert torch._inductor.config.post_grad_custom_post_pass is not before
    other.disable()
    assert torch._inductor.config.post_grad_custom_post_pass is before
    assert torch._inductor.config.shape_padding == padded


if __name__ == "__main__":
    main()
