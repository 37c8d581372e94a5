"""Trains a small Llama-style model (RMSNorm, rotary positions, grouped-query attention, SwiGLU) on text, tensor-parallel with the
sequence sharded between the products, through Tandem.

    torchrun --nproc-per-node 2 examples/torch/train_llama.py --check

--mode eager uses tandem.torch.nn; --mode compiled uses parallelize_module and torch.compile with Tandem's pass. --check trains the
whole model in each process too, and ends with 1 if a loss differs by more than the type's bound.

--tensor-parallel N makes groups of N consecutive ranks that share the model through Tandem. Between these groups the batch is
split, and the gradients are summed, also between nodes: in eager mode by DistributedDataParallel, which takes no DTensors:

    torchrun --nnodes 2 --nproc-per-node 2 … examples/torch/train_llama.py --tensor-parallel 2
"""

import argparse
import os
import sys
import time

import tandem.torch
import torch
import torch.distributed as dist
from tandem.torch.nn import ColumnParallelLinears, RowParallelLinear
from torch import nn
from torch.nn import functional

# Largest relative difference of a loss. Sums of other ranks' parts round otherwise. In bf16 each of 20 steps rounds a
# weight by up to 2^-9, or 0.2 %: 4 % if all went one way; losses have differed by 0.5 %.
BOUNDS = {"float32": 1e-4, "bfloat16": 3e-2}
VOCABULARY = 256  # bytes


def rotate(x, positions):
    """Rotary positions on [batch, heads, sequence, width]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * (10000.0 ** (-torch.arange(half, device=x.device) / half))[None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention: fewer heads of keys and values than of queries."""

    def __init__(self, args):
        super().__init__()
        self.width = args.dim // args.heads
        self.wq = nn.Linear(args.dim, args.heads * self.width, bias=False)
        self.wk = nn.Linear(args.dim, args.kv_heads * self.width, bias=False)
        self.wv = nn.Linear(args.dim, args.kv_heads * self.width, bias=False)
        self.wo = nn.Linear(args.heads * self.width, args.dim, bias=False)

    def attend(self, q, k, v):
        """[batch, sequence, heads * width] of each -> [batch, sequence, heads * width]."""
        q, k, v = (x.unflatten(-1, (-1, self.width)).transpose(1, 2) for x in (q, k, v))
        positions = torch.arange(q.shape[2], device=q.device, dtype=torch.float32)
        q, k = rotate(q, positions), rotate(k, positions)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        return self.wo(self.attend(self.wq(x), self.wk(x), self.wv(x)))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, args):
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.hidden, bias=False)
        self.w3 = nn.Linear(args.dim, args.hidden, bias=False)
        self.w2 = nn.Linear(args.hidden, args.dim, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(args.dim), Attention(args)
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(args.dim), FeedForward(args)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Tokens [batch, sequence] -> logits. With a sharded sequence between the blocks each rank has its part of both."""

    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, args.dim)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(args.dim), nn.Linear(args.dim, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ShardedAttention(nn.Module):
    """This rank's heads: gather and three products in one op, product and scatter in another."""

    def __init__(self, whole, group):
        super().__init__()
        self.whole = [whole]  # for attend(); not a submodule, whose parameters would be trained
        self.qkv = ColumnParallelLinears([whole.wq, whole.wk, whole.wv], group)
        self.out = RowParallelLinear(whole.wo, group)

    def forward(self, x):
        return self.out(self.whole[0].attend(*self.qkv(x)))


class ShardedFeedForward(nn.Module):
    def __init__(self, whole, group):
        super().__init__()
        self.up, self.down = ColumnParallelLinears([whole.w1, whole.w3], group), RowParallelLinear(whole.w2, group)

    def forward(self, x):
        gate, up = self.up(x)
        return self.down(functional.silu(gate) * up)


def shard_eager(model, group):
    """Puts Tandem's modules in place of the linear layers."""
    for block in model.blocks:
        block.attention = ShardedAttention(block.attention, group)
        block.feed_forward = ShardedFeedForward(block.feed_forward, group)
    return model


def shard_dtensor(model, mesh):
    """torch's own sequence-parallel plan; the pass finds its collectives when the model is compiled. The weights are equal on all
    ranks, so that none are sent."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": gathered,
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward_norm": SequenceParallel(),
                "feed_forward": gathered,
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w3": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
            src_data_rank=None,
        )
    return model


def replicated(model):
    """Parameters that every rank has whole and as plain tensors: each rank's gradient is from its own tokens alone."""
    from torch.distributed.tensor import DTensor

    sharded = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, (ColumnParallelLinears, RowParallelLinear))
        for parameter in module.parameters()
    }
    return [p for p in model.parameters() if id(p) not in sharded and not isinstance(p, DTensor)]


def sum_over_replicas(model, data_group):
    """Sums every parameter's gradient over the replicas."""
    from torch.distributed.tensor import DTensor

    for parameter in model.parameters():
        gradient = parameter.grad
        dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=data_group)


def loss_of(model, tokens, targets, count):
    """This rank's part of the mean loss: the sum over ranks is the loss."""
    logits = model(tokens).float()
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), reduction="sum") / count


def batches(args, data):
    """Inputs and targets [batch, sequence], the same on all ranks."""
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        starts = torch.randint(len(data) - args.sequence - 1, (args.batch,), generator=generator).tolist()
        yield (
            torch.stack([data[s : s + args.sequence] for s in starts]),
            torch.stack([data[s + 1 : s + 1 + args.sequence] for s in starts]),
        )


