"""A rank that compiles functions with torch.ops.tandem in them."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, check, configured, main
from reference_ops import OPS, near, rand, reference, same_gradients, world
from tandem.torch import _native
from tandem.torch._private import register_out_variant
from torch._inductor.utils import run_and_get_code
from torch.distributed import _functional_collectives as funcol


@check
def test_compiled(name):
    a, b, c = rand(2 * world(), 6), rand(6, 4, seed=1), rand(4, 6, seed=2)

    def block(a, b, c):
        _, (hidden,) = OPS.all_gather_matmul(a, [b], 0, name, return_A=False)
        return [OPS.matmul_reduce_scatter(torch.nn.functional.silu(hidden), c, "sum", 0, name)]

    compiled = torch.compile(block, fullgraph=True)
    same_gradients(lambda *given: compiled(*given), lambda *given: block(*given), a, b, c)
    # Dynamic rows, through one graph.
    longer = rand(4 * world(), 6)
    near(compiled(longer, b, c)[0], block(longer, b, c)[0])


@check
def test_outputs_of_ops_are_planned(name):
    """Also of those that a program calls itself, where Inductor knows of overloads that write."""
    x = rand(4, 6)
    with torch.no_grad():
        compiled = torch.compile(lambda x: torch.relu(OPS.all_reduce(x + 1, "sum", name)), fullgraph=True)
        got, (code,) = run_and_get_code(compiled, x)
    near(got, torch.relu(reference.all_reduce(x + 1, "sum", name)))
    assert ("tandem.all_reduce.out(" in code) == (register_out_variant is not None), code


@check
def test_a_bias_stays_where_it_is(name):
    """Inductor hands tensors on before other arguments where it plans an output; a bias is behind these."""
    a, b, bias = rand(2 * world(), 6), rand(6, 4, seed=1), rand(4, seed=2, same=True)

    def block(a, b, bias):
        return OPS.matmul_reduce_scatter(a, b, "sum", 0, name, bias), OPS.matmul_all_reduce(a, b, "sum", name, bias)

    with torch.no_grad():
        for got, want in zip(torch.compile(block, fullgraph=True)(a, b, bias), block(a, b, bias)):
            near(got, want)


@check
def test_outputs_of_fp8_products_are_planned(name):
    fp8, one, group = torch.float8_e4m3fn, torch.tensor(0.5, device=DEVICE), dist.group.WORLD
    a, b = rand(16, 16).to(fp8), rand(16 * world(), 16, seed=1).to(fp8).t()
    c = rand(16, 16 * world(), seed=2).to(fp8).t()

    def block(a, b, c, s):
        whole = funcol.all_gather_tensor(a.view(torch.uint8), 0, group).view(fp8)
        hidden = torch.relu(torch._scaled_mm(whole, b, s, s, out_dtype=torch.bfloat16))
        product = torch._scaled_mm(hidden.to(fp8), c, s, s, out_dtype=torch.bfloat16)
        return funcol.reduce_scatter_tensor(product, "sum", 0, group)

    hidden = torch.relu((reference.all_gather(a.float(), 0, name) @ b.float() * 0.25).bfloat16()).to(fp8)
    wanted = reference.reduce_scatter(hidden.float() @ c.float() * 0.25, "sum", 0, name).bfloat16()
    with tandem.torch.compile_config(), torch.no_grad():
        got, (code,) = run_and_get_code(torch.compile(block, fullgraph=True), a, b, c, one)
    near(got, wanted)
    code = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("#"))
    for op in ("all_gather_scaled_matmul", "scaled_matmul_reduce_scatter"):
        assert code.count(f"tandem.{op}.noted_out") == 1 and f"tandem.{op}.noted(" not in code, code
    fused = [record.fused_into for record in tandem.torch.explain_graph()]
    assert sorted(fused) == ["all_gather_scaled_matmul", "scaled_matmul_reduce_scatter"], fused


@check
def test_one_graph_of_ever_other_rows_meets_once(name):
    """Products that the pass has fused: no compilation, no meeting and no Python for a number of rows that was never seen."""
    group = dist.group.WORLD

    def layer(x, up, down, out):
        hidden = torch.relu(funcol.all_gather_tensor(x, 0, group) @ up)
        return funcol.reduce_scatter_tensor(hidden @ down, "sum", 0, group), funcol.all_reduce(
            hidden @ out, "sum", group
        )

    up, down, out = rand(6, 4, seed=1), rand(4, 6, seed=2), rand(4, 5, seed=3)
    with configured(name, placement="client"), tandem.torch.compile_config(), torch.no_grad():
        torch._dynamo.reset()
        plans, known, frames = tandem.torch.attach(name).plans, len(tandem.torch.explain_graph()), []

        def compile_counted(graph, inputs):
            frames.append(graph)
            return torch._inductor.compile(graph, inputs)

        compiled = torch.compile(layer, backend=compile_counted, fullgraph=True)
        for step, rows in enumerate((8, 3, 1 + world(), 17, 64, 5, 2)):
            x = rand(rows, 6, seed=step)
            torch._dynamo.mark_dynamic(x, 0)
            if step == 2:
                made, counts, once = plans._made, _native.counts(), len(frames)
            for got, want in zip(compiled(x, up, down, out), layer(x, up, down, out), strict=True):
                near(got, want)
        assert (plans._made, len(frames)) == (made, once) == (made, 1), (plans._made, made, frames)
        if _native.kernels is not None:  # three ops of five calls
            assert _native.counts().launched == counts.launched + 3 * 5, _native.counts().launched - counts.launched
    records = sorted(record.fused_into for record in tandem.torch.explain_graph()[known:])
    assert records == ["all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"], records


if __name__ == "__main__":
    main()
