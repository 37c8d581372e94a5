"""A whole decode step of a tensor-parallel Llama: Tandem, the process group's own all-reduce, and PyTorch's one-shot kernel.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/decode.py --device cuda --model 8b --layers 16 [--json FILE]

The model is plain torch (decoder.py): a named size's widths, random weights, a static cache. The vocabulary is left out unless
--vocabulary gives each rank a part of a head. A step takes the batch's rows through all layers at one position.

Arms, compiled and replayed as one CUDA graph: `tandem` has the pass of compile_config(); `nccl` and `one-shot` have the same
model, without the pass. Arms in eager mode: `tandem eager` calls torch.ops.tandem; `tandem installed` is `nccl eager` behind
install(); `one-shot eager` copies to symmetric memory. --capture-eager replays these as graphs, too. An arm that cannot run here
prints the reason: PyTorch compiles `one-shot` for the first batch of a process alone. With --device cpu, a trial without figures of
interest, nothing is captured and gloo is in nccl's place.

The arms take turns in each round, and the first comes a second time, as ", again": what the machine itself changed. Printed are
microseconds of a step, the slowest rank's, median and quartiles over rounds; tokens per second of all sequences; and the median
ratio to the round's time of the best rival of the same kind. The error is the Frobenius norm of the difference to the whole model
in fp32, relative to that result, of the worst rank and of two steps: one before the first round, and one behind the last, of
other rows at another position. An arm whose error is above the bound is called wrong, and the exit status is 1.
"""

import argparse
import ast
import collections
import contextlib
import math
import os
import statistics
import sys
import time

import tandem.torch
import torch
import torch.distributed as dist
from arms import (
    WIDTHS,
    Replayed,
    agreed,
    begin,
    compiled_apart,
    end,
    from_all_ranks,
    fusing,
    in_short,
    kernels,
    ranks_share_gpus,
    served_calls,
    write_json,
)
from decoder import EPSILON, Decoder, Shape, Shards, Source, added_and_normed, reference, relative_error
from torch.distributed import _functional_collectives as functional

BOUNDS = {torch.bfloat16: 5e-2, torch.float32: 1e-4}  # of an error; a lost sum makes it about 1
WARM_UP = 3
AGAIN = ", again"


class CannotRun(Exception):
    """An arm's reason for not running here."""


def fused_ops():
    """{op of Tandem: collectives of this process's graphs that the pass has fused into it}."""
    return collections.Counter(record.fused_into for record in tandem.torch.explain_graph() if record.fused_into)


def reduced_in_place(x):
    dist.all_reduce(x)
    return x


class Arms:
    """Makes each arm: the function of a step, and the context in which it is called the first time."""

    def __init__(self, shards, batch, device):
        self.shards, self.batch, self.device, self.name = shards, batch, device, dist.group.WORLD.group_name
        self.backend = "nccl" if device == "cuda" else "gloo"

    def all(self):
        """{arm: its maker}. The rivals' names do not begin with "tandem", and those in eager mode have no graph of their own."""
        return {
            "tandem": self.tandem,
            self.backend: self.compiled_backend,
            "one-shot": self.one_shot,
            "tandem eager": self.tandem_eager,
            "tandem installed": self.tandem_installed,
            f"{self.backend} eager": self.eager_backend,
            "one-shot eager": self.one_shot_eager,
        }

    def decoder(self, reduce):
        return Decoder(self.shards, self.batch, added_and_normed(reduce))

    def functional(self):
        """The compiled decoder whose sums are functional collectives."""
        return compiled_apart(self.decoder(lambda x: functional.all_reduce(x, "sum", dist.group.WORLD)))

    def needs_backend(self):
        if self.device == "cuda" and ranks_share_gpus():
            raise CannotRun("NCCL refuses ranks that share a GPU")

    def needs_symmetric_memory(self):
        if self.device != "cuda":
            raise CannotRun("PyTorch's symmetric memory is of GPUs")
        import torch.distributed._symmetric_memory as symmetric

        symmetric.enable_symm_mem_for_group(self.name)
        return symmetric

    def tandem(self):
        pass_alone = tandem.torch.compile_config([self.name])
        return self.functional(), fusing(pass_alone, lambda: fused_ops().total())

    def compiled_backend(self):
        self.needs_backend()
        return self.functional(), contextlib.nullcontext()

    def one_shot(self):
        self.needs_symmetric_memory()
        one_shot = torch.ops.symm_mem.one_shot_all_reduce
        return compiled_apart(self.decoder(lambda x: one_shot(x, "sum", self.name))), contextlib.nullcontext()

    def tandem_eager(self):
        op = torch.ops.tandem.matmul_all_reduce_rms_norm

        def join(a, weight, residual, norm):
            return op(a, weight.t(), residual, norm, EPSILON, self.name), residual

        return Decoder(self.shards, self.batch, join, copies=True), contextlib.nullcontext()

    def tandem_installed(self):
        if tandem.torch.report().unavailable:
            raise CannotRun(tandem.torch.report().unavailable)
        return self.decoder(reduced_in_place), fusing(contextlib.nullcontext(), served_calls)

    def eager_backend(self):
        self.needs_backend()
        return self.decoder(reduced_in_place), contextlib.nullcontext()

    def one_shot_eager(self):
        shape = (self.batch, self.shards.shape.dim)
        shared = self.needs_symmetric_memory().empty(*shape, device=self.device, dtype=self.shards.norm.dtype)
        self.needs_symmetric_memory().rendezvous(shared, self.name)
        one_shot = torch.ops.symm_mem.one_shot_all_reduce_copy
        return self.decoder(lambda x: one_shot(shared, x, "sum", self.name)), contextlib.nullcontext()


