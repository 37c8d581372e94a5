"""Prints the map of the tree for CONTRIBUTING.md: each room, its purpose, and the rooms that it includes.

The rooms and their order are those of test_includes.py, so map and rule cannot differ. `tree_map.py --write` renews the map."""

import os
import sys

import test_includes
from test_includes import INNER, ROOMS

PAGE = "CONTRIBUTING.md"
BEGIN, END = "<!-- map: tests/source/tree_map.py --write -->\n", "<!-- end of map -->\n"
NOTHING = "nothing"

PURPOSE = {
    "common/include": "the public headers that need nothing: status, dtypes, requests",
    "client/include": "the public headers of the library, C++ and C",
    "common": "clocks, sockets, processes, text: one idea a file",
    "proto": "the protocol, one package an audience: clients, operators, engines",
    "ipc": "memory of two processes: channel, order log, arrival table, statistics",
    "program": "rank program, codec, kernel phases, tile layouts",
    "program/verifier": "the proof that programs have no race and no deadlock",
    "drivers": "one wrapper a vendor library, with mock and tests",
    "kernels": "`backend.h`: the seam between backends",
    "kernels/host": "the host backend: memfds, threads, loops",
    "kernels/cuda": "the CUDA backend",
    "runtime": "states of launches on the callers' streams",
    "runtime/executor": "runs a rank program, for engines and clients",
    "engine/memory": "mapped segments of an engine",
    "engine/launch": "matching, order log, start and end of launches",
    "engine": "one GPU: commands, channels, lanes",
    "daemon/topology": "GPUs and links, by NVML or a file",
    "daemon/config": "keys and flags",
    "daemon/planner": "requests to plans: problem, cost, choice, programs",
    "daemon/supervisor": "engine processes",
    "daemon/control": "sessions, groups, joins, memory, plans, channels; knows no gRPC",
    "daemon/service": "gRPC and the lease socket",
    "daemon/observe": "metrics, doctor, traces, health, the web page's server",
    "daemon/admin": "tandemctl's calls",
    "daemon/main": "the process that owns all of the daemon",
    "client/device": "streams and memory of a measuring rank",
    "client/lib": "the library",
    "client/grpc_plugin": "the library's calls to tandemd; loaded with local symbols",
    "client/ranks": "ranks as processes: job keys, requests as JSON",
    "client/torch": "kernels of `torch.ops.tandem` on PyTorch's stable ABI",
    "client/jax": "calls of `tandem.jax` as targets of XLA's foreign function interface",
    "client/nccl": "NCCL's C API in front of NCCL: `libtandem-nccl.so`",
    "client/tune": "the rank process of `tandemctl tune`",
    "client/tandemctl": "the operators' program",
    "examples": "programs that use the public headers only",
}
# Folders of a room, from the ground up.
INSIDE = {
    "client/lib": {
        "base": "parts without a session: channel, launch state, registrations",
        "cuda": "streams on CUDA",
        "host": "streams and graphs on the host backend",
        "client_launch": "launches on the caller's stream: group, queue, failures",
        "devices": "the backends that a build has",
        ".": "the C++ API's handles",
        "c_api": "the C API over the handles",
    },
    "daemon/control": {
        "base": "parts without records: `Barrier`, `Ledger`, `TransferTable`",
        "records": "`Registry`, `ControlCore`, `GroupLifecycle`: records, states of a group",
        "memory": "segments, clients' memory, memory of client plans",
        "groups": "`GroupInstaller`, `GroupService`: installation on engines, end",
        "client_groups": "`FailureService`, `RenewalService`: failures and renewals of client plans",
        "channels": "`ChannelService`, `LaunchService`: channels, launches by gRPC",
        "tensors": "`TensorService`: symmetric tensors",
        "plans": "`PlanService`, `WorkspaceService`, `TuningService`",
        "engines": "`EngineService`, `GroupRestorer`: engines' reports, groups restored",
        "joins": "`JoinService`: ranks meet under a name; the last one makes the group",
        "sessions": "`SessionService`, `EventService`: attach, tokens, events, ends",
        "restart": "`StateWriter`, `Adoption`: the journal, an earlier tandemd's state",
        ".": "`Control`: the facade over the services",
    },
    "daemon/planner": {
        "types": "the plan's own types",
        "problem": "a request checked against its group",
        "tuning": "tables of measured times",
        "forms": "what can run: packets, skinny kernels, parts of products",
        "cost": "predicted and measured times",
        "choice": "algorithm and placement, with reasons",
        "families": "the programs of each algorithm",
        "members": "the plan of one number of rows of a family",
        ".": "a plan from requests",
    },
    "engine": {
        "memory": "mapped segments",
        "launch": "matching, order log, lanes",
        ".": "commands, channels, the loop",
        "backends": "the backends that a build has",
        "main": "the process",
    },
    "kernels/cuda": {
        "device": "the device; copies, sums, norms, waits",
        "collectives": "phases, packets, NCCL",
        "fused": "the fused matmul",
        "skinny": "the fused matmul of few rows",
        "matmul": "products by cuBLASLt",
        "lane": "a lane's operations",
        "client_launch": "a client's launch: local work and one counting kernel",
        ".": "the backend",
    },
}
# Folders without rules of includes.
OTHERS = {
    "client/abi": "the C ABI's recorded layout",
    "client/bundle": "copies of the gRPC plugin's libraries, for packages and the wheel",
    "client/python": "the Python package and its PyTorch part, by ctypes",
    "client/tests": "tests of the client library",
    "tests": "tests of whole processes; unit tests stand beside their code",
    "bench": "benchmarks, their results and figures",
    "cmake": "functions and checks of the build",
    "deploy": "packages, units, configuration, tuning tables, quickstart",
    "docs": "pages for users, operators and engineers",
}


