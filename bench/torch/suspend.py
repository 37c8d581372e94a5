"""What suspend() and resume() of a process group take, and that a decode goes on behind them with the same bytes.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/suspend.py --device cuda --model 8b [--checkpoint] [--json FILE]

A compiled Llama of plain torch (decoder.py), whose sums the pass has fused, decodes a chain of steps: each step's result is the next
one's input. On GPUs the step is one CUDA graph. The group sleeps and wakes up several times: without symmetric tensors, and with
one of --mib MiB, whose contents are dropped and kept. Printed are milliseconds of each call, the slowest rank's, median and worst;
and on GPUs the memory that is free asleep and awake. Asleep, no rank has memory of the pool mapped, and on GPUs all ranks' segments
are free. --checkpoint lets the driver checkpoint and restore all ranks in between
(checkpoint.py). --cycles counts further turns, behind which no memory and no descriptor may be lost.

The chain is decoded anew behind each kind of turn. The exit status is 1 where a byte differs, a tensor has another address, kept
contents are lost, memory stays asleep, or a checkpoint fails. The process group is gloo's: the driver restores no process that has NCCL's mappings.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import tandem.torch
import torch
import torch.distributed as dist
from arms import WIDTHS, Replayed, agreed, begin, compiled_apart, end, from_all_ranks, fusing, write_json
from decode import fused_ops, say
from decoder import Decoder, Shape, Shards, Source, added_and_normed
from torch.distributed import _functional_collectives as functional

CHECKPOINT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoint.py")


class Chain:
    """A decode of several steps; decoded() makes it from its beginning."""

    def __init__(self, source, batch, device):
        shape = source.shape
        self.shards = Shards(source, batch, dist.get_rank(), dist.get_world_size())
        self.first, self.steps = shape.context // 4, shape.context // 2
        self.shards.keep(list(range(self.first, self.first + self.steps)))
        self.rows = source.inputs(batch, 0)
        self.x, self.position = self.rows.clone(), torch.tensor([self.first], device=device)
        join = added_and_normed(lambda x: functional.all_reduce(x, "sum", dist.group.WORLD))
        self.step = compiled_apart(Decoder(self.shards, batch, join))
        with torch.no_grad(), fusing(tandem.torch.compile_config(), lambda: fused_ops().total()):
            for _ in range(3):
                self.step(self.x, self.position)
        if device == "cuda":
            self.step = Replayed(self.step, self.x, self.position)

    @torch.no_grad()
    def decoded(self):
        self.shards.restore()
        self.x.copy_(self.rows)
        for place in range(self.steps):
            self.position.fill_(self.first + place)
            self.x.copy_(self.step(self.x, self.position))
        return self.x.clone()


def slowest(call):
    """Milliseconds of a call that all ranks begin together."""
    dist.barrier()
    begun = time.perf_counter()
    call()
    return max(from_all_ranks(1e3 * (time.perf_counter() - begun)))


def free_mib():
    return torch.cuda.mem_get_info()[0] >> 20 if torch.cuda.is_initialized() else None


def pool_mappings():
    """How many mappings of the pools' memory this process has. The kernel knows those of the host backend."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:tandem-gpu" in line for line in maps)


def segments_mib(name):
    """MiB of the group's segments on this rank's GPU: all ranks' that share it."""
    group = tandem.torch.attach(name).group
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, (group.gpu_uuid.partition("#")[0], group.used_memory().segment_bytes))
    return sum(size for gpu, size in ranks if gpu == ranks[dist.get_rank()][0]) >> 20


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def turns(name, count, keep=False):
    """Milliseconds of each suspend() and resume(), and what is free and mapped asleep and awake."""
    suspended, resumed, stays = [], [], 0
    for _ in range(count):
        suspended.append(slowest(lambda: tandem.torch.suspend(name, keep=keep)))
        asleep, stays = free_mib(), max(stays, pool_mappings())
        resumed.append(slowest(lambda: tandem.torch.resume(name)))
    return {
        "suspend_ms": suspended,
        "resume_ms": resumed,
        "free_asleep": asleep,
        "free_awake": free_mib(),
        "mapped_asleep": stays,
        "mapped_awake": pool_mappings(),
        "segments_mib": segments_mib(name),
    }


def checkpointed(name):
    """The group sleeps while the driver checkpoints all ranks at once."""
    tandem.torch.suspend(name)
    dist.barrier()
    told = subprocess.run([sys.executable, CHECKPOINT, str(os.getpid())], capture_output=True, text=True, timeout=120)
    lines = (told.stdout + told.stderr).strip().splitlines()
    dist.barrier()
    if not (failed := agreed("" if told.returncode == 0 else lines[-1] if lines else "no word")):
        tandem.torch.resume(name)
    return failed, lines


