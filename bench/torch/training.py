"""A training step of a Llama by FSDP2 and tensor parallelism, eager: Tandem behind install(), and the process group's own backend.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/training.py [--device cuda] [--model 8b] [--tp 2] [--json FILE]

The model is plain torch: blocks of a named size's widths whose products parallelize_module() shards over --tp ranks (the sequence,
too, with --sequence), and whose parameters fully_shard() shards over all others. A step is forward, backward and AdamW's, with a
learning rate of zero, so that all steps are equal. Nothing of the program knows Tandem.

The arms take turns in each round: the backend's collectives, Tandem's, the backend's again. Printed are milliseconds of a step, the
slowest rank's, median and quartiles over rounds; tokens per second of all ranks; the median ratio to the round's time of the
backend; and Tandem's calls a step. "again" is what the machine itself changed. The error is the largest of the gradients' relative
differences to the backend's, in the Frobenius norm. The exit status is 1 where it is above the bound.
"""

import argparse
import statistics
import sys
import time

import tandem.torch
import torch
import torch.distributed as dist
from arms import WIDTHS, begin, end, from_all_ranks, served_calls, write_json
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

ARMS = ("backend", "tandem", "backend, again")
BOUNDS = {torch.bfloat16: 5e-2, torch.float32: 1e-4}  # of an error; a lost sum makes it about 1


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.width = dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.width, bias=False) for _ in range(2))
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for one in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, dim, hidden, heads, kv_heads):
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention, self.feed_forward = Attention(dim, heads, kv_heads), FeedForward(dim, hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


def sharded(block, mesh, sequence):
    """The block, tensor-parallel over the mesh's second dimension and sharded over its first."""
    columns, rows = ColwiseParallel, RowwiseParallel
    plan = {f"attention.{name}": columns() for name in "qkv"} | {
        "feed_forward.gate": columns(),
        "feed_forward.up": columns(),
    }
    if not sequence:
        plan |= {"attention.out": rows(), "feed_forward.down": rows()}
    else:
        scattered = rows(output_layouts=Shard(1))
        gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {"attention.out": scattered, "feed_forward.down": scattered}
        plan |= {"attention": gathered, "feed_forward": gathered}
        plan |= {
            "attention_norm": SequenceParallel(use_local_output=True),
            "feed_forward_norm": SequenceParallel(use_local_output=True),
        }
    if mesh["tp"].size() > 1:
        parallelize_module(block, mesh["tp"], plan)
    return shared(block, mesh)


def shared(module, mesh):
    """The module, whose parameters the ranks of the mesh's first dimension share."""
    return fully_shard(module, mesh=mesh["dp"]) if mesh["dp"].size() > 1 else module


class Training:
    """The model with its optimizer and a batch of this rank's."""

    def __init__(self, given, mesh, dtype):
        torch.manual_seed(7)
        with torch.device(given.device):
            self.blocks = nn.Sequential(*(Block(*WIDTHS[given.model]) for _ in range(given.layers))).to(dtype)
            dim, length = WIDTHS[given.model][0], given.length
            generator = torch.Generator(given.device).manual_seed(1 + mesh["dp"].get_local_rank())
            x = torch.randn(given.batch, length, dim, generator=generator, dtype=torch.float32).to(dtype)
        if given.sequence and given.tp > 1:
            x = x.chunk(given.tp, dim=1)[mesh["tp"].get_local_rank()].contiguous()
        self.x = x
        for block in self.blocks:
            sharded(block, mesh, given.sequence)
        shared(self.blocks, mesh)
        groups = {False: [], True: []}
        for parameter in self.blocks.parameters():
            groups[isinstance(parameter, DTensor)].append(parameter)  # no list of an optimizer has both
        self.optimizer = torch.optim.AdamW([{"params": one} for one in groups.values() if one], lr=0.0, foreach=True)

    def step(self):
        self.optimizer.zero_grad()
        self.blocks(self.x).float().square().mean().backward()
        self.optimizer.step()

    def gradients(self):
        found = (parameter.grad for parameter in self.blocks.parameters())
        return [(one.to_local() if isinstance(one, DTensor) else one).float().clone() for one in found]


def switch(arm):
    if arm == "tandem":
        tandem.torch.install()
    else:
        tandem.torch.uninstall()


def milliseconds(training, steps):
    """The slowest rank's time of a step, all of which begin together."""
    dist.barrier()
    if training.x.is_cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        training.step()
    if training.x.is_cuda:
        torch.cuda.synchronize()
    return max(from_all_ranks(1e3 * (time.perf_counter() - begun))) / steps


def error(found, wanted):
    """The largest relative difference of a gradient, of the worst rank."""
    differences = [((a - b).norm() / b.norm().clamp_min(1e-30)).item() for a, b in zip(found, wanted, strict=True)]
    return max(from_all_ranks(max(differences)))


def measure(training, given):
    """{arm: milliseconds of its rounds}, Tandem's calls a step, and the error."""
    taken, gradients, served = {arm: [] for arm in ARMS}, {}, 0
    for number in range(-1, given.rounds):
        for arm in ARMS:
            switch(arm)
            before = served_calls()
            if number < 0:  # makes plans and the optimizer's state
                for _ in range(2):
                    training.step()
                gradients[arm] = training.gradients()
            else:
                taken[arm].append(milliseconds(training, given.steps))
            if arm == "tandem":
                served = served_calls() - before
    switch("backend")
    return taken, served / given.steps, error(gradients["tandem"], gradients["backend"])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="tiny", choices=WIDTHS, help="whose widths")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tp", type=int, default=0, help="ranks that share each product; default: all")
    parser.add_argument("--sequence", action="store_true", help="shards the sequence between products, too")
    parser.add_argument("--batch", type=int, default=1, help="sequences of each data-parallel rank")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=5, help="steps of a round")
    parser.add_argument("--json", help="a file that gets all figures")
    return parser.parse_args()


def main():
    given = parse()
    begin(given.device)
    world = dist.get_world_size()
    given.tp = given.tp or world
    if world % given.tp:
        sys.exit(f"{world} ranks are no multiple of --tp {given.tp}")
    mesh = init_device_mesh(given.device, (world // given.tp, given.tp), mesh_dim_names=("dp", "tp"))
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    taken, served, differs = measure(Training(given, mesh, dtype), given)
    tokens = given.batch * given.length * (world // given.tp)
    if dist.get_rank() == 0:
        print(
            f"Llama {given.model}, {given.layers} layers, {world // given.tp} x FSDP2, {given.tp} x TP, {tokens} tokens a step"
        )
        for arm, ms in taken.items():
            low, middle, high = statistics.quantiles(ms, n=4, method="inclusive") if len(ms) > 1 else ms * 3
            ratio = statistics.median(own / theirs for own, theirs in zip(ms, taken["backend"], strict=True))
            print(
                f"{arm:14} {middle:9.2f} ms [{low:.2f}, {high:.2f}] {1e3 * tokens / middle:12.0f} tokens/s {ratio:6.3f}"
            )
        print(f"{served:g} calls of Tandem a step; error {differs:.1e}", flush=True)
    write_json(given.json, {"tp": given.tp, "ms": taken, "served_calls": served, "error": differs})
    end()
    return 0 if differs <= BOUNDS[dtype] else 1


if __name__ == "__main__":
    sys.exit(main())
