"""vLLM's own functions over groups of ranks, with Tandem among vLLM's plug-ins: the real packages' sources, on the CPU."""

import ast
import os
import tempfile
import unittest

import vllm_sources
from check_programs import Checks, add_tests
from node import CUDA, HERE, SOURCE, Daemon, run_checks
from tandem.vllm import _signatures
from test_backend import write_entry_points
from wheel_files import Unreachable


class Vllm(Checks):
    """vLLM of one version."""

    program = "rank_vllm.py"
    timeout = 200
    version = ""
    more = {}

    @classmethod
    def setUpClass(cls):
        if CUDA:
            raise unittest.SkipTest("vLLM's sources come without kernels")
        try:
            paths = vllm_sources.paths(cls.version)
        except Unreachable as error:
            raise unittest.SkipTest(f"no vLLM {cls.version}: {error}") from error
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        write_entry_points(folder.name)
        cls.env = {
            "PYTHONPATH": os.pathsep.join([SOURCE, folder.name, *paths]),
            "TANDEM_VLLM": "1",
            "CI": "",  # where it is set, torch refuses the sum of vLLM's communicator of CPUs, which is its own argument
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_PLUGINS": "tandem",  # not vLLM's own, which need more packages
            "VLLM_CONFIG_ROOT": folder.name,
            "VLLM_CACHE_ROOT": folder.name,
            **cls.more,
        }
        super().setUpClass()

    def check_off(self, name, daemon, **env):
        outcome = run_checks(daemon, 2, self.program, [name], self.env | env, self.timeout)
        self.assertEqual(outcome[name], "")


class Of025(Vllm, unittest.TestCase):
    version = "0.25.1"

    def test_off_by_the_variable(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        self.check_off("off_vllms_classes_are_untouched", daemon, TANDEM_VLLM="0")
        with self.subTest("it is off unless asked for"):
            self.check_off("off_vllms_classes_are_untouched", daemon, TANDEM_VLLM="")

    def test_a_node_without_a_daemon(self):
        self.check_off("off_everything_is_vllms_own", None)


class OfFourRanks025(Vllm, unittest.TestCase):
    version = "0.25.1"
    world = 4


class OnTheirStreams025(Vllm, unittest.TestCase):
    """By families, which the ranks' own streams run."""

    version = "0.25.1"
    more = {"TANDEM_TEST_CLIENT": "1"}


class InvariantOf025(Vllm, unittest.TestCase):
    """vLLM's batch-invariant mode."""

    program = "rank_vllm_invariant.py"
    timeout = 400
    version = "0.25.1"
    more = {"TANDEM_TEST_PATIENCE": "240"}  # a rank waits while another compiles

    def test_a_daemon_that_refuses_it(self):
        with open(os.path.join(HERE, "../fixtures/topology/emulated-4.toml")) as file:
            parted = file.read().replace("pcie =", "p2p_failures = [[0, 1]]\npcie =")
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(parted)
            file.flush()
            daemon = Daemon(gpus=2, extra=("--topology-file", file.name))
        self.addCleanup(daemon.stop)
        self.check_off("off_everything_is_vllms_own", daemon, TANDEM_TEST_REASON="ranks 0 and 1 have no peer access")

    def test_a_node_without_a_daemon(self):
        self.check_off("off_everything_is_vllms_own", None)

    def test_off_by_the_variable(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        self.check_off("off_everything_is_vllms_own", daemon, TANDEM_VLLM="0")


class InvariantOfFourRanks033(Vllm, unittest.TestCase):
    """By families, which the ranks' own streams run."""

    program = "rank_vllm_invariant.py"
    timeout = 400
    version = "0.33.0"
    more = {"TANDEM_TEST_CLIENT": "1", "TANDEM_TEST_PATIENCE": "240"}
    world = 4


class CompiledOf025(Vllm, unittest.TestCase):
    program = "rank_vllm_compiled.py"
    timeout = 400
    version = "0.25.1"
    more = {"TANDEM_TEST_PATIENCE": "240"}  # a rank waits while another compiles


class CompiledOfFourRanks033(Vllm, unittest.TestCase):
    program = "rank_vllm_compiled.py"
    timeout = 400
    version = "0.33.0"
    more = {"TANDEM_TEST_PATIENCE": "240"}
    world = 4


class QuantizedOfFourRanks025(Vllm, unittest.TestCase):
    program = "rank_vllm_quantized.py"
    timeout = 400
    version = "0.25.1"
    more = {"TANDEM_TEST_PATIENCE": "240"}
    world = 4


class QuantizedOf033(Vllm, unittest.TestCase):
    program = "rank_vllm_quantized.py"
    timeout = 400
    version = "0.33.0"
    more = {"TANDEM_TEST_PATIENCE": "240"}


class NormsOfFourRanks025(Vllm, unittest.TestCase):
    """By families, which the ranks' own streams run."""

    program = "rank_vllm_norms.py"
    version = "0.25.1"
    world = 4
    more = {"TANDEM_TEST_CLIENT": "1"}


class NormsOf033(Vllm, unittest.TestCase):
    program = "rank_vllm_norms.py"
    version = "0.33.0"

    def test_off_by_the_variable(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        self.check_off("off_norms_are_vllms_own", daemon, TANDEM_VLLM="0")


class Of033(Vllm, unittest.TestCase):
    version = "0.33.0"


class Signatures(unittest.TestCase):
    """The table of signatures against the wheels."""

    def check_version(self, version):
        try:
            folder = vllm_sources.source(version)
        except Unreachable as error:
            self.skipTest(f"no vLLM {version}: {error}")
        for name, recorded in _signatures.RECORDED[version].items():
            with self.subTest(name=name):
                self.assertEqual(parameters(os.path.join(folder, "vllm"), name), recorded)

    def test_0_25_1(self):
        self.check_version("0.25.1")

    def test_0_33_0(self):
        self.check_version("0.33.0")

    def test_all_versions_have_a_test(self):
        self.assertEqual(
            {f"test_{version.replace('.', '_')}" for version in _signatures.RECORDED} - set(dir(self)), set()
        )


def parameters(package, name):
    """Names and defaults of the parameters of a function of the package, as its source has them; None where it has no such one."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        path = os.path.join(package, *parts[:count])
        for file in (path + ".py", os.path.join(path, "__init__.py")):
            if os.path.exists(file):
                with open(file) as source:
                    body, found = ast.parse(source.read()).body, None
                for part in parts[count:]:
                    found = next((one for one in body if getattr(one, "name", None) == part), None)
                    body = getattr(found, "body", [])
                return None if found is None else text(found.args)
    return None


def text(arguments):
    for one in (*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None:
            one.annotation = None
    return ast.unparse(arguments)


add_tests(
    Of025,
    OfFourRanks025,
    OnTheirStreams025,
    Of033,
    NormsOf033,
    NormsOfFourRanks025,
    CompiledOf025,
    CompiledOfFourRanks033,
    QuantizedOfFourRanks025,
    QuantizedOf033,
    InvariantOf025,
    InvariantOfFourRanks033,
)

if __name__ == "__main__":
    unittest.main()
