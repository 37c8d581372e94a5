"""bench/torch/suspend.py where rank 1's model is another one behind each sleep, and rank 0 keeps no contents."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/torch"))

import suspend
import tandem.torch
import torch.distributed as dist

asleep, awake, chains = tandem.torch.suspend, tandem.torch.resume, []


class Known(suspend.Chain):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        chains.append(self)


def forgetful(name, keep=False):
    asleep(name, keep=keep and dist.get_rank() > 0)


def changed(name):
    awake(name)
    if dist.get_rank() == 1:
        chains[0].rows.add_(1)


suspend.Chain, tandem.torch.suspend, tandem.torch.resume = Known, forgetful, changed
suspend.main()
