"""A rank of a program without a line of Tandem's: its first argument is the backend of its process group, its second a module to
import before torch."""

import importlib
import sys

if len(sys.argv) > 2:
    importlib.import_module(sys.argv[2])

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
x = torch.full((5,), float(dist.get_rank() + 1))
dist.all_reduce(x)
assert x[0].item() == 3, x
dist.all_reduce(x.double())
print("tandem.torch" in sys.modules)
dist.destroy_process_group()
