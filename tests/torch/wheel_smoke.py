"""Runs from an installed wheel alone: starts its tandemd on the host backend, and two ranks (threads) reduce a tensor through it.

python wheel_smoke.py [PREFIX]; the programs are looked for in PREFIX/bin, else beside the interpreter. Needs no numpy.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import tandem
import tandem._c

PATIENCE_S = 30


def rank(number, runtime_dir):
    """One rank: 16 elements of number + 1, summed."""
    with (
        tandem.connect(runtime_dir) as client,
        client.join("smoke", world_size=2, rank=number, job_key="k" * 16) as group,
    ):
        x, y = group.empty((16,)), group.empty((16,))
        (ctypes.c_float * 16).from_address(x.data)[:] = [number + 1.0] * 16
        with group.prepare("sum", "all_reduce", [("input", x), ("output", y)]) as plan:
            plan.launch(x, y)
            plan.wait(PATIENCE_S)
            return list((ctypes.c_float * 16).from_address(y.data)), plan.explain()


def main():
    programs = os.path.join(sys.argv[1], "bin") if len(sys.argv) > 1 else os.path.dirname(sys.executable)
    assert "_bundle" in tandem._c.library_path(), f"the library is not the wheel's: {tandem._c.library_path()}"
    with tempfile.TemporaryDirectory() as runtime_dir:
        daemon = subprocess.Popen(
            [
                os.path.join(programs, "tandemd"),
                "--backend",
                "host",
                "--emulated-gpus",
                "2",
                "--socket-group",
                "",
                "--runtime-dir",
                runtime_dir,
                "--state-dir",
                os.path.join(runtime_dir, "state"),
            ]
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            stats = [os.path.join(programs, "tandemctl"), "--runtime-dir", runtime_dir, "stats"]
            while subprocess.run(stats, capture_output=True).returncode != 0:
                assert daemon.poll() is None, f"tandemd ended with {daemon.returncode}"
                assert time.monotonic() < deadline, "tandemd does not answer"
                time.sleep(0.1)
            with ThreadPoolExecutor(2) as pool:
                results = list(pool.map(rank, range(2), [runtime_dir] * 2))
            for values, _ in results:
                assert values == [3.0] * 16, values
            print(results[-1][1])
        finally:
            daemon.terminate()
            daemon.wait(PATIENCE_S)
    print("the wheel works")


if __name__ == "__main__":
    main()