def groups(tensor_parallel, data_backend):
    """This rank's groups: of the ranks that share its model, and of the ranks that have its shard in other replicas."""
    world = dist.get_world_size()
    if world % tensor_parallel:
        sys.exit(f"{world} ranks do not divide by --tensor-parallel {tensor_parallel}")
    inside = [list(range(at, at + tensor_parallel)) for at in range(0, world, tensor_parallel)]
    across = [list(range(at, world, tensor_parallel)) for at in range(tensor_parallel)]
    # Every rank makes all of them; each gets its own.
    return tuple(
        dist.new_subgroups_by_enumeration(lists, backend=backend)[0]
        for lists, backend in ((inside, None), (across, data_backend))
    )


def parse():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--check", action="store_true", help="compare every loss with a training in one process")
    parser.add_argument("--text", default=os.path.join(here, "../../LICENSE"))
    parser.add_argument("--dtype", choices=sorted(BOUNDS), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--process-group", help="torch's backend; default: nccl for CUDA, else gloo")
    parser.add_argument("--data-process-group", help="the same between replicas; default: that of --process-group")
    parser.add_argument("--tensor-parallel", type=int, help="ranks that share a model; default: all")
    for name, value in (
        ("steps", 20),
        ("batch", 4),
        ("sequence", 64),
        ("layers", 2),
        ("dim", 64),
        ("hidden", 128),
        ("heads", 8),
        ("kv-heads", 4),
        ("seed", 1),
    ):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--rate", type=float, default=3e-3)
    return parser.parse_args()


def main():
    args = parse()
    device = torch.device(args.device)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group(args.process_group or ("nccl" if args.device == "cuda" else "gloo"))
    group, data_group = groups(args.tensor_parallel or dist.get_world_size(), args.data_process_group)
    rank, world, replicas = group.rank(), group.size(), data_group.size()
    attached, first = tandem.torch.attach(group), dist.get_rank() == 0
    if first:
        served = attached.group or "torch.distributed alone: " + attached.reason
        print(f"{replicas} x {world} ranks: {served}", flush=True)
    for name, parts in (("kv_heads", world), ("hidden", world), ("sequence", world), ("batch", replicas)):
        if getattr(args, name) % parts:
            sys.exit(f"--{name.replace('_', '-')} does not divide by {parts}")

    dtype = getattr(torch, args.dtype)
    torch.manual_seed(args.seed)
    reference = Llama(args).to(device, dtype)
    model = Llama(args).to(device, dtype)
    model.load_state_dict(reference.state_dict())
    averaged = args.mode == "eager" and replicas > 1
    if args.mode == "eager":
        forward = model = shard_eager(model, group)
        if averaged:
            forward = nn.parallel.DistributedDataParallel(model, process_group=data_group)
    else:
        from torch.distributed.device_mesh import DeviceMesh

        model = shard_dtensor(model, DeviceMesh.from_group(group, device.type))
        forward = torch.compile(model, fullgraph=True)
    # Some parameters are DTensors and some are not; PyTorch's multi-tensor update refuses such a mixture.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate * 100, foreach=False)
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=args.rate * 100, foreach=False)

    with open(args.text, "rb") as file:
        data = torch.tensor(list(file.read()), device=device)
    count, worst, begun = args.batch * args.sequence, 0.0, time.monotonic()
    with tandem.torch.compile_config([group]) if args.mode == "compiled" else torch.enable_grad():
        for step, (inputs, targets) in enumerate(batches(args, data)):
            mine, wanted = (
                x.chunk(replicas)[data_group.rank()].chunk(world, dim=1)[rank].contiguous() for x in (inputs, targets)
            )
            optimizer.zero_grad()
            part = loss_of(forward, mine, wanted, count)
            (part * replicas if averaged else part).backward()  # DistributedDataParallel averages
            for parameter in replicated(model):
                parameter.grad = torch.ops.tandem.all_reduce(parameter.grad, "sum", group.group_name)
            if replicas > 1 and not averaged:
                sum_over_replicas(model, data_group)
            optimizer.step()
            whole_loss = torch.ops.tandem.all_reduce(part.detach(), "sum", group.group_name)
            if replicas > 1:
                dist.all_reduce(whole_loss, group=data_group)
            loss = whole_loss.item()
            line = f"step {step}: loss {loss:.5f}"
            if args.check:
                reference_optimizer.zero_grad()
                whole = loss_of(reference, inputs, targets, count)
                whole.backward()
                reference_optimizer.step()
                worst = max(worst, abs(loss - whole.item()) / whole.item())
                line += f", in one process {whole.item():.5f}"
            if first:
                print(line, flush=True)
    tandem.torch.synchronize()
    seconds = time.monotonic() - begun
    if first:
        print(f"{args.steps * count / seconds:.0f} tokens/s, compilation and checks included", flush=True)
        if args.mode == "compiled":
            for record in tandem.torch.explain_graph():
                print("  ", record)
        if args.check:
            print(f"largest relative difference of a loss: {worst:.1e} (bound {BOUNDS[args.dtype]:.0e})", flush=True)
    dist.barrier()
    tandem.torch.detach(group)
    sys.stdout.flush()
    os._exit(1 if args.check and not worst <= BOUNDS[args.dtype] else 0)  # torch's own end aborts at times


if __name__ == "__main__":
    main()
