"""Tests whose checks are programs rank_*.py: each rank is a process, and each function test_* of the program is a test."""

import os
import unittest

from node import GPUS, HERE, Daemon, run_checks


class Checks:
    world = 2
    program = ""  # of the kind
    timeout = 150
    env = {}
    extra = ()

    @classmethod
    def names(cls):
        with open(os.path.join(HERE, cls.program)) as file:
            return [line[4 : line.index("(")] for line in file if line.startswith("def test_")]

    @classmethod
    def setUpClass(cls):
        if cls.world > GPUS:
            raise unittest.SkipTest(f"needs {cls.world} GPUs")
        daemon = Daemon(gpus=4, extra=cls.extra)
        try:
            cls.outcomes = run_checks(daemon, cls.world, cls.program, cls.names(), cls.env, cls.timeout)
        finally:
            daemon.stop()

    def check(self, name):
        if self.outcomes[name]:
            self.fail(self.outcomes[name])


def add_tests(*kinds):
    """Makes a test of each function of each kind's program."""
    for kind in kinds:
        for name in kind.names():
            setattr(kind, name, lambda self, name=name: self.check(name))
