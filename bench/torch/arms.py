"""What the scripts of this folder share: ranks and their end, compiled code by arm, replays, and what a step's kernels take."""

import contextlib
import json
import os
import types

import tandem.torch
import torch
import torch.distributed as dist

# hidden size, intermediate size, heads, heads of keys and values
WIDTHS = {"tiny": (64, 128, 4, 4), "8b": (4096, 14336, 32, 8), "70b": (8192, 28672, 64, 8)}
# No arm uses NVLink multicast, a rival neither.
WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def ranks_share_gpus():
    """Whether this node has fewer GPUs than ranks. NCCL refuses such ranks."""
    return torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def begin(device, with_nccl=True):
    """Makes the default process group of a script for "cpu" or "cuda", and chooses the rank's GPU."""
    os.environ.update(WITHOUT_MULTICAST)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" and with_nccl else "gloo")


def end():
    """Ends what begin() and install() began, on all ranks."""
    dist.barrier()
    tandem.torch.uninstall()
    tandem.torch.detach()
    dist.destroy_process_group()


def write_json(path, value):
    """Rank 0 writes the value to the file; nothing without a path."""
    if path and dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump(value, file)


def from_all_ranks(value):
    """Every rank's value, in the order of ranks."""
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return told


def agreed(error):
    """The first rank's failure, or "": the same on all ranks."""
    return next((f"rank {rank}: {one}" for rank, one in enumerate(from_all_ranks(error)) if one), "")


def in_short(failure):
    """An exception's kind and the beginning of its text."""
    return f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:100]}"


def served_calls():
    """The process's calls of torch.distributed that Tandem has run, eager or in a graph that runs."""
    return sum(row.calls for row in tandem.torch.report().rows if not row.reason)


def compiled_apart(module):
    """The module compiled. Dynamo keeps compiled code by function, so each call makes a separate function."""

    def forward(*inputs):
        return module(*inputs)

    code = forward.__code__.replace(co_name=f"forward_{id(module)}")
    own = types.FunctionType(code, forward.__globals__, code.co_name, closure=forward.__closure__)
    return torch.compile(own, fullgraph=True)


@contextlib.contextmanager
def fusing(settings, count):
    """The context of an arm that fuses or takes collectives: raises where it took none. count() returns how many it has taken."""
    before = count()
    with settings:
        yield
    if count() == before:
        raise RuntimeError("no collective is taken: it would run as its rival does")


class Replayed:
    """A function as a captured CUDA graph of its inputs, which later calls leave as they lie. The graph reads the weights and what
    the function holds."""

    def __init__(self, function, *inputs):
        self.function = function
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.out = function(*inputs)

    def __call__(self, *inputs):
        self.graph.replay()
        return self.out


def kernels(call, on_gpu, steps=3):
    """Lines: what takes the most time of a call on this rank, in µs a call. What engines run is not among it."""
    activities = [torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU]
    dist.barrier()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            call()
        if on_gpu:
            torch.cuda.synchronize()
    time_of = (lambda e: e.self_device_time_total) if on_gpu else (lambda e: e.self_cpu_time_total)
    events = sorted(profile.key_averages(), key=time_of, reverse=True)
    rows = [f"{time_of(e) / steps:9.1f} {e.count / steps:6.1f} x {e.key[:90]}" for e in events[:24]]
    return rows + [f"{sum(map(time_of, events)) / steps:9.1f} in all"]
