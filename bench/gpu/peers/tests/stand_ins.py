"""A torch that does nothing, for the arms' names: every call, attribute and element of it is the same again."""

import sys
import types
from unittest import mock


class Anything:
    """Whatever is asked of it, it goes along; as a number it is 1, and it has no elements."""

    itemsize = 2

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **named):
        return self

    def __iter__(self):
        return iter(())

    def __index__(self):
        return 1

    def __len__(self):
        return 1

    def __setitem__(self, key, value):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        return None

    def itself(self, other):
        return self

    __hash__ = object.__hash__
    __eq__ = __getitem__ = __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = itself
    __truediv__ = __floordiv__ = __matmul__ = __pow__ = itself


def torch_modules():
    """For sys.modules while something that imports torch is imported."""
    names = ("torch", "torch.distributed", "torch.distributed._symmetric_memory")
    modules = {name: types.ModuleType(name) for name in names}
    for module in modules.values():
        module.__getattr__ = lambda name: Anything()
    modules["torch"].distributed = modules["torch.distributed"]
    modules["torch.distributed"]._symmetric_memory = modules["torch.distributed._symmetric_memory"]
    return modules


def with_torch(name):
    """The comparison's module of that name, imported beside a torch that does nothing."""
    with mock.patch.dict(sys.modules, torch_modules()):
        return __import__(name)


class Windows(Anything):
    def __init__(self, suffix):
        self.suffix = suffix


def context(rank, world, rivals=True):
    """What builders of arms get, with windows and Tandem there; `rivals`: with a newer NCCL and FlashInfer too."""
    parts = with_torch("arm_parts")
    made = parts.Context.__new__(parts.Context)
    made.rank, made.world, made.group, made.exact = rank, world, "", None
    made.bench = made.tandem = Anything()
    made.windows = [Windows(""), Windows(" 2.32.3")] if rivals else [Windows("")]
    made.flashinfer = made.vllm = Anything() if rivals else None
    made.random = made.empty = made.symmetric = lambda *shape, **named: [Anything() for _ in range(4)]
    return made
