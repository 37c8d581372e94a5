"""Runs from an installed wheel alone: starts its tandemd on the host backend, and two ranks (threads) reduce a tensor through it.

python wheel_smoke.py [--plain] [--beside LIBRARY]; needs no numpy. --plain starts `tandemd --backend host` and says nobody where it is,
as a user without root does. --beside loads a library into the whole process before Tandem's.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import tandem
import tandem._c

PATIENCE_S = 30
PROGRAMS = os.path.dirname(sys.executable)


def rank(number):
    """One rank: 16 elements of number + 1, summed."""
    with (
        tandem.connect() as client,
        client.join("smoke", world_size=2, rank=number, job_key="k" * 16) as group,
    ):
        x, y = group.empty((16,)), group.empty((16,))
        (ctypes.c_float * 16).from_address(x.data)[:] = [number + 1.0] * 16
        with group.prepare("sum", "all_reduce", [("input", x), ("output", y)]) as plan:
            plan.launch(x, y)
            plan.wait(PATIENCE_S)
            return list((ctypes.c_float * 16).from_address(y.data)), plan.explain()


def check_libraries(beside):
    """gRPC, and all that it needs, is the wheel's own, under names that no other copy has."""
    assert "_bundle" in tandem._c.library_path(), f"the library is not the wheel's: {tandem._c.library_path()}"
    with open("/proc/self/maps") as file:
        mapped = {
            line.split(maxsplit=5)[5].strip() for line in file if line.rstrip().endswith((".so",)) or ".so." in line
        }
    other = [path for path in mapped if re.search(r"grpc|protobuf|absl|re2|cares|upb", os.path.basename(path))]
    assert any(re.search(r"libgrpc\+\+(_unsecure)?-", path) for path in other), mapped
    for path in other:
        if path == beside:
            continue
        assert "tandem_gpu.libs" in path or "_bundle" in path, f"{path} is not the wheel's"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--beside")
    arguments = parser.parse_args()
    if arguments.beside:
        ctypes.CDLL(arguments.beside, ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.join(PROGRAMS, "tandemd"), "--backend", "host"]
        if not arguments.plain:
            os.environ["TANDEM_RUNTIME_DIR"] = folder
            command += ["--socket-group", "", "--runtime-dir", folder, "--state-dir", os.path.join(folder, "state")]
        daemon = subprocess.Popen(command)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while subprocess.run([os.path.join(PROGRAMS, "tandemctl"), "stats"], capture_output=True).returncode != 0:
                assert daemon.poll() is None, f"tandemd ended with {daemon.returncode}"
                assert time.monotonic() < deadline, "tandemd does not answer"
                time.sleep(0.1)
            with ThreadPoolExecutor(2) as pool:
                results = list(pool.map(rank, range(2)))
            check_libraries(arguments.beside)
            for values, _ in results:
                assert values == [3.0] * 16, values
            print(results[-1][1])
        finally:
            daemon.terminate()
            daemon.wait(PATIENCE_S)
    print("the wheel works")


if __name__ == "__main__":
    main()
