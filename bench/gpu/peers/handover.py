"""The hand-over from a client's stream to an engine and back: bare (bare_handover), then through tandemd
(bench_handover), in one sitting. JSON lines on standard output; start-up times and the engines' memory too."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import node


def engine_memory(daemon):
    """{pid: MiB of GPU memory} by nvidia-smi; empty where it has no list."""
    listed = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
    )
    pids = {engine.get("pid") for engine in daemon.engines()}
    found = {}
    for line in listed.stdout.splitlines():
        pid, _, used = line.partition(",")
        if pid.strip().isdigit() and used.strip().isdigit() and str(int(pid)) in {str(p) for p in pids}:
            found[int(pid)] = int(used)
    return found


def figure(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", default="")
    parser.add_argument("--worlds", default="1,2,4", help="those that there are not GPUs enough for are left out")
    options = parser.parse_args()
    good = subprocess.run([os.path.join(node.BIN, "bare_handover"), options.label], timeout=60).returncode == 0
    log = os.path.join(tempfile.gettempdir(), f"tandem-handover.{os.getpid()}.log")
    daemon = node.Daemon(log)
    try:
        figure(f"{options.label}: tandemd and its engines ready", round(daemon.ready_seconds, 3), "s")
        for pid, used in engine_memory(daemon).items():
            figure(f"{options.label}: GPU memory of idle engine {pid}", used, "MiB")
        pids = [str(engine["pid"]) for engine in daemon.engines()]
        for world in options.worlds.split(","):
            if int(world) > len(pids):
                continue
            done = subprocess.run(
                [
                    os.path.join(node.BIN, "bench_handover"),
                    daemon.runtime_dir,
                    world,
                    options.label,
                    *pids[: int(world)],
                ],
                timeout=60,
            )
            good &= done.returncode == 0
    finally:
        print(daemon.tail(20), file=sys.stderr)
        daemon.stop()
        os.unlink(log)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
