"""The main job as a test: tandem-train-digits with four ranks, then with a rank killed and recovered, on 3 ranks, and on
an emulated hybrid cube mesh."""

import os
import subprocess
import sys

import harness

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/topology")


def train(daemon, *arguments):
    print("---", *arguments, flush=True)
    return subprocess.run([os.path.join(harness.BIN, "tandem-train-digits"), "--runtime-dir", daemon.runtime_dir,
                           *arguments], timeout=200).returncode


def main():
    failures = 0
    for daemon_arguments, runs in [
            ({"gpus": 4}, [[], ["--kill-rank", "2", "--at-epoch", "3"], ["--world", "3"],
                           ["--world", "1"]]),
            ({"gpus": 8, "extra": ["--topology-file", os.path.join(FIXTURES, "dgx-1v.toml")]},
             [["--world", "8"]])]:
        daemon = harness.Daemon(**daemon_arguments)
        try:
            for arguments in runs:
                if train(daemon, *arguments) != 0:
                    print(f"FAILED: {arguments}\n{daemon.tail()}")
                    failures += 1
        finally:
            daemon.stop()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
