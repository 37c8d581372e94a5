"""The main job as a test: tandem-train-digits on as many ranks as there are GPUs (four at most, unless ranks share them), then
with a rank killed and recovered, on 3 ranks and on one; on the host also on an emulated hybrid cube mesh."""

import os
import subprocess
import sys

import harness

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/topology")


def plan(gpus, cuda):
    """The runs for a machine of so many GPUs: daemons, by their arguments, each with its runs' options."""
    most = gpus if harness.ENGINES_PER_GPU > 1 else min(gpus, 4)
    runs = [["--world", str(most)]]
    if most > 1:
        runs.append(["--world", str(most), "--kill-rank", str(most // 2), "--at-epoch", "3"])
    runs += [["--world", str(world)] for world in (3, 1) if world < most]
    daemons = [({"gpus": most}, runs)]
    if not cuda:
        daemons.append(
            ({"gpus": 8, "extra": ["--topology-file", os.path.join(FIXTURES, "dgx-1v.toml")]}, [["--world", "8"]])
        )
    return daemons


def train(daemon, *arguments):
    """Whether a run was right: all checks passed, in time."""
    print("---", *arguments, flush=True)
    try:
        return (
            subprocess.run(
                [
                    os.path.join(harness.BIN, "tandem-train-digits"),
                    "--runtime-dir",
                    daemon.runtime_dir,
                    "--backend",
                    harness.BACKEND,
                    *arguments,
                ],
                timeout=200,
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False


def main():
    failures = 0
    for daemon_arguments, runs in plan(harness.GPUS, harness.CUDA):
        daemon = harness.Daemon(**daemon_arguments)
        try:
            for arguments in runs:
                if not train(daemon, *arguments):
                    print(f"{daemon.tail()}--- FAILED: {' '.join(arguments)}", flush=True)
                    failures += 1
        finally:
            daemon.stop()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
