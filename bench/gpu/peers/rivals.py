"""Rivals that the node's own packages lack: libraries in the folder that bench/gpu/rivals makes, named by TANDEM_RIVALS.

TANDEM_PEERS_NCCL names another libnccl.so.2 than the folder's."""

import os

SET_UP = "set-up"  # in the place of a case, where a run stood


def nccl_path():
    """The newer NCCL, or None."""
    folder = os.environ.get("TANDEM_RIVALS")
    return os.environ.get("TANDEM_PEERS_NCCL") or (os.path.join(folder, "nccl/libnccl.so.2") if folder else None)


def set_up(bench, name, make, absent):
    """The result of make(), on all ranks or on none. Why there is none goes to `absent` by its name, alike on all ranks."""
    # run.py reads where a run stood when it hung or crashed, and starts it again without.
    bench.log(f"prepare {SET_UP} / {name}")
    made, problem = None, None
    if (SET_UP, name) in bench.skip:
        problem = "ended an earlier run"
    else:
        try:
            made = make()
        except Exception as failure:
            problem = f"{type(failure).__name__}: {str(failure)[:400]}"
    problems = [text for text in bench.gather(problem) if text]
    if not problems:
        return made
    absent[name] = problems[0]
    bench.log(f"no {name}: {problems[0]}")
    return None


def every_windows(bench, size, absent):
    """NCCL's windows: torch's library's and the newer one's, as far as they are there."""
    from nccl_windows import Windows

    def windows(path=None):
        if path and os.environ.get("NCCL_NVLS_ENABLE") != "0":
            raise RuntimeError("NCCL_NVLS_ENABLE is not 0: it would use multicast")
        return Windows(bench.rank, bench.world, bench.device, size, bench.agree, path)

    found = [set_up(bench, "NCCL windows", windows, absent)]
    if path := nccl_path():
        found.append(set_up(bench, "newer NCCL", lambda: windows(path), absent))
    found = [made for made in found if made is not None]
    bench.log(f"windows of NCCL {', '.join(made.version for made in found) or 'are not there'}")
    return found


def flashinfer(bench, absent):
    """FlashInfer and vLLM's part of it, each None where it is not there."""
    folder = os.environ.get("TANDEM_RIVALS")
    if not folder:
        return None, None
    from flashinfer_side import FlashInfer
    from vllm_side import Vllm

    rank, world, agree = bench.rank, bench.world, bench.agree
    return (
        set_up(bench, "FlashInfer", lambda: FlashInfer(rank, world, folder, agree), absent),
        set_up(bench, "FlashInfer's vLLM", lambda: Vllm(rank, world, bench.device, folder, agree), absent),
    )
