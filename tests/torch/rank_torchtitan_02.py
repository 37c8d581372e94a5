"""A rank of the Llama of torchtitan 0.2, tensor-parallel and compiled by torchtitan's own parallelize_llama.

    rank_torchtitan_02.py plain|install|pass

Prints the losses of some steps of training, and what Tandem has done. `plain` runs without Tandem. `install` runs what Inductor's
async-TP pass makes of the blocks. `pass` compiles them with Tandem's pass.
"""

import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist

CUDA = os.environ.get("TANDEM_TEST_BACKEND", "host") == "cuda"
DEVICE = "cuda" if CUDA else "cpu"
if not CUDA:  # torchtitan asks which accelerator there is, and takes CUDA where there is none
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: torch.cpu

import tandem.torch  # noqa: E402
from tandem.torch import _native  # noqa: E402
from torch.distributed._symmetric_memory import enable_symm_mem_for_group  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torchtitan.components.loss import cross_entropy_loss  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, utils  # noqa: E402
from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama  # noqa: E402

SEQUENCE, BATCH, STEPS = 64, 2, 4


def configuration(how):
    job = JobConfig()
    job.training.seq_len = SEQUENCE
    job.training.local_batch_size = BATCH
    job.activation_checkpoint.mode = "none"
    job.compile.enable = True
    job.compile.components = ["model"]
    job.parallelism.enable_async_tensor_parallel = how == "install"
    return job


def main():
    how = sys.argv[1]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if CUDA:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if CUDA else "gloo")
    job = configuration(how)
    dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=world, pp=1, ep=1, etp=1, world_size=world)
    dims.build_mesh()
    group = dims.get_mesh("tp").get_group()
    if how == "install":
        tandem.torch.install()
        enable_symm_mem_for_group(group.group_name)
    torch.manual_seed(1)
    arguments = TransformerModelArgs(
        dim=64, n_layers=2, n_heads=4, vocab_size=256, rope_theta=500000, max_seq_len=SEQUENCE
    )
    with torch.device("meta"):
        model = Transformer(arguments)
    with tandem.torch.compile_config() if how == "pass" else contextlib.nullcontext():
        model = parallelize_llama(model, dims, job)
        model.to_empty(device=DEVICE)
        with torch.no_grad():
            model.init_weights(buffer_device=torch.device(DEVICE))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        tokens = torch.randint(
            0, arguments.vocab_size, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(2)
        ).to(DEVICE)
        losses = []
        for _ in range(STEPS):
            with utils.get_train_context(True)():
                loss = cross_entropy_loss(model(tokens[:, :-1]), tokens[:, 1:]) / tokens[:, 1:].numel()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.full_tensor() if isinstance(loss, DTensor) else loss))
    tandem.torch.synchronize()
    records = (
        [[record.collective, record.fused_into] for record in tandem.torch.explain_graph()] if how == "pass" else []
    )
    counts = _native.counts()
    print(
        json.dumps({"losses": losses, "launched": counts.launched, "handed_on": counts.handed_on, "records": records})
    )
    sys.stdout.flush()
    tandem.torch.detach()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
