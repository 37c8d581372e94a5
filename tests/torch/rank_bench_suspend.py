"""bench/torch/suspend.py where rank 1's model is another one behind each sleep, and rank 0 keeps no contents. With --sleepless no
rank sleeps at all."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/torch"))

import suspend
import tandem.torch
import torch.distributed as dist

asleep, awake, chains = tandem.torch.suspend, tandem.torch.resume, []
SLEEPLESS = "--sleepless" in sys.argv


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


if SLEEPLESS:
    sys.argv.remove("--sleepless")
    tandem.torch.suspend = lambda name, keep=False: None
else:
    suspend.Chain, tandem.torch.suspend, tandem.torch.resume = Known, forgetful, changed
suspend.main()
