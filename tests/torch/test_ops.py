"""torch.ops.tandem on CPU tensors: the checks of rank_ops.py on two and on four ranks, each rank a process."""

import os
import unittest

from node import HERE, Daemon, Ranks


class Ops:
    world = 2
    program = "rank_ops.py"
    env = {}

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)
        cls.ranks = Ranks(cls.daemon, cls.world, cls.program, env=cls.env)
        try:
            cls.outcomes = cls.ranks.results()
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- tandemd's log\n{cls.daemon.tail()}") from None

    def check(self, name):
        for rank, outcome in enumerate(self.outcomes):
            if outcome[name]:
                self.fail(f"rank {rank}: {outcome[name]}")


class TwoRanks(Ops, unittest.TestCase):
    pass


class FourRanks(Ops, unittest.TestCase):
    world = 4


class Installed(Ops, unittest.TestCase):
    program = "rank_install.py"


class Pass(Ops, unittest.TestCase):
    program = "rank_pass.py"
    env = {"TANDEM_TEST_PATIENCE": "120"}


class Compiled(Ops, unittest.TestCase):
    program = "rank_compiled.py"
    env = {"TANDEM_TEST_PATIENCE": "240"}


def _add_tests():
    for kind in (TwoRanks, FourRanks, Installed, Pass, Compiled):
        with open(os.path.join(HERE, kind.program)) as file:
            names = [line[4 : line.index("(")] for line in file if line.startswith("def test_")]
        for name in names:
            setattr(kind, name, lambda self, name=name: self.check(name))


_add_tests()

if __name__ == "__main__":
    unittest.main()
