"""Runs jobs on the machine's GPUs, several beside each other where they fit, and ends what runs over its limit.

In the order of the list. A job that must wait for GPUs lets later ones go first only if those will have ended by then. A job
gets its GPUs by CUDA_VISIBLE_DEVICES, a temporary folder, and a mark in its environment: whatever carries the mark
when the job has ended (a server that went to the background, say) is killed.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

from jobs import Job

MARK = "TANDEM_RUN_MARK"
GRACE_S = 10  # from SIGTERM to SIGKILL


def marked(mark):
    """The processes that carry the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:  # ended meanwhile, or another user's
                pass
    return found


class Running:
    """A job under way."""

    def __init__(self, job, gpus, bundle, log_path, stdout_path, limit):
        self.job, self.gpus, self.log_path, self.limit = job, gpus, log_path, limit
        self.mark = secrets.token_hex(8)
        self.begun = time.monotonic()
        self.asked_to_end = None  # when
        self.timed_out = False
        self.folder = tempfile.mkdtemp(prefix="tandem-run.")
        os.chmod(self.folder, 0o755)
        environment = {**os.environ, **job.environment, MARK: self.mark, "TMPDIR": self.folder}
        if gpus and gpus[0]:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        command = [os.path.join(bundle, "with_mps"), *job.command] if job.mps else job.command
        with open(log_path, "wb") as log, open(stdout_path or os.devnull, "wb") as own:
            try:
                self.process = subprocess.Popen(
                    command,
                    cwd=os.path.join(bundle, job.folder),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=own if stdout_path else log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as problem:
                log.write(f"cannot run: {problem}\n".encode())
                self.process = None

    @property
    def seconds(self):
        return time.monotonic() - self.begun

    def ended(self):
        """Its exit status (127: it could not be started), or None; asks it to end, and then ends it, when its time is up."""
        if self.process is None:
            return 127
        code = self.process.poll()
        if code is not None:
            return code
        if self.seconds > self.limit:
            self.timed_out = True
            self.end()
        return None

    def end(self):
        now = time.monotonic()
        if self.asked_to_end is None:
            self.asked_to_end = now
            self._signal(signal.SIGTERM)
        elif now - self.asked_to_end > GRACE_S:
            self._signal(signal.SIGKILL)

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)  # its session's first group
        except ProcessLookupError:
            pass

    def clean(self):
        """Once it has ended: kills what it has left behind. How many those were."""
        left = 0
        for _ in range(50):
            pids = marked(self.mark)
            if not pids:
                break
            left = max(left, len(pids))
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


def may_start(job, waiting, running, free, alone, now):
    """Whether `job` may start now. `waiting`: jobs before it that could not. `running`: of Running."""
    if job.gpus > len(free) or alone or (job.alone and running):
        return False
    for first in waiting:
        if first.gpus <= len(free) and not first.alone:
            continue  # it waits for one before it, not for GPUs
        # When the one before it will have its GPUs, by what is expected of those that run.
        ends = sorted((max(now, one.begun + one.job.expect), len(one.gpus)) for one in running)
        have, at = len(free), now
        for end, gpus in ends:
            if have >= first.gpus and not first.alone:
                break
            have, at = have + gpus, end
        if now + job.expect > at:
            return False
    return True


@dataclass
class Expected:
    """A job in an estimate: as may_start sees one under way."""

    job: Job
    gpus: list
    begun: float


def estimate(jobs, count):
    """When each job begins, in seconds, on `count` GPUs if all take what is expected; and when the last one ends."""
    pending = [job for job in jobs if job.gpus <= count]
    free, running, begins, now = list(range(count)), [], {}, 0.0
    while pending or running:
        waiting = []
        for job in pending:
            if not may_start(job, waiting, running, free, any(one.job.alone for one in running), now):
                waiting.append(job)
                continue
            running.append(Expected(job, free[: job.gpus], now))
            free, begins[job.name] = free[job.gpus :], now
        pending = waiting
        first = min(running, key=lambda one: one.begun + one.job.expect)
        now = first.begun + first.job.expect
        running.remove(first)
        free += first.gpus
    return begins, now


class Schedule:
    """Runs jobs; `report` has begun(running), ended(running, code, left_behind), left_out(job, why)."""

    def __init__(self, bundle, results, gpus, report, budget=None):
        self.bundle, self.results, self.report = bundle, results, report
        self.order, self.free, self.count = list(gpus), list(gpus), len(gpus)
        self.until = time.monotonic() + budget - GRACE_S if budget else None
        self.running, self.stopped = [], False

    def stop(self):
        """Ends what runs, and starts nothing more."""
        self.stopped = True

    def run(self, jobs):
        pending = []
        for job in jobs:
            why = f"needs {job.gpus} GPUs" if job.gpus > self.count else ""
            if job.needs and not os.path.exists(job.needs):
                why = f"no {job.needs}"
            if why:
                self.report.left_out(job, why)
            else:
                pending.append(job)
        while pending or self.running:
            self._reap()
            if self.stopped:
                for job in pending:
                    self.report.left_out(job, "stopped", later=True)
                pending = []
                for one in self.running:
                    one.end()
            pending = self._start(pending)
            time.sleep(0.05)

    def _left(self):
        return float("inf") if self.until is None else self.until - time.monotonic()

    def _start(self, pending):
        waiting = []
        for job in pending:
            if job.expect > self._left():
                self.report.left_out(job, "no time left", later=True)
                continue
            alone = any(one.job.alone for one in self.running)
            if not may_start(job, waiting, self.running, self.free, alone, time.monotonic()):
                waiting.append(job)
                continue
            gpus, self.free = self.free[: job.gpus], self.free[job.gpus :]
            one = Running(
                job,
                gpus,
                self.bundle,
                os.path.join(self.results, f"{job.name}.log"),
                os.path.join(self.results, job.stdout) if job.stdout else None,
                min(job.limit, self._left()),
            )
            self.running.append(one)
            self.report.begun(one)
        return waiting

    def _reap(self):
        for one in list(self.running):
            code = one.ended()
            if code is not None:
                self.running.remove(one)
                self.free = sorted(
                    self.free + one.gpus, key=self.order.index
                )  # a job's first GPU is the first by any count
                self.report.ended(one, code, one.clean())
