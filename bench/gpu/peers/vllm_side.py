"""vLLM's own all-reduce, as FlashInfer has it: for few ranks and short messages, by peers' plain loads.

Each rank's operands lie in memory that its peers have opened, so that nothing is copied before the sum."""

import ctypes

import torch
import torch.distributed as dist
from arm_parts import BF16, SETS, writing
from flashinfer_side import LARGEST, VECTOR, part
from measure import Arm, together
from nccl_windows import DeviceBytes

NAME = "flashinfer vllm"
MOST_BLOCKS = 36  # the kernel's limit; vLLM takes as many
POINTERS = 8  # in a row of the table, one a rank
ROWS = 4096


class Vllm:
    """Made by all ranks together; `agree` says whether all are well so far."""

    def __init__(self, rank, world, device, folder, agree):
        self.rank, self.world, self.device = rank, world, device
        together(agree, self.load, folder)
        self.signals = self.memory.create_shared_buffer(self.library.meta_size() + LARGEST)
        self.operands = self.memory.create_shared_buffer(SETS * LARGEST)
        together(agree, self.clear)
        dist.barrier()

    def load(self, folder):
        self.library, self.memory = part(folder, "vllm_ar"), part(folder, "cuda_ipc")
        self.library.meta_size()  # loads its module, so that what it lacks shows here

    def clear(self):
        self.memory.cudart.cudaMemset(ctypes.c_void_p(self.signals[self.rank]), 0, self.library.meta_size())
        self.bytes = torch.as_tensor(DeviceBytes(self.operands[self.rank], SETS * LARGEST), device=self.device)
        torch.cuda.synchronize()

    def inputs(self, tensors):
        """Copies of the tensors where peers can read them, until the next call."""
        copies = []
        for i, tensor in enumerate(tensors):
            size = tensor.numel() * tensor.element_size()
            copies.append(self.bytes[i * LARGEST : i * LARGEST + size].view(BF16).view_as(tensor))
            copies[i].copy_(tensor)
        return copies

    def table(self):
        """Rows of all ranks' addresses of the operands, set after set. A call outside a graph takes the row of its registered
        input; each call that a graph captures takes the next row behind those, and the sets are in turn in both."""
        rows = [[base + i * LARGEST for base in self.operands] for i in range(SETS)]
        padded = [row + [0] * (POINTERS - len(row)) for row in rows]
        return rows, torch.tensor(padded * (ROWS // SETS), dtype=torch.int64, device=self.device)

    def handle(self):
        """Of a communicator for these operands, and the table that must live as long."""
        rows, table = self.table()
        handle = self.library.init_custom_ar(self.signals, table.view(torch.uint8).flatten(), self.rank, True)
        for row in rows:
            self.library.register_buffer(handle, row)
        return handle, table


def vllm_arms(context, inputs, out):
    """All-reduce of whole messages; none without it."""

    def make():
        count = inputs[0].numel()
        if 2 * count > LARGEST:
            raise ValueError(f"{2 * count >> 20} MiB is more than its memory is for")
        if count % VECTOR:
            raise ValueError(f"{count} elements are no multiple of {VECTOR}")
        sources = context.vllm.inputs(inputs)
        handle, table = context.vllm.handle()
        library = context.vllm.library
        run = writing(out, lambda i: library.all_reduce(handle, sources[i], out[i], 0, 0, MOST_BLOCKS))
        run.keeps = table
        return Arm(NAME, run, close=lambda: library.dispose(handle))

    return [(NAME, make)] if context.vllm else []
