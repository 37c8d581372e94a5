"""bench/torch/decode.py with two arms whose sums are wrong: one loses the other ranks' part of one sum, one has a sum of the step
before. Its last line of output is the exit status."""

import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/torch"))

import decode
import torch
import torch.distributed as dist


class Planted(decode.Arms):
    def all(self):
        return super().all() | {"lost eager": self.lost, "late eager": self.late}

    def sums(self, last):
        """A decoder by dist.all_reduce, the last sum of each step by another function of what is summed."""
        calls, count = 0, 2 * self.shards.shape.layers

        def reduce(x):
            nonlocal calls
            calls += 1
            return last(x) if calls % count == 0 else decode.reduced_in_place(x)

        return self.decoder(reduce), contextlib.nullcontext()

    def lost(self):
        return self.sums(lambda x: x * dist.get_world_size())

    def late(self):
        before = []

        def last(x):
            before.append(decode.reduced_in_place(torch.clone(x)))
            return before[-2] if len(before) > 1 else before[-1]

        return self.sums(last)


decode.Arms = Planted
print(decode.main())
