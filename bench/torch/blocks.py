"""One block of Llama 8B and 70B, forward and backward, tensor-parallel with a sharded sequence: Tandem beside what PyTorch has.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node N bench/torch/blocks.py [--models 8b,70b] [--sequence 4096] [--json FILE]

Arms: `tandem` is tandem.torch.nn in eager mode, and the pass of compile_config() compiled; `async-tp` is torch.ops.symm_mem.fused_*
in eager mode, and Inductor's _micro_pipeline_tp compiled; `nccl+cublas` is DTensor's collectives and products, eager and compiled.
All arms have the same weights and must give the same output within the type's bound. Printed are milliseconds, medians over
rounds of the slowest rank; arms alternate within a round. An arm that cannot run here prints the reason.

--inference ROWS measures a block's forward of so many sequences' next tokens, with an embedding before it and a norm behind
it. The sequence is not sharded: all-reduces follow wo and w2, and norms follow these. GPUs run it as a captured graph.

--device cpu measures nothing of interest: it is for a trial, with --scale 64 or so.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import sys
import time
import types

import tandem.torch
import torch
import torch.distributed as dist
from arms import (
    WIDTHS,
    Replayed,
    agreed,
    begin,
    compiled_apart,
    from_all_ranks,
    fusing,
    in_short,
    kernels,
)
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass

BOUND = 3e-2  # of an output, relative norm, bfloat16
WARM_UP = 3
REPLAYS = 50  # timed together, since one forward of few rows is short


def load_example():
    """The model and the ways to shard it are the example's."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "train_llama", os.path.join(here, "../../examples/torch/train_llama.py")
    )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # Dynamo looks it up
    spec.loader.exec_module(module)
    return module


llama = load_example()


class _AsyncGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, *weights):
        ctx.group = group
        whole, outputs = torch.ops.symm_mem.fused_all_gather_matmul(x, [w.t() for w in weights], 1, group)
        ctx.save_for_backward(whole, *weights)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        whole, *weights = ctx.saved_tensors
        together = torch.cat(grads, dim=-1)
        grad_x = torch.ops.symm_mem.fused_matmul_reduce_scatter(together, torch.cat(weights), "sum", 1, ctx.group)
        rows = whole.flatten(0, 1)
        return grad_x, None, *(grad.flatten(0, 1).t() @ rows for grad in grads)


class _AsyncScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.group = group
        ctx.save_for_backward(x, weight)
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight.t(), "sum", 1, group)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        whole, (grad_x,) = torch.ops.symm_mem.fused_all_gather_matmul(grad.contiguous(), [weight], 1, ctx.group)
        return grad_x, whole.flatten(0, 1).t() @ x.flatten(0, 1), None


class AsyncAttention(llama.ShardedAttention):
    """The same modules by symm_mem's fused ops, as torchtitan wraps them."""

    def forward(self, x):
        qkv = _AsyncGather.apply(x, self.qkv.group_name, *self.qkv.weights)
        return _AsyncScatter.apply(self.whole[0].attend(*qkv), self.out.weight, self.out.group_name)


class AsyncFeedForward(llama.ShardedFeedForward):
    """As AsyncAttention."""

    def forward(self, x):
        gate, up = _AsyncGather.apply(x, self.up.group_name, *self.up.weights)
        return _AsyncScatter.apply(nn.functional.silu(gate) * up, self.down.weight, self.down.group_name)


class Decoder(nn.Module):
    """A block whose residual is its own, and whose sums both have a norm behind them."""

    def __init__(self, args):
        super().__init__()
        self.embedding, self.block, self.norm = nn.Embedding(64, args.dim), llama.Block(args), nn.RMSNorm(args.dim)

    def forward(self, tokens):
        return self.norm(self.block(self.embedding(tokens)))


