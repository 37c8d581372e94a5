"""Runs the benchmark programs against daemons of their own and prints their JSON lines."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

BIN = sys.argv[1]


class Daemon:
    def __init__(self, gpus):
        self.runtime_dir = tempfile.mkdtemp(prefix="tandem-bench.")
        self.log = open(os.path.join(self.runtime_dir, "tandemd.log"), "wb")
        self.process = subprocess.Popen(
            [os.path.join(BIN, "tandemd"), "--backend", "host", "--emulated-gpus", str(gpus), "--runtime-dir",
             self.runtime_dir, "--state-dir", os.path.join(self.runtime_dir, "state"), "--quotas-tensors", "100000",
             "--quotas-plans", "100000"], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 30
        while subprocess.run([os.path.join(BIN, "tandemctl"), "--runtime-dir", self.runtime_dir, "stats"],
                             capture_output=True).returncode != 0:
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

    def family(self):
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True,
                                  text=True).stdout.split()
        return [self.process.pid] + [int(child) for child in children]


def program(name, *arguments):
    return subprocess.run([os.path.join(BIN, name), *arguments]).returncode


def report(name, samples, unit):
    samples = sorted(samples)
    print(json.dumps({"name": name, "value": samples[len(samples) // 2], "unit": unit, "samples": len(samples),
                      "p10": samples[len(samples) // 10], "p90": samples[len(samples) * 9 // 10]}), flush=True)


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def rss_mib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def hold(daemon, sessions, tensors, plans):
    process = subprocess.Popen([os.path.join(BIN, "bench_footprint"), daemon.runtime_dir, str(sessions), str(tensors),
                                str(plans)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if process.stdout.readline().strip() != b"full":
        raise RuntimeError("bench_footprint failed")
    return process


def main():
    failed = program("bench_ring") + program("bench_planner")
    with Daemon(8) as daemon:
        failed += program("bench_launch", daemon.runtime_dir)
    with Daemon(8) as daemon:
        holder = hold(daemon, 64, 10000, 1000)
        report("tandemd_rss_mib", [rss_mib(daemon.process.pid)], "MiB")
        time.sleep(2)
        samples = []
        for _ in range(5):
            before, start = cpu_seconds(daemon.family()), time.monotonic()
            time.sleep(2)
            samples.append(100 * (cpu_seconds(daemon.family()) - before) / (time.monotonic() - start))
        report("idle_cpu_percent", samples, "%")
        holder.stdin.close()
        holder.wait(60)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
