"""SGLang's own groups of ranks, with Tandem among SGLang's plug-ins: the real package's sources, on the CPU."""

import os
import tempfile
import unittest

import sglang_sources
from check_programs import Checks, add_tests
from node import CUDA, SOURCE, Daemon, run_checks
from tandem.sglang import _signatures
from test_backend import write_entry_points
from test_vllm import parameters
from wheel_files import Unreachable


class Sglang(Checks):
    """SGLang of one version."""

    program = "rank_sglang.py"
    timeout = 200
    version = "0.5.23"
    more = {}

    @classmethod
    def setUpClass(cls):
        if CUDA:
            raise unittest.SkipTest("SGLang's sources come without kernels")
        try:
            paths = sglang_sources.paths(cls.version)
        except Unreachable as error:
            raise unittest.SkipTest(f"no SGLang {cls.version}: {error}") from error
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        write_entry_points(folder.name)
        cls.env = {
            "PYTHONPATH": os.pathsep.join([SOURCE, folder.name, *paths]),
            "TANDEM_SGLANG": "1",
            "SGLANG_PLUGINS": "tandem",
            **cls.more,
        }
        super().setUpClass()


class OfTwoRanks(Sglang, unittest.TestCase):
    def check_off(self, daemon, **env):
        name = "off_everything_is_sglangs_own"
        outcome = run_checks(daemon, 2, self.program, [name], self.env | env, self.timeout)
        self.assertEqual(outcome[name], "")

    def test_it_is_off_unless_asked_for(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        self.check_off(daemon, TANDEM_SGLANG="")

    def test_a_node_without_a_daemon(self):
        self.check_off(None)
        with self.subTest("deterministic"):
            self.check_off(None, SGLANG_ENABLE_DETERMINISTIC_INFERENCE="1")


class OfFourRanks(Sglang, unittest.TestCase):
    world = 4


class OnTheirStreams(Sglang, unittest.TestCase):
    """By families, which the ranks' own streams run."""

    more = {"TANDEM_TEST_CLIENT": "1"}


class Norms(Sglang, unittest.TestCase):
    program = "rank_sglang_norms.py"


class NormsOfFourRanks(Norms):
    world = 4
    more = {"TANDEM_TEST_CLIENT": "1"}


class Signatures(unittest.TestCase):
    """The table of signatures against the wheel."""

    def test_0_5_23(self):
        try:
            folder = sglang_sources.source("0.5.23")
        except Unreachable as error:
            self.skipTest(f"no SGLang: {error}")
        for name, recorded in _signatures.RECORDED["0.5.23"].items():
            with self.subTest(name=name):
                self.assertEqual(parameters(os.path.join(folder, "sglang"), name), recorded)

    def test_all_versions_have_a_test(self):
        made = {f"test_{version.replace('.', '_')}" for version in _signatures.RECORDED}
        self.assertEqual(made - set(dir(self)), set())


add_tests(OfTwoRanks, OfFourRanks, OnTheirStreams, Norms, NormsOfFourRanks)

if __name__ == "__main__":
    unittest.main()
