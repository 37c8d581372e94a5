"""Tokens per second of transformers' generate() with a tensor-parallel Llama, by Tandem and by the process group's own backend.

    TANDEM_RUNTIME_DIR=DIR torchrun --nproc-per-node 2 bench/torch/generate.py [--device cuda] [--json FILE]

The model has a named size's widths, random weights and few layers. `tp_plan="auto"` shards it, and nothing of it knows Tandem. Two
caches: dynamic, where every call is eager, and static, where transformers compiles the decode step (on GPUs, into CUDA graphs).
For each cache and batch the arms take turns: the backend's collectives, Tandem's behind install(), the backend's again. An arm's
figure is the median of its rounds, in tokens per second of all sequences together, and the quartiles. "again" is the backend's
second turn by its first, what the machine itself changed. The tokens of the arms are compared: sums of another order may differ in
their last bits, and so may a token that two others nearly equal.
"""

import argparse
import contextlib
import statistics
import tempfile
import time

import tandem.torch
import torch
import torch.distributed as dist
import transformers
from arms import WIDTHS, begin, end, served_calls, write_json

VOCABULARY = 32000
ARMS = ("backend", "tandem", "backend, again")


@contextlib.contextmanager
def folder_of_all_ranks():
    with tempfile.TemporaryDirectory() as own:
        path = [own]
        dist.broadcast_object_list(path, 0)
        yield path[0]
        dist.barrier()


def load(given, dtype):
    """The sharded model, through a folder as from the Hub."""
    hidden, intermediate, heads, kv_heads = WIDTHS[given.model]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=given.layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        eos_token_id=None,
        pad_token_id=0,
    )
    with folder_of_all_ranks() as folder:
        if dist.get_rank() == 0:
            torch.manual_seed(0)
            transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
        dist.barrier()
        how = transformers.DistributedConfig(tp_plan="auto")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=how, dtype=dtype)
    return model.eval()


def switch(arm):
    """Hands the collectives to the arm. What was compiled for the other one is forgotten."""
    torch._dynamo.reset()
    if arm == "tandem":
        tandem.torch.install()
    else:
        tandem.torch.uninstall()


def generate(model, ids, cache, tokens):
    """The new tokens, and the seconds that they took after the first."""
    how = {"do_sample": False, "pad_token_id": 0, "cache_implementation": cache}
    with torch.no_grad():
        times = []
        for count in (1, tokens):
            dist.barrier()
            begun = time.perf_counter()
            found = model.generate(ids, max_new_tokens=count, min_new_tokens=count, **how)
            if ids.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
    return found[:, ids.shape[1] :], times[1] - times[0]


def measure(model, ids, cache, given):
    """{arm: its rounds' tokens per second}, the part of Tandem's tokens that are the backend's, and Tandem's calls."""
    rates, found, served = {}, {}, 0
    for arm in ARMS:
        switch(arm)
        before = served_calls()
        found[arm], _ = generate(model, ids, cache, given.tokens)  # compiles, and prepares plans
        rates[arm] = []
        for _ in range(given.rounds):
            _, seconds = generate(model, ids, cache, given.tokens)
            rates[arm].append(ids.shape[0] * (given.tokens - 1) / seconds)
        if arm == "tandem":
            served = served_calls() - before
    same = (found["tandem"] == found["backend"]).float().mean().item()
    return rates, same, served


def show(cache, batch, rates, same, served):
    """A line, and the same for machines."""
    middle = {arm: statistics.median(taken) for arm, taken in rates.items()}
    quartiles = {arm: statistics.quantiles(taken, n=4) if len(taken) > 1 else taken * 3 for arm, taken in rates.items()}
    figures = " ".join(
        f"{middle[arm]:9.1f} [{quartiles[arm][0]:.1f}, {quartiles[arm][2]:.1f}]" for arm in ("tandem", "backend")
    )
    print(
        f"{cache:8} {batch:6} {figures} {middle['tandem'] / middle['backend']:6.2f}"
        f" {middle['backend, again'] / middle['backend']:6.2f} {same:7.3f} {served:8}",
        flush=True,
    )
    return {"cache": cache, "batch": batch, "tokens_per_second": rates, "same_tokens": same, "served_calls": served}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="tiny", choices=WIDTHS, help="whose widths")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--caches", default="dynamic,static")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each sequence")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    given = parser.parse_args()
    begin(given.device)
    transformers.utils.logging.disable_progress_bar()
    model = load(given, torch.bfloat16 if given.device == "cuda" else torch.float32)
    rows = []
    if dist.get_rank() == 0:
        print(f"Llama, {given.model}, {given.layers} layers, {dist.get_world_size()} ranks; tokens/s")
        print(f"{'cache':8} {'batch':>6} {'tandem':>9} {'':16} {'backend':>9} {'':16} ratio  again    same   served")
    for cache in given.caches.split(","):
        for batch in (int(text) for text in given.batches.split(",")):
            made = torch.Generator().manual_seed(batch)
            ids = torch.randint(1, VOCABULARY, (batch, given.prompt), generator=made).to(given.device)
            rates, same, served = measure(model, ids, cache, given)
            if dist.get_rank() == 0:
                rows.append(show(cache, batch, rates, same, served))
    write_json(given.json, rows)
    end()


if __name__ == "__main__":
    main()