def shard_whole_rows(model, mesh):
    """torch's own tensor-parallel plan of a decoder: every rank has all rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
    plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
    plan |= {"attention.wo": RowwiseParallel(), "feed_forward.w2": RowwiseParallel()}
    parallelize_module(model.block, mesh, plan, src_data_rank=None)
    return model


class Compiled(nn.Module):
    """A compiled block, whose parameters are still at hand."""

    def __init__(self, block):
        super().__init__()
        self.block, self.compiled = block, compiled_apart(block)

    def forward(self, x):
        return self.compiled(x)


def holder(block):
    """What the example's functions shard: a model of one block."""
    return types.SimpleNamespace(blocks=[block])


def enabled_for_async_tp(group):
    import torch.distributed._symmetric_memory as symm_mem

    symm_mem.enable_symm_mem_for_group(group.group_name)


class Fused(CustomGraphPass):
    """Changes nothing, and counts what torch's own pass has fused in the graphs that are compiled."""

    count = 0

    def __call__(self, graph):
        Fused.count += sum("symm_mem.fused_" in str(node.target) for node in graph.nodes)

    def uuid(self):
        return None  # a graph from a cache would not be counted


class Arms:
    """Makes each arm: a module, and the context in which it is called the first time."""

    def __init__(self, block, group, device):
        self.block, self.group, self.device = block, group, device
        self.infers = isinstance(block, Decoder)

    def copy(self):
        made = type(self.block)(self.block.args).to(self.device, torch.bfloat16)
        made.load_state_dict(self.block.state_dict())
        return made

    def tandem_eager(self):
        return llama.shard_eager(holder(self.copy()), self.group).blocks[0], contextlib.nullcontext()

    def async_tp_eager(self):
        enabled_for_async_tp(self.group)
        block = self.copy()
        block.attention = AsyncAttention(block.attention, self.group)
        block.feed_forward = AsyncFeedForward(block.feed_forward, self.group)
        return block, contextlib.nullcontext()

    def dtensor(self):
        mesh = torch.distributed.device_mesh.DeviceMesh.from_group(self.group, self.device.type)
        if self.infers:
            return shard_whole_rows(self.copy(), mesh)
        return llama.shard_dtensor(holder(self.copy()), mesh).blocks[0]

    def nccl_eager(self):
        return self.dtensor(), contextlib.nullcontext()

    def nccl_compiled(self):
        return Compiled(self.dtensor()), contextlib.nullcontext()

    def tandem_compiled(self):
        fused = lambda: sum(bool(record.fused_into) for record in tandem.torch.explain_graph())
        return Compiled(self.dtensor()), fusing(tandem.torch.compile_config([self.group]), fused)

    def async_tp_compiled(self):
        enabled_for_async_tp(self.group)
        from torch._inductor import config

        settings = config.patch(_micro_pipeline_tp=True, post_grad_custom_post_pass=Fused())
        return Compiled(self.dtensor()), fusing(settings, lambda: Fused.count)

    def all(self):
        sharded = {"tandem eager": self.tandem_eager, "async-tp eager": self.async_tp_eager}  # the sequence
        return ({} if self.infers else sharded) | {
            "tandem compiled": self.tandem_compiled,
            "async-tp compiled": self.async_tp_compiled,
            "nccl+cublas eager": self.nccl_eager,
            "nccl+cublas compiled": self.nccl_compiled,
        }


def step(module, x):
    """Forward and backward, of tokens forward alone; the output."""
    if not x.is_floating_point():
        with torch.no_grad():
            return module(x)
    leaf = x.detach().requires_grad_()
    out = module(leaf)
    out.square().mean().backward()
    for parameter in module.parameters():
        parameter.grad = None
    return out.detach()


def milliseconds(module, x):
    """The slowest rank's time of a step."""
    steps = REPLAYS if isinstance(module, Replayed) else 1
    dist.barrier()
    if x.is_cuda:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            step(module, x)
        end.record()
        end.synchronize()
        took = begin.elapsed_time(end)
    else:
        begun = time.perf_counter()
        step(module, x)
        took = 1000 * (time.perf_counter() - begun)
    return max(from_all_ranks(took)) / steps