@contextlib.contextmanager
def running(arm):
    """Without gradients, and with Tandem behind the eager collectives of its arm alone. A graph keeps what was captured."""
    if arm.removesuffix(AGAIN) == "tandem installed":
        tandem.torch.install()
    try:
        with torch.no_grad():
            yield
    finally:
        tandem.torch.uninstall()


class Step:
    """A batch's inputs, and its two steps: rows, position and result in fp32. Captured graphs read the inputs."""

    def __init__(self, steps, wanted, batch):
        self.steps = [(rows[:batch], position) for rows, position in steps]
        self.wanted = [result[:batch] for result in wanted]
        self.inputs = [one.clone() for one in self.steps[0]]

    def choose(self, number):
        for one, value in zip(self.inputs, self.steps[number], strict=True):
            one.copy_(value)

    def error(self, number, arm, run, shards):
        """The worst rank's error of a step, taken from the cache as it was."""
        self.choose(number)
        shards.restore()
        with running(arm):
            error = relative_error(run(*self.inputs), self.wanted[number])
        return max(from_all_ranks(error if math.isfinite(error) else math.inf))


def prepare(arm, make, step, shards, captures):
    """(the arm's function, its error, the reason against the arm). Collective."""
    run, error, reason = None, math.nan, ""
    try:
        run, context = make()
        with running(arm):
            with context:
                for _ in range(WARM_UP):
                    run(*step.inputs)
            if captures:
                run = Replayed(run, *step.inputs)
    except Exception as failure:  # an arm that cannot run here: its reason is the result
        reason = str(failure) if isinstance(failure, CannotRun) else in_short(failure)
    reason = agreed(reason)
    if not reason:
        error = step.error(0, arm, run, shards)
    return run, error, reason


def microseconds(arm, run, step, steps):
    """The slowest rank's time of a step. The one before the first makes the ranks begin together."""
    dist.barrier()
    with running(arm):
        run(*step.inputs)
        if step.inputs[0].is_cuda:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            for _ in range(steps):
                run(*step.inputs)
            ended.record()
            ended.synchronize()
            took = 1e3 * begun.elapsed_time(ended)
        else:
            start = time.perf_counter()
            for _ in range(steps):
                run(*step.inputs)
            took = 1e6 * (time.perf_counter() - start)
    return max(from_all_ranks(took)) / steps


def rounds(arms, step, given):
    """{arm: microseconds of each round}, the first arm a second time."""
    turns = [*arms, *(one + AGAIN for one in list(arms)[:1])]
    taken = {arm: [] for arm in turns}
    for _ in range(given.repeats):
        for arm in turns:
            taken[arm].append(microseconds(arm, arms[arm.removesuffix(AGAIN)], step, given.steps))
    return taken


def is_eager(arm):
    return "eager" in arm or "installed" in arm


def ratio(arm, taken, wrong):
    """The median over rounds of the arm's time by the best rival's, of the right ones that are eager or compiled as it is; without
    one None."""
    rivals = [
        one
        for one in taken
        if not one.startswith("tandem") and AGAIN not in one and one not in wrong and is_eager(one) == is_eager(arm)
    ]
    if not rivals:
        return None
    best = min(rivals, key=lambda one: statistics.median(taken[one]))
    return statistics.median(own / theirs for own, theirs in zip(taken[arm], taken[best], strict=True))


def measure(shards, step, batch, given):
    """A row for each arm of a batch."""
    makers = chosen(Arms(shards, batch, given.device).all(), given.arms)
    runs, rows = {}, []
    for arm, make in makers.items():
        before = fused_ops()
        captures = given.device == "cuda" and (given.capture_eager or not is_eager(arm))
        run, error, reason = prepare(arm, make, step, shards, captures)
        rows.append({"batch": batch, "arm": arm, "fused": dict(fused_ops() - before), "error": error, "reason": reason})
        if not reason:
            runs[arm] = run
    taken = rounds(runs, step, given)
    for row in rows:
        arm, run = row["arm"], runs.get(row["arm"])
        if run is None:
            row["error"] = None
            continue
        row["error"] = max(row["error"], step.error(1, arm, run, shards))
        if given.profile:
            with running(arm):
                lines = kernels(lambda: run(*step.inputs), given.device == "cuda")
            say(f"{arm}, batch {batch}, µs and calls a step by kernel:", *lines, sep="\n")
        row["wrong"] = not row["error"] <= BOUNDS[shards.norm.dtype]
    if given.device == "cuda":
        torch.cuda.synchronize()
    return with_figures(rows, taken, batch)


