"""tandem.jax between processes of jax.distributed, on the host backend: values and gradients are those of jax.lax, and a killed
rank ends in an error of the others."""

import os
import shutil
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../torch"))

from node import GPUS, PATIENCE, Daemon, Ranks, free_port, run_checks, wait_until  # noqa: E402

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1"}
CHECKS = (
    "collectives",
    "products",
    "norms",
    "second_derivatives",
    "rows_never_seen",
    "layers",
    "independent_calls",
    "types",
    "refusals",
    "two_axes",
    "mapped_over",
)


class JaxRanks(Ranks):
    """Processes of one program of this folder, with their rank, their number and a port as arguments."""

    def __init__(self, daemon, world, program, *arguments, env=None):
        port = str(free_port())
        super().__init__(
            daemon,
            world,
            os.path.join(HERE, program),
            *arguments,
            env={**ENVIRONMENT, **(env or {})},
            own=lambda rank: (str(rank), str(world), port),
            fresh=True,  # these programs have no torch
        )


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(gpus=4)
        cls.addClassCleanup(cls.daemon.stop)

    def check(self, world, names=CHECKS, env=None):
        if world > GPUS:
            self.skipTest(f"needs {world} GPUs")
        outcomes = run_checks(self.daemon, world, "rank_checks.py", names, env=env, start=JaxRanks)
        for name, failure in outcomes.items():
            with self.subTest(name):
                self.assertEqual(failure, "")

    def test_two_ranks(self):
        self.check(2)

    def test_four_ranks(self):
        self.check(4, ("collectives", "norms", "independent_calls", "two_axes"))


class Places(unittest.TestCase):
    def results(self, mode, daemon=None, env=None):
        ranks = JaxRanks(daemon, 2, "rank_places.py", mode, env=env)
        self.addCleanup(ranks.close)
        return ranks.results()

    def test_without_a_daemon(self):
        for told in self.results("unserved"):
            self.assertIn("/nonexistent", " ".join(told["rows"]))

    def test_the_job_starts_a_daemon(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        env = {"TANDEM_RUNTIME_DIR": "", "TANDEM_EMBEDDED": "1", "XDG_RUNTIME_DIR": "", "TMPDIR": folder}
        for told in self.results("unserved", env=env):
            self.assertEqual((told["reason"], told["rows"]), ("", [""]), told)

    def test_several_devices_in_a_process(self):
        for told in self.results("several"):
            self.assertEqual(told["reason"], "a process has several devices of the mesh")
            self.assertEqual(told["rows"], [told["reason"]])

    def test_a_group_that_has_been_left(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        for told in self.results("detached", daemon):
            self.assertEqual((told["reason"], told["rows"]), ("", [""]), told)
            self.assertIn("FAILED_PRECONDITION", told["failure"])
            self.assertIn("jax.clear_caches()", told["failure"])


class KilledRank(unittest.TestCase):
    def kill_rank_1(self, mode, world=2):
        daemon = Daemon(gpus=world)
        self.addCleanup(daemon.stop)
        ranks = JaxRanks(daemon, world, "rank_failures.py", mode)
        self.addCleanup(ranks.close)
        ranks.wait_for(1, "ready")
        ranks.processes[1].kill()
        for rank in range(world):
            if rank == 1:
                continue
            told = ranks.result(rank, timeout=60)
            for _, text in told["errors"]:
                self.assertIn("rank 1", text, told)
            self.assertLess(told["seconds"], 25, told)

    def test_while_a_program_runs(self):
        self.kill_rank_1("run")

    def test_while_a_plan_is_prepared(self):
        self.kill_rank_1("trace", world=3)

    def test_a_program_that_fails_ends_its_launches(self):
        """Rank 1 lives, and does not come. jax.distributed itself waits for it behind that."""
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        ranks = JaxRanks(daemon, 2, "rank_failures.py", "fail")
        self.addCleanup(ranks.close)
        ranks.wait_for(1, "ready")
        ended = "Tandem: the client has detached"
        wait_until(lambda: ended in ranks.log(0), PATIENCE, "the launch of rank 0 does not end")
        self.assertIn("RuntimeError: the rank has failed", ranks.log(0))


if __name__ == "__main__":
    unittest.main()
