"""Runs the benchmark programs against daemons of their own and prints their JSON lines."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

BIN = sys.argv[1]


class Daemon:
    def __init__(self, gpus):
        self.runtime_dir = tempfile.mkdtemp(prefix="tandem-bench.")
        self.log = open(os.path.join(self.runtime_dir, "tandemd.log"), "wb")
        self.process = subprocess.Popen(
            [
                os.path.join(BIN, "tandemd"),
                "--backend",
                "host",
                "--emulated-gpus",
                str(gpus),
                "--runtime-dir",
                self.runtime_dir,
                "--state-dir",
                os.path.join(self.runtime_dir, "state"),
                "--metrics-listen",
                "127.0.0.1:0",
                "--quotas-tensors",
                "100000",
                "--quotas-plans",
                "100000",
            ],
            stdout=self.log,
            stderr=self.log,
        )
        deadline = time.monotonic() + 30
        while (
            subprocess.run(
                [os.path.join(BIN, "tandemctl"), "--runtime-dir", self.runtime_dir, "stats"], capture_output=True
            ).returncode
            != 0
        ):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("tandemd does not answer: " + open(self.log.name).read()[-2000:])
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)

    def engines(self):
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        ).stdout.split()
        return [int(child) for child in children]


def program(name, *arguments):
    return subprocess.run([os.path.join(BIN, name), *arguments]).returncode


def report(name, samples, unit):
    samples = sorted(samples)
    print(
        json.dumps(
            {
                "name": name,
                "value": samples[len(samples) // 2],
                "unit": unit,
                "samples": len(samples),
                "p10": samples[len(samples) // 10],
                "p90": samples[len(samples) * 9 // 10],
            }
        ),
        flush=True,
    )


def cpu_seconds(pids):
    """By the scheduler's account, in nanoseconds: ticks are too coarse for processes that sleep."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
    return total / 1e9


def wakeups(pid):
    """How often the process's main thread, which is an engine's only one that polls, has gone to sleep."""
    for line in open(f"/proc/{pid}/task/{pid}/status"):
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    return 0


def rss_mib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def scrape(daemon):
    """Seconds of each of 21 scrapes."""
    with open(daemon.log.name) as log:
        port = re.search(r"metrics are served at \S+ port=(\d+)", log.read()).group(1)
    seconds = []
    for _ in range(21):
        start = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
            reply.read()
        seconds.append(time.monotonic() - start)
    return seconds


def hold(daemon, sessions, tensors, plans, keep_graphs):
    process = subprocess.Popen(
        [
            os.path.join(BIN, "bench_footprint"),
            daemon.runtime_dir,
            str(sessions),
            str(tensors),
            str(plans),
            str(int(keep_graphs)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    if process.stdout.readline().strip() != b"full":
        raise RuntimeError("bench_footprint failed")
    return process


def release(holder):
    holder.stdin.close()
    holder.wait(60)


def cpu_model():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def idle(daemon, cpu_name, wakeups_name):
    family = [daemon.process.pid] + daemon.engines()
    time.sleep(2)
    cpu, woken = [], []
    for _ in range(5):
        before, counts, start = cpu_seconds(family), [wakeups(pid) for pid in daemon.engines()], time.monotonic()
        time.sleep(2)
        seconds = time.monotonic() - start
        cpu.append(100 * (cpu_seconds(family) - before) / seconds)
        woken += [(wakeups(pid) - count) / seconds for pid, count in zip(daemon.engines(), counts)]
    report(cpu_name, cpu, "%")
    report(wakeups_name, woken, "1/s")


def main():
    print(
        json.dumps(
            {
                "name": "machine",
                "cpu": cpu_model(),
                "cores": os.cpu_count(),
                "load_before": round(os.getloadavg()[0], 2),
            }
        ),
        flush=True,
    )
    failed = program("bench_ring") + program("bench_planner")
    with Daemon(8) as daemon:
        failed += program("bench_launch", daemon.runtime_dir, *[str(pid) for pid in daemon.engines()])
    with Daemon(8) as daemon:
        holder = hold(daemon, 64, 10000, 1000, keep_graphs=False)
        report("tandemd_rss_mib", [rss_mib(daemon.process.pid)], "MiB")
        report("scrape_ms", [1000 * seconds for seconds in scrape(daemon)], "ms")
        idle(daemon, "idle_cpu_percent", "idle_wakeups_per_engine_per_s")
        release(holder)
    with Daemon(8) as daemon:
        # Captured launches live, none of them replayed: polling every 50 us is what the design allows for.
        holder = hold(daemon, 8, 0, 0, keep_graphs=True)
        idle(daemon, "captured_cpu_percent", "captured_wakeups_per_engine_per_s")
        release(holder)
    print(json.dumps({"name": "load_after", "value": round(os.getloadavg()[0], 2)}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