def reduced(room):
    """The rooms that `room` includes, less those that one of these includes, too. A room and one inside it are `room/*`."""
    below = {"common/include"}
    for other in ROOMS[room]:
        below.update(_all_below(other))
    left = [other for other in ROOMS[room] if other not in below]
    both = [other for other in left if any(inner.startswith(f"{other}/") for inner in left)]
    return [
        f"{one}/*" if one in both else one for one in left if not one.startswith(tuple(f"{outer}/" for outer in both))
    ]


def _all_below(room):
    found = set(ROOMS[room])
    for other in ROOMS[room]:
        found |= _all_below(other)
    return found


def the_map():
    """The map as Markdown; fails with KeyError where a room or a folder has no purpose."""
    lines = ["| room | purpose | includes, with what these include |", "|---|---|---|"]
    for room in ROOMS:
        below = ", ".join(f"`{other}`" for other in reduced(room)) or NOTHING
        lines.append(f"| `{room}/` | {PURPOSE[room]} | {below} |")
    for folder, purpose in OTHERS.items():
        lines.append(f"| `{folder}/` | {purpose} | – |")
    lines += ["", "Inside these rooms a folder includes those above it only:", ""]
    lines += ["| room | folder | purpose |", "|---|---|---|"]
    for room, order in INNER.items():
        for folder in order:
            shown = "the room itself" if folder == "." else f"`{folder}/`"
            lines.append(f"| {f'`{room}/`' if folder == order[0] else ''} | {shown} | {INSIDE[room][folder]} |")
    return "\n".join(lines) + "\n"


def with_map(page):
    """The page's text with the map as it is now; ValueError where the page has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no line {BEGIN.strip()!r} with {END.strip()!r} below it")
    return f"{before}{begin}\n{the_map()}\n{end}{after}"


def main():
    if sys.argv[1:] != ["--write"]:
        print(the_map(), end="")
        return
    path = os.path.join(test_includes.ROOT, PAGE)
    with open(path) as file:
        page = file.read()
    page = with_map(page)
    with open(path, "w") as file:
        file.write(page)


if __name__ == "__main__":
    main()
