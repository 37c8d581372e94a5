"""Runs torch.ops.tandem from an installed wheel alone: two processes, gloo, the wheel's tandemd and its kernels for PyTorch. First
with a tandemd that runs, then with one that the ranks start.

python wheel_torch.py; the other processes are this program's own.
"""

import glob
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
WORLD = 2
PROGRAMS = os.path.dirname(sys.executable)


def rank(number, folder):
    """One rank: the op gives what torch's own collectives give, and the second call goes past Python."""
    import torch
    import torch.distributed as dist

    assert "tandem" in dist.Backend.backend_list, "torch has not found the wheel's entry points"
    for group, value in (
        ("vllm.general_plugins", "tandem.vllm:register"),
        ("sglang.srt.plugins", "tandem.sglang:register"),
    ):
        (found,) = importlib.metadata.entry_points(group=group, name="tandem")
        assert found.value == value and callable(found.load()), found
    import tandem.torch
    from tandem.torch import _groups, _native

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=WORLD)
    tandem.torch.configure(on_unavailable="error", rendezvous_timeout=PATIENCE_S)
    assert _native.kernels is not None and "_bundle" in _native.kernels.path, "the kernels are not the wheel's"
    torch.manual_seed(number)
    a, b = torch.randn(4, 6), torch.randn(6, 5)
    wanted = a @ b
    dist.all_reduce(wanted)
    for _ in range(2):
        got = torch.ops.tandem.matmul_reduce_scatter(a, b, "sum", 0, dist.group.WORLD.group_name)
        torch.testing.assert_close(got, wanted.chunk(WORLD)[number])
    assert _native.counts().launched == 1, _native.counts().launched
    tandem.torch.install()
    x = torch.full((5,), number + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [sum(range(1, WORLD + 1))] * 5, x
    assert tandem.torch.report().taken == 1, str(tandem.torch.report())
    own = _groups._state.daemons.started.get("host", "")
    assert own.startswith(os.environ["TMPDIR"]) == (not os.environ["TANDEM_RUNTIME_DIR"]), own
    dist.barrier()
    tandem.torch.detach()
    print("served", flush=True)
    os._exit(0)  # torch's own end aborts at times


def run_ranks(folder, runtime_dir):
    """Two ranks, which find the daemon there, or for "" start one."""
    environment = {"TANDEM_RUNTIME_DIR": runtime_dir, "TMPDIR": folder, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-B", __file__, str(number), folder],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LOCAL_RANK": str(number), **environment},
        )
        for number in range(WORLD)
    ]
    try:
        told = [one.communicate(timeout=2 * PATIENCE_S)[0] for one in ranks]
        assert all("served" in text for text in told), told
    finally:
        for one in ranks:
            one.kill()


def run_alone():
    """Without a daemon: the ranks' own ends after them, and leaves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(folder, "")
        deadline = time.monotonic() + PATIENCE_S
        while glob.glob(os.path.join(folder, "tandem-*/job-*")):
            assert time.monotonic() < deadline, "the ranks' tandemd does not end"
            time.sleep(0.1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TANDEM_RUNTIME_DIR"] = os.path.join(folder, "run")
        command = [
            os.path.join(PROGRAMS, "tandemd"),
            "--backend",
            "host",
            "--emulated-gpus",
            str(WORLD),
            "--socket-group",
            "",
        ]
        command += ["--runtime-dir", os.path.join(folder, "run"), "--state-dir", os.path.join(folder, "state")]
        daemon = subprocess.Popen(command)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while subprocess.run([os.path.join(PROGRAMS, "tandemctl"), "stats"], capture_output=True).returncode != 0:
                assert daemon.poll() is None and time.monotonic() < deadline, "tandemd does not answer"
                time.sleep(0.1)
            run_ranks(folder, os.environ["TANDEM_RUNTIME_DIR"])
        finally:
            daemon.terminate()
            daemon.wait(PATIENCE_S)
    if not os.path.exists("/run/tandem/lease.sock"):  # the node's own goes first
        run_alone()
    print("the wheel serves torch")


if __name__ == "__main__":
    rank(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main()
