"""Checkpoints and restores another process's GPU memory by the driver, as NVIDIA's cuda-checkpoint does.

    bench/torch/checkpoint.py PID

The process is locked, its GPU memory copied to host memory and given up, then restored and unlocked. A line for each of the four
calls with its milliseconds; the exit status is 1 where one failed. Driver 570 or later. The process's calls of CUDA wait meanwhile.
"""

import ctypes
import sys
import time

LOCK_MS = 10_000
# CUcheckpointLockArgs and the others: 64 bytes, whose first four are the lock's time limit in milliseconds.
ARGUMENTS = ctypes.c_uint32 * 16


def call(cuda, name, pid, first=0):
    arguments = ARGUMENTS(first)
    begun = time.perf_counter()
    code = getattr(cuda, f"cuCheckpointProcess{name}")(pid, ctypes.byref(arguments))
    took = 1e3 * (time.perf_counter() - begun)
    print(f"{name.lower()}: {'done' if code == 0 else f'error {code} of CUDA'}, {took:.1f} ms", flush=True)
    return code == 0


def main(pid):
    cuda = ctypes.CDLL("libcuda.so.1")
    if code := cuda.cuInit(0):
        sys.exit(f"cuInit: error {code} of CUDA")
    if not call(cuda, "Lock", pid, LOCK_MS):
        return 1
    restored = call(cuda, "Checkpoint", pid) and call(cuda, "Restore", pid)
    return 0 if call(cuda, "Unlock", pid) and restored else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