def graphs_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def measure(name, args, group, device):
    """{arm: milliseconds or the reason against it} of a model's block."""
    dim, hidden, heads, kv_heads = WIDTHS[name]
    scale = args.scale
    shape = types.SimpleNamespace(dim=dim // scale, hidden=hidden // scale, heads=heads, kv_heads=kv_heads)
    torch.manual_seed(1)
    block = (Decoder if args.inference else llama.Block)(shape).to(device, torch.bfloat16)
    block.args, generator = shape, torch.Generator().manual_seed(2)
    if args.inference:
        mine = torch.randint(64, (args.inference, 1), generator=generator).to(device)
        with torch.no_grad():
            wanted = block(mine)
    else:
        x = torch.randn(1, args.sequence, shape.dim, generator=generator).to(device, torch.bfloat16)
        with torch.no_grad():
            wanted = block(x).chunk(group.size(), dim=1)[group.rank()]
        mine = x.chunk(group.size(), dim=1)[group.rank()].contiguous()
    running, results = {}, {}
    for arm, make in Arms(block, group, device).all().items():
        if args.arms and arm not in args.arms.split(","):
            continue
        error = ""
        try:
            module, context = make()
            with context:
                for _ in range(WARM_UP):
                    out = step(module, mine)
            if args.inference and mine.is_cuda:
                module = Replayed(module, mine)
                out = step(module, mine)
            out = out.to_local() if hasattr(out, "to_local") else out
            norm = ((out - wanted).float().norm() / wanted.float().norm()).item()
            if not norm <= BOUND:
                error = f"its output differs by {norm:.1e}"
        except Exception as failure:  # an arm that cannot run here: its reason is the result
            error = in_short(failure)
        told = agreed(error)
        if told:
            results[arm] = told
        else:
            running[arm] = module
    compiled = graphs_compiled()
    rounds = {arm: [] for arm in running}
    for _ in range(args.rounds):
        for arm, module in running.items():
            rounds[arm].append(milliseconds(module, mine))
    if graphs_compiled() != compiled:
        raise RuntimeError("an arm was compiled anew, outside its context")
    if args.profile:
        for arm, module in running.items():
            rows = kernels(lambda: step(module, mine), mine.is_cuda)
            if group.rank() == 0:
                print(f"{name} {arm}, µs and calls a step by kernel:", *rows, sep="\n", flush=True)
    return results | {arm: statistics.median(times) for arm, times in rounds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="8b,70b")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--inference", type=int, default=0, metavar="ROWS", help="measures a forward, see above")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--arms", default="", help="names, by commas; default: all")
    parser.add_argument("--scale", type=int, default=1, help="divides the model's widths")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--profile", action="store_true", help="the kernels of each arm, too, and Tandem's plans")
    parser.add_argument("--json", help="a file that gets a line of JSON for each model and arm")
    args = parser.parse_args()
    begin(args.device)
    device = torch.device("cuda", torch.cuda.current_device()) if args.device == "cuda" else torch.device("cpu")
    group, rank = dist.group.WORLD, dist.get_rank()
    attached = tandem.torch.attach(group, on_unavailable="error")
    tables = {}
    for name in args.models.split(","):
        tables[name] = measure(name, args, group, device)
    if args.profile and rank == 0:
        print(f"torch's own pass: {Fused.count} ops", *tandem.torch.explain_graph(), sep="\n")
        print(*attached.plans.infos(), sep="\n", flush=True)
    if rank == 0:
        rows = {"inference": args.inference} if args.inference else {"sequence": args.sequence}
        shown = " ".join(f"{what} {count}" for what, count in rows.items())
        print(f"{attached.group}, torch {torch.__version__}, {shown}, {args.rounds} rounds, ms")
        for name, results in tables.items():
            for arm, result in results.items():
                shown = result if isinstance(result, str) else f"{result:10.3f}"
                print(f"{name:4} {arm:22} {shown}")
                if args.json:
                    line = {"benchmark": "blocks", "world": group.size(), "model": name, "arm": arm}
                    line |= {"failed": result} if isinstance(result, str) else {"ms": result}
                    with open(args.json, "a") as file:
                        file.write(json.dumps(line | rows | {"scale": args.scale}) + "\n")
    dist.barrier()
    tandem.torch.detach(group)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