class Measured:
    """The rows of a run, and what was found wrong."""

    def __init__(self, chain):
        self.chain, self.wanted, self.rows, self.wrong = chain, chain.decoded(), [], []

    def check(self, what, right):
        if reason := agreed("" if right else what):
            self.wrong.append(reason)

    def add(self, what, **figures):
        self.check(f"{what}: other bytes", torch.equal(self.chain.decoded(), self.wanted))
        if "mapped_asleep" in figures:
            self.check(f"{what}: {figures['mapped_asleep']} mappings of the pool stay", figures["mapped_asleep"] == 0)
        if figures.get("free_awake") is not None:
            risen = figures["free_asleep"] - figures["free_awake"]
            self.check(f"{what}: {risen} MiB more are free asleep", risen >= figures["segments_mib"])
        self.rows.append({"what": what, **figures})
        words = [
            f"{key.removesuffix('_ms')} {statistics.median(figures[key]):.1f}, worst {max(figures[key]):.1f} ms"
            for key in ("suspend_ms", "resume_ms")
            if key in figures
        ]
        if figures.get("free_awake") is not None:
            words.append(
                f"free {figures['free_asleep']} MiB asleep, {figures['free_awake']} awake, segments {figures['segments_mib']}"
            )
        say(f"{what}:", "; ".join([*words, *figures.get("lines", [])]) or "done")


def of_tensors(measured, name, given):
    """Turns with a symmetric tensor."""
    tensor = tandem.torch.empty(given.mib << 18)
    tandem.torch.rendezvous(tensor)
    place = tensor.data_ptr()
    for keep in (False, True):
        tensor.fill_(dist.get_rank() + 1.0)
        measured.add(f"{given.mib} MiB, {'kept' if keep else 'dropped'}", **turns(name, given.repeats, keep))
        measured.check("another address", tensor.data_ptr() == place)
        expected = dist.get_rank() + 1.0 if keep else 0.0
        measured.check(f"contents with keep={keep}", bool((tensor == expected).all()))


def cycles(measured, name, count):
    before = descriptors(), free_mib()
    took = turns(name, count)
    measured.add(f"{count} cycles", **took)
    lost = descriptors() - before[0]
    measured.check(f"{lost} descriptors more", lost <= 0)
    if before[1] is not None:
        measured.check(f"{before[1] - free_mib()} MiB less are free", before[1] - free_mib() < 8)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="tiny", choices=WIDTHS, help="whose widths")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4, help="sequences")
    parser.add_argument("--context", type=int, default=64, help="entries of the cache, half of which are decoded")
    parser.add_argument("--mib", type=int, default=1024, help="of the symmetric tensor on each rank")
    parser.add_argument("--repeats", type=int, default=11, help="turns of a kind")
    parser.add_argument("--cycles", type=int, default=0, help="further turns")
    parser.add_argument("--checkpoint", action="store_true", help="lets the driver checkpoint the ranks")
    parser.add_argument("--json", help="a file that gets all rows")
    given = parser.parse_args()
    if given.checkpoint and given.device != "cuda":
        parser.error("--checkpoint is of GPUs")
    return given


def main():
    given = parse()
    begin(given.device, with_nccl=False)
    tandem.torch.configure(on_unavailable="error")
    tandem.torch.attach(dist.group.WORLD)
    name = dist.group.WORLD.group_name
    dim, hidden, heads, kv_heads = WIDTHS[given.model]
    shape = Shape(dim, hidden, heads, kv_heads, given.layers, given.context, 0)
    source = Source(shape, given.device, torch.bfloat16 if given.device == "cuda" else torch.float32)
    measured = Measured(Chain(source, given.batch, given.device))
    say(f"Llama {given.model}, {given.layers} layers, {dist.get_world_size()} ranks; torch {torch.__version__}")
    measured.add("no symmetric tensor", **turns(name, given.repeats))
    if given.checkpoint:
        failed, lines = checkpointed(name)
        measured.check(f"checkpoint: {failed}", not failed)
        if failed:
            say(f"checkpoint: {failed}")
            return finished(measured, given)
        measured.add("checkpoint", lines=lines)
    of_tensors(measured, name, given)
    if given.cycles:
        cycles(measured, name, given.cycles)
    return finished(measured, given)


def finished(measured, given):
    for reason in measured.wrong:
        say(f"WRONG: {reason}")
    write_json(given.json, {"rows": measured.rows, "wrong": measured.wrong})
    end()
    return 1 if measured.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
