"""A rank that compiles programs as others write them: checkpointed blocks, products that symm_mem has fused already, and
collectives that the pass has no rule for."""

import torch
import torch.distributed as dist
from checks import DEVICE, check, main
from functorch.compile import default_partition, min_cut_rematerialization_partition
from rank_pass import AG, RS, compare
from reference_ops import OPS, near, rand, reference, same_gradients, world
from tandem.torch import _rewrite
from torch import nn
from torch.distributed import _functional_collectives as funcol


@check
def test_products_that_are_fused_by_symm_mem(name):
    """Ops of torch's own pass, or of the program itself, become Tandem's op."""
    ops, fp8, one = torch.ops.symm_mem, torch.float8_e4m3fn, torch.tensor(0.5, device=DEVICE)
    x, w = rand(2 * world(), 6), rand(6, 2 * world(), seed=1)
    for dim in (0, 1):
        shard, depth = rand(4, 6), 6 * (world() if dim == 1 else 1)
        v = rand(depth, 5, seed=2)
        compare(
            lambda x, v: (p := ops.fused_all_gather_matmul(x, [v, 2 * v], dim, name))[1][0] + p[1][1] + p[0].sum(),
            shard,
            v,
            fused=[AG],
            grads=False,
            eager=lambda x, v: (p := funcol.all_gather_tensor(x, dim, name)) @ v * 3 + p.sum(),
        )
        compare(
            lambda x, w: ops.fused_matmul_reduce_scatter(x, w, "avg", dim, name),
            x,
            w,
            fused=[RS],
            grads=False,
            eager=lambda x, w: funcol.reduce_scatter_tensor(x @ w, "sum", dim, name) / world(),
        )
    a, b = rand(2 * world(), 16).to(fp8), rand(16, 16, seed=1).to(fp8).t()
    for bias, fused in ((None, ["scaled_" + RS]), (rand(16, seed=3), [])):

        def scattered(a, b, s):
            return ops.fused_scaled_matmul_reduce_scatter(
                a, b, s, s, "sum", 0, 0, name, [2 * world(), 16], bias, None, torch.float32
            )

        graph = torch.fx.symbolic_trace(scattered).graph
        for node in graph.nodes:
            if node.target is ops.fused_scaled_matmul_reduce_scatter:
                node.target = ops.fused_scaled_matmul_reduce_scatter.default
        rewrite = _rewrite.Rewrite(graph, lambda group: True)
        assert rewrite.run() == bool(fused), rewrite.records
        (record,) = rewrite.records
        assert [record.fused_into] == (fused or [""]) and record.group == name, record
        if fused:
            got = torch.fx.GraphModule(nn.Module(), graph)(a, b, one)
            near(got, reference.reduce_scatter((a.float() @ b.float()) * 0.25, "sum", 0, name))


@check
def test_a_checkpointed_block(name):
    """Activation checkpointing: the backward makes again what it needs, in eager mode and compiled."""
    checkpoint = torch.utils.checkpoint.checkpoint

    def block(x, w, v):
        hidden = torch.relu(funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD) @ w)
        return funcol.reduce_scatter_tensor_autograd(hidden @ v, "sum", 0, dist.group.WORLD)

    def fused(x, w, v):
        _, (hidden,) = OPS.all_gather_matmul(x, [w], 0, name, return_A=False)
        return OPS.matmul_reduce_scatter(torch.relu(hidden), v, "sum", 0, name)

    tensors = rand(4, 6), rand(6, 5, seed=1), rand(5, 6, seed=2)
    for partition in (default_partition, min_cut_rematerialization_partition):
        compiler = compare(
            lambda x, w, v: checkpoint(block, x, w, v, use_reentrant=False),
            *tensors,
            fused=None,
            eager=block,
            partition=partition,
        )
        # torch 2.15 gathers again in the backward, 2.11 keeps what was gathered.
        assert compiler.fused() in ([AG, AG, RS, RS], [AG, AG, AG, RS, RS]), compiler.fused()
    same_gradients(
        lambda x, w, v: [checkpoint(fused, x, w, v, use_reentrant=False)], lambda x, w, v: [fused(x, w, v)], *tensors
    )
    ran = []
    handle = torch.autograd.graph.saved_tensors_hooks(lambda one: ran.append(one) or one, lambda one: one)
    with handle:
        checkpoint(fused, *(one.clone().requires_grad_() for one in tensors), use_reentrant=False).sum().backward()
    assert not any(one.shape == (4 * world(), 5) for one in ran), "the forward keeps what the backward makes again"


@check
def test_other_collectives_have_their_reason(name):
    compiler = compare(
        lambda x: funcol.broadcast(x, 0, dist.group.WORLD) * 2,
        rand(2 * world(), 3),
        fused=[],
        grads=False,
    )
    (record,) = compiler.records
    assert record.collective == "broadcast" and record.group == name and "no fused form" in record.reason, record


if __name__ == "__main__":
    main()
