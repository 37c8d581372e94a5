"""The CPU time of a replay of a CUDA graph, and whether replays run ahead of the GPU.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/replays.py [--json FILE]

A graph has 16 all-reduces of 8 KiB between small kernels: by Tandem on torch's stream, by PyTorch's one-shot kernel over symmetric
memory, by NCCL where each rank has a GPU, and without collectives. Printed are microseconds: CPU time of a replay of 200 that are
enqueued without a wait between them; the interval between such replays on the GPU; CPU time of a replay on an idle GPU, the median.

A replay that does not run ahead has a CPU time near the interval. Ranks that share a GPU need MPS.
"""

import argparse
import json
import os
import statistics
import time

import tandem.torch
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

REPLAYS, OPS, ELEMENTS = 200, 16, 4096


def captured(function, x):
    """A graph of OPS calls; everything is loaded and prepared before the capture."""

    def body():
        y = x
        for _ in range(OPS):
            y = function(y * 0.5)
        return y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = body()
    return graph, output


def measured(graph):
    """{figure: microseconds} of a graph's replays."""
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    enqueued = time.perf_counter()
    torch.cuda.synchronize()
    ended = time.perf_counter()
    alone = []
    for _ in range(REPLAYS):
        before = time.perf_counter()
        graph.replay()
        alone.append(time.perf_counter() - before)
        torch.cuda.synchronize()
    seconds = {
        "cpu": (enqueued - begun) / REPLAYS,
        "interval": (ended - begun) / REPLAYS,
        "cpu alone": statistics.median(alone),
    }
    return {name: round(value * 1e6, 1) for name, value in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="a file that gets a line of JSON for each arm")
    args = parser.parse_args()
    rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    own_gpus = gpus >= int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % gpus)
    if not own_gpus:
        os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    dist.init_process_group("nccl" if own_gpus else "gloo")
    name = dist.group.WORLD.group_name
    tandem.torch.configure(on_unavailable="error", placement="client")
    x = torch.randn(1, ELEMENTS, device="cuda", dtype=torch.bfloat16)
    shared = symmetric.empty(ELEMENTS, device="cuda", dtype=torch.bfloat16)
    symmetric.rendezvous(shared, name)

    def one_shot(y):
        shared.view(1, ELEMENTS).copy_(y)
        return torch.ops.symm_mem.one_shot_all_reduce(shared.view(1, ELEMENTS), "sum", name)

    def nccl(y):
        dist.all_reduce(y)
        return y

    arms = {"tandem": lambda y: torch.ops.tandem.all_reduce(y, "sum", name), "one-shot": one_shot, "nccl": nccl}
    if not own_gpus:
        del arms["nccl"]
    arms["no collective"] = lambda y: y + 1
    for arm, function in arms.items():
        graph, output = captured(function, x)
        figures = measured(graph)
        del graph, output
        if rank == 0:
            print(f"{arm:14}" + "".join(f"  {figure} {value:7.1f} us" for figure, value in figures.items()), flush=True)
            if args.json:
                with open(args.json, "a") as file:
                    file.write(
                        json.dumps({"benchmark": "replays", "arm": arm, "gpu": torch.cuda.get_device_name()} | figures)
                        + "\n"
                    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
