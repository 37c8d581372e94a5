"""FlashInfer's all-reduces through memory that all GPUs share, without multicast: TensorRT-LLM's kernels, in one shot and in two.

The library comes from the folder that bench/gpu/rivals makes, with its modules built."""

import importlib
import os
import sys

from arm_parts import writing
from measure import Arm, together

LARGEST = 64 << 20  # bytes of a message: what it keeps a workspace for, W times and three times W times that
ROWS_OF = (8192, 4096, 2048, 1024)  # elements, in the order in which they keep most of a GPU busy
VECTOR = 8  # elements of 16 bytes


def row_length(count, world, shots):
    """Elements of the rows as which a message of `count` bf16 elements is summed. Cases that the kernels cannot do raise.

    A row goes to one cluster of blocks. Two shots need more rows than ranks."""
    if 2 * count > LARGEST:
        raise ValueError(f"{2 * count >> 20} MiB is more than its workspace is for")
    rows = [length for length in ROWS_OF if count % length == 0 and (shots == 1 or count // length > world)]
    if rows:
        return rows[0]
    if shots == 1 and count < ROWS_OF[-1] and count % VECTOR == 0:
        return count
    raise ValueError(f"{count} elements are no rows for {shots} shots of {world} ranks")


def part(folder, name):
    """The module flashinfer.comm.`name` of the folder."""
    path = os.path.join(folder, "python")
    if path not in sys.path:
        sys.path.insert(0, path)
        # The folder has the version that tvm_ffi needs; torch may have loaded an older one.
        sys.modules.pop("typing_extensions", None)
    return importlib.import_module(f"flashinfer.comm.{name}")


class FlashInfer:
    """Made by all ranks together; `agree` says whether all are well so far."""

    def __init__(self, rank, world, folder, agree):
        self.rank, self.world = rank, world
        together(agree, self.load, folder)
        self.handles, self.pointers, self.metadata = self.library.trtllm_create_ipc_workspace_for_all_reduce_fusion(
            rank, world, LARGEST // 2 // ROWS_OF[0], ROWS_OF[0], create_metadata=True, use_symm_dev_mem=False
        )

    def load(self, folder):
        self.library = part(folder, "trtllm_ar")
        self.patterns = self.library.AllReduceFusionPattern
        self.library.get_trtllm_comm_module()  # loads it, so that what it lacks shows here

    def sum(self, x, length, shots, pattern, **tensors):
        """Sums x, seen as rows of `length`. Keywords as vLLM has them: sums in fp32, and each launch ready early for the next."""
        missing = dict.fromkeys(("allreduce_out", "residual_in", "residual_out", "norm_out", "rms_gamma", "rms_eps"))
        self.library.trtllm_allreduce_fusion(
            allreduce_in=x,
            world_size=self.world,
            world_rank=self.rank,
            token_num=x.numel() // length,
            hidden_dim=length,
            workspace_ptrs=self.pointers,
            launch_with_pdl=True,
            trigger_completion_at_end=True,
            fp32_acc=True,
            pattern_code=pattern,
            use_oneshot=shots == 1,
            quant_out=None,
            scale_out=None,
            scale_factor=None,
            layout_code=None,
            metadata=self.metadata,
            **{**missing, **tensors},
        )

    def all_reduce(self, x, out, length, shots):
        self.sum(x, length, shots, self.patterns.kAllReduce, allreduce_out=out)

    def all_reduce_norm(self, x, residual, gamma, eps, total, out, shots):
        """total = residual + the sum of all x, out = its RMSNorm by rows."""
        self.sum(
            x,
            x.shape[1],
            shots,
            self.patterns.kARResidualRMSNorm,
            residual_in=residual,
            residual_out=total,
            norm_out=out,
            rms_gamma=gamma,
            rms_eps=eps,
        )


def shots_arms(context, make):
    """Arms of one shot and of two; make(name, shots) makes one. None without FlashInfer."""
    names = {"flashinfer one-shot": 1, "flashinfer two-shot": 2} if context.flashinfer else {}
    return [(name, lambda name=name, shots=shots: make(name, shots)) for name, shots in names.items()]


def flashinfer_arms(context, inputs, out):
    """All-reduce of whole messages."""

    def make(name, shots):
        length = row_length(inputs[0].numel(), context.world, shots)

        return Arm(name, writing(out, lambda i: context.flashinfer.all_reduce(inputs[i], out[i], length, shots)))

    return shots_arms(context, make)