def with_figures(rows, taken, batch):
    """The rows with what was measured, and one more for the first arm's second turn."""
    wrong = {row["arm"] for row in rows if row.get("wrong")}
    rows = rows + [{**row, "arm": row["arm"] + AGAIN} for row in rows if row["arm"] + AGAIN in taken]
    for row in rows:
        if us := taken.get(row["arm"]):
            rate = 1e6 * batch / statistics.median(us)
            row |= {"us": us, "tokens_per_second": rate, "ratio": ratio(row["arm"], taken, wrong)}
    return rows


def say(*words, sep=" "):
    if dist.get_rank() == 0:
        print(*words, sep=sep, flush=True)


def show(rows):
    for row in rows:
        if "us" not in row:
            say(f"{row['batch']:5} {row['arm']:18} cannot run: {row['reason']}")
            continue
        low, middle, high = (
            statistics.quantiles(row["us"], n=4, method="inclusive") if len(row["us"]) > 1 else row["us"] * 3
        )
        beside = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        fused = ", ".join(f"{count} {op}" for op, count in sorted(row["fused"].items()))
        say(
            f"{row['batch']:5} {row['arm']:18} {middle:10.1f} [{low:.1f}, {high:.1f}] {row['tokens_per_second']:11.1f}"
            f" {beside:>6} {row['error']:9.1e}{' WRONG' if row['wrong'] else ''} {fused}"
        )


def chosen(makers, names):
    """The makers of these arms, in the order of all; without names all."""
    wanted = names.split(",") if names else list(makers)
    if unknown := set(wanted) - set(makers):
        sys.exit(f"no such arm: {', '.join(sorted(unknown))}; the arms are {', '.join(makers)}")
    return {arm: make for arm, make in makers.items() if arm in wanted}


def setting(text):
    """A setting key=value of tandem.torch.configure(); the value is a literal of Python's, or else text."""
    key, parted, value = text.partition("=")
    if not parted:
        raise argparse.ArgumentTypeError(f"'{text}' is not key=value")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return key, value


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="tiny", choices=WIDTHS, help="whose widths")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", default="1,16,64", help="numbers of sequences, by commas")
    parser.add_argument("--context", type=int, default=512, help="entries of the cache; attention reads them all")
    parser.add_argument("--vocabulary", type=int, default=0, help="rows of a head that the ranks share; 0: no head")
    parser.add_argument("--arms", default="", help="names, by commas; default: all")
    parser.add_argument("--repeats", type=int, default=15, help="rounds")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round, timed together")
    parser.add_argument("--capture-eager", action="store_true", help="replays arms in eager mode as graphs, too")
    parser.add_argument(
        "--configure",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of tandem.torch.configure()",
    )
    parser.add_argument("--profile", action="store_true", help="the kernels of each arm, too, and Tandem's plans")
    parser.add_argument("--json", help="a file that gets all rows")
    given = parser.parse_args()
    if given.context < 4:
        parser.error("--context is 4 or more")
    return given


def main():
    given = parse()
    if given.device == "cuda" and ranks_share_gpus():
        os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    begin(given.device, with_nccl=not ranks_share_gpus())
    chosen(Arms(None, 0, given.device).all(), given.arms)  # a wrong name ends the program before any work
    tandem.torch.configure(**{"on_unavailable": "error", **dict(given.configure)})
    dim, hidden, heads, kv_heads = WIDTHS[given.model]
    shape = Shape(dim, hidden, heads, kv_heads, given.layers, given.context, given.vocabulary)
    rank, world = dist.get_rank(), dist.get_world_size()
    if shape.undivided(world):
        sys.exit(f"{world} ranks cannot share {shape.undivided(world)}")
    attached = tandem.torch.attach(dist.group.WORLD)
    batches = [int(text) for text in given.batch.split(",")]
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    source = Source(shape, given.device, dtype)
    places = [given.context // 4, given.context // 2]
    steps = [
        (source.inputs(max(batches), number), torch.tensor([place], device=given.device))
        for number, place in enumerate(places)
    ]
    with torch.no_grad():
        wanted = [one.chunk(world, dim=-1)[rank] if given.vocabulary else one for one in reference(source, steps)]
        shards = Shards(source, max(batches), rank, world)
    shards.keep(places)
    say(
        f"Llama {given.model}, {given.layers} layers, {world} ranks, {str(dtype).removeprefix('torch.')}, context {given.context};"
        f" torch {torch.__version__}; {given.repeats} rounds of {given.steps} steps; {attached.group}"
    )
    say(f"batch {'arm':18} {'us':>10} {'quartiles':18} {'tokens/s':>11} {'ratio':>6} {'error':>9} fused")
    rows = []
    for batch in batches:
        rows += measure(shards, Step(steps, wanted, batch), batch, given)
        show([row for row in rows if row["batch"] == batch])
    if given.profile:
        say(*tandem.torch.explain_graph(), *attached.plans.infos(), sep="\n")
    write_json(given.json, {"model": given.model, "layers": given.layers, "world": world, "rows": rows})
    end()
    return 1 if any(row.get("wrong") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
