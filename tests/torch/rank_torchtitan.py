"""A rank of the Llama of torchtitan 0.3, tensor-parallel by torchtitan's own parallelize_llama.

    rank_torchtitan.py plain|eager|install|pass

Prints the losses of some steps of training, and what Tandem has done. `plain` runs without Tandem, and not compiled. `eager` runs
torchtitan's dist_gemm modules, which call symm_mem's ops, behind install(). `install` runs what Inductor's async-TP pass makes of
the blocks. `pass` compiles them with Tandem's pass.
"""

import contextlib
import json
import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

CUDA = os.environ.get("TANDEM_TEST_BACKEND", "host") == "cuda"
DEVICE = "cuda" if CUDA else "cpu"
if not CUDA:  # torchtitan asks which accelerator there is, and takes CUDA where there is none
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: torch.cpu

    # dist_gemm has its weights' gradients in fp32, and the CPU has no product with another type than its operands'.
    MISSING = torch.library.Library("aten", "IMPL")
    MISSING.impl("mm.dtype", lambda a, b, out_dtype: torch.mm(a.to(out_dtype), b.to(out_dtype)), "CPU")

import tandem.torch  # noqa: E402
from tandem.torch import _native  # noqa: E402
from torch.distributed import _symmetric_memory  # noqa: E402
from torchtitan.components.loss import cross_entropy_loss  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, utils  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import llama3_configs, parallelize_llama  # noqa: E402

SEQUENCE, BATCH, STEPS, LAYERS = 64, 2, 4, 2


def parallelism(world):
    return ParallelismConfig(tensor_parallel_degree=world, spmd_backend="spmd_types")


def model_of(how, world):
    """torchtitan's smallest Llama with fewer layers, on the meta device."""
    backend = "dist_gemm" if how == "eager" else "default"
    config = llama3_configs["debugmodel"](attn_backend="flex", tp_gemm_backend=backend)
    config.layers = config.layers[:LAYERS]
    for layer in config.layers:  # the one kernel that the CPU has with gradients
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.update_from_config(config=SimpleNamespace(parallelism=parallelism(world)))
    with torch.device("meta"):
        return config.build(), config.vocab_size


def main():
    how = sys.argv[1]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if CUDA:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if CUDA else "gloo")
    utils.set_spmd_backend("spmd_types")
    dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=world, pp=1, ep=1, world_size=world)
    dims.build_mesh()
    if how in ("eager", "install"):
        tandem.torch.install()
    torch.manual_seed(1)
    model, vocabulary = model_of(how, world)
    compiled, around = how in ("install", "pass"), contextlib.nullcontext()
    if how == "pass":
        around = tandem.torch.compile_config()
    elif how == "install" and not CUDA:  # else torch looks for symm_mem's products on GPUs alone
        around = _symmetric_memory._test_mode()
    with around:
        model = parallelize_llama(
            model,
            parallel_dims=dims,
            training=TrainingConfig(mixed_precision_param="float32"),
            parallelism=parallelism(world),
            compile_config=CompileConfig(
                enable=compiled, components=["model"], enable_async_tensor_parallel=how == "install"
            ),
            ac_config=None,
            dump_folder="",
        )
        model.to_empty(device=DEVICE)
        with torch.no_grad():
            model.init_weights(buffer_device=torch.device(DEVICE))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        generator = torch.Generator().manual_seed(2)
        tokens = torch.randint(0, vocabulary, (BATCH, SEQUENCE + 1), generator=generator).to(DEVICE)
        positions = torch.arange(SEQUENCE, device=DEVICE).expand(BATCH, SEQUENCE)
        context, losses = utils.get_spmd_context(parallel_dims=dims), []
        for _ in range(STEPS):
            with context():
                logits = model(tokens[:, :-1], positions=positions)
                loss = cross_entropy_loss(logits, tokens[:, 1:], global_vocab_size=vocabulary) / tokens[:, 1:].numel()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
    tandem.torch.synchronize()
    records = tandem.torch.explain_graph() if how == "pass" else []
    counts = _native.counts()
    told = {"losses": losses, "launched": counts.launched, "handed_on": counts.handed_on}
    print(json.dumps(told | {"records": [[record.collective, record.fused_into] for record in records]}))
    sys.stdout.flush()
    tandem.torch.detach()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
