"""The programs of examples/ as a user runs them: one process a rank, against a daemon of the host backend."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/integration"))

from harness import BIN, Daemon, TandemTest, host_only  # noqa: E402

WORLD = 4
PATIENCE = 120


class Rank:
    """A running example; its lines of output as they come."""

    def __init__(self, program, arguments, environment):
        self.process = subprocess.Popen(
            [os.path.join(BIN, "tandem-example-" + program), *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def await_line(self, matches):
        """The first line from here on that `matches`; fails where the program ends before."""
        with self.changed:
            begin = len(self.lines)
            found = self.changed.wait_for(
                lambda: any(line is None or matches(line) for line in self.lines[begin:]), PATIENCE
            )
            lines = [line for line in self.lines[begin:] if line is None or matches(line)]
        if not found or lines[0] is None:
            raise AssertionError("the line does not come:\n" + self.output())
        return lines[0]

    def end(self):
        """Its exit status."""
        status = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return status

    def output(self):
        return "\n".join(str(line) for line in self.lines[-25:])

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(PATIENCE)
        self.process.stdout.close()


@host_only("the examples run on streams of the host backend")
class Examples(TandemTest):
    gpus = WORLD

    def setUp(self):
        super().setUp()
        self.ranks = []
        self.environment = {
            **os.environ,
            "TANDEM_RUNTIME_DIR": self.daemon.runtime_dir,
            "TANDEM_JOB_KEY": os.urandom(16).hex(),
        }
        self.addCleanup(lambda: [rank.kill() for rank in self.ranks])

    def begin(self, program, arguments):
        rank = Rank(program, arguments, self.environment)
        self.ranks.append(rank)
        return rank

    def run_ranks(self, program):
        ranks = [self.begin(program, [rank, WORLD]) for rank in range(WORLD)]
        outputs = []
        for rank in ranks:
            self.assertEqual(rank.end(), 0, rank.output())
            outputs.append(rank.output())
        return outputs

    def test_all_reduce(self):
        for rank, output in enumerate(self.run_ranks("all_reduce")):
            self.assertIn(f"rank {rank}: every sum is 10", output)

    def test_all_reduce_in_c(self):
        for rank, output in enumerate(self.run_ranks("all_reduce_c")):
            self.assertIn(f"rank {rank}: every sum is 10", output)

    def test_all_gather_matmul(self):
        for rank, output in enumerate(self.run_ranks("all_gather_matmul")):
            self.assertIn(f"rank {rank}: every element is right", output)

    def test_collectives(self):
        for rank, output in enumerate(self.run_ranks("collectives_c")):
            self.assertIn(f"rank {rank}: every rank has the maximum 4", output)

    def test_wrong_usage(self):
        for program in ("all_reduce", "all_reduce_c", "collectives_c", "all_gather_matmul", "recover"):
            self.assertEqual(self.begin(program, []).end(), 2, program)


def shown_under(heading):
    """The first lines that docs/first-program.md has to be typed under a heading."""
    with open(os.path.join(ROOT, "docs/first-program.md")) as file:
        return re.search(rf"^## {heading}\n.*?^```\n(.*?)^```$", file.read(), re.M | re.S)[1]


@host_only("the page has a daemon of the host backend")
class FirstProgram(unittest.TestCase):
    """docs/first-program.md as one types it, in one shell."""

    def test_its_lines(self):
        with tempfile.TemporaryDirectory(prefix="tandem-first.") as folder:
            os.mkdir(os.path.join(folder, "build"))
            os.symlink(BIN, os.path.join(folder, "build/bin"))
            os.symlink(os.path.join(BIN, "tandem-example-all_reduce"), os.path.join(folder, "all_reduce"))
            lines = shown_under("Start a daemon") + shown_under("Run") + "kill %1\nwait\n"
            shell = subprocess.Popen(
                ["bash", "-e", "-c", lines],
                cwd=folder,
                env={**os.environ, "TMPDIR": folder},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                output, _ = shell.communicate(timeout=PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):  # all have ended
                    os.killpg(shell.pid, signal.SIGKILL)
        self.assertEqual(shell.returncode, 0, output)
        for rank in range(WORLD):
            self.assertIn(f"rank {rank}: every sum is 10", output)
        self.assertIn("4 GPUs", output)


@host_only("the examples run on streams of the host backend")
class Recover(Examples):
    """recover goes on after each kind of death, and its result is that of an undisturbed run."""

    steps = 1200

    def setUp(self):
        super().setUp()
        self.checkpoints = tempfile.TemporaryDirectory(prefix="tandem-recover.")
        self.addCleanup(self.checkpoints.cleanup)
        self.job = [self.begin_rank(rank) for rank in range(WORLD)]

    # Only what is new: the base's tests run there.
    test_all_reduce = test_all_reduce_in_c = test_collectives = test_all_gather_matmul = test_wrong_usage = None

    def begin_rank(self, rank):
        return self.begin("recover", [rank, WORLD, self.steps, self.checkpoints.name])

    def await_step(self, step, rank=0):
        """Returns once the rank has completed that step, or a later one; fails where that is the last."""
        line = self.job[rank].await_line(
            lambda text: (found := re.fullmatch(r"step (\d+)", text)) and int(found[1]) >= step
        )
        self.assertLess(int(line.split()[1]), self.steps, "the job ended before it was disturbed")

    def expect_right(self, *reasons):
        state = sum(step % 8 + (WORLD - 1) / 2 for step in range(1, self.steps + 1))
        for rank in self.job:
            self.assertEqual(rank.end(), 0, rank.output())
            self.assertIn(f"state {state:.1f}", rank.lines, rank.output())
        if reasons:
            lines = [str(line) for rank in self.job for line in rank.lines]
            self.assertTrue(
                any(line.endswith(f"reason {reason}") for line in lines for reason in reasons), f"nobody met {reasons}"
            )

    def test_undisturbed(self):
        self.expect_right()

    def test_a_killed_engine(self):
        for gpu, step in enumerate((100, 300, 500, 700)):
            self.await_step(step)
            self.daemon.kill_engine(gpu)
        self.expect_right("ENGINE_RESTARTED")

    def test_a_killed_rank(self):
        self.await_step(200)
        self.job[2].kill()
        self.job[2] = self.begin_rank(2)
        self.await_step(500)
        self.job[0].kill()
        self.job[0] = self.begin_rank(0)
        self.expect_right("RANK_LOST")

    def test_an_evicted_rank(self):
        self.await_step(200)
        victim = self.job[1].process.pid
        session = next(s["id"] for s in self.daemon.ctl_json("sessions")["sessions"] if s["pid"] == victim)
        self.daemon.ctl("evict", str(session))
        self.expect_right("EVICTED")
        self.assertTrue(any("RANK_LOST" in str(line) for line in self.job[0].lines), self.job[0].output())

    def test_a_killed_daemon(self):
        self.await_step(300)
        old, self.daemon = self.daemon, None
        old.process.send_signal(signal.SIGKILL)
        old.process.wait()
        old.own_dir = False
        old.log.close()
        self.daemon = Daemon(self.gpus, self.extra, runtime_dir=old.runtime_dir)
        self.daemon.own_dir = True
        self.await_step(600)
        self.expect_right("DAEMON_LOST", "SESSION_LOST")


@host_only("the examples run on streams of the host backend")
class RecoverInClients(Recover):
    """The same where launches run on the ranks' own streams: a late rank ends them, and the job renews its group."""

    extra = ("--placement", "client", "--launch-deadline-ms", "1500")

    def test_a_late_rank(self):
        for rank, step in ((1, 200), (3, 600)):
            self.await_step(step)
            self.job[rank].process.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            self.job[rank].process.send_signal(signal.SIGCONT)
        self.expect_right("RANK_LATE")

    # An engine's end ends no launch here; the others are alike.
    test_a_killed_engine = test_an_evicted_rank = test_undisturbed = None


@host_only("emulated GPUs are enough")
class Digits(TandemTest):
    """tandem-train-digits finds its daemon by the environment, and a short training passes its own checks."""

    gpus = 2

    def test_two_epochs(self):
        program = [os.path.join(BIN, "tandem-train-digits"), "--world", "2", "--epochs", "2"]
        for more in ((), ("--runtime-dir=",), ("--runtime-dir=", "--seed", "2")):
            with self.subTest(more=more):
                done = subprocess.run(
                    [*program, *more],
                    env={**os.environ, "TANDEM_RUNTIME_DIR": self.daemon.runtime_dir},
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
