"""Tunes the shapes of cases.py on this machine's GPUs: one `tandemctl tune` through a separate tandemd, into one table.

    python3 tune.py --world 4 --out tuning-4xh200.toml [--groups matmul,fp8,blocks,collectives] [--small] [--only REGEX] [-- OPTION …]
    python3 tune.py --world 4 --list          # the cases as `tandemctl tune --from` reads them; no GPU needed

What stands after -- goes to tandemctl tune. A table that ships goes to deploy/tuning. Run it under with_mps, as jobs should be.
"""

import argparse
import os
import shutil
import subprocess
import sys

from cases import chosen
from node import BIN, Daemon

OPS = {
    "ag": "all_gather_matmul",
    "rs": "matmul_reduce_scatter",
    "ar": "matmul_all_reduce",
    "ag8": "all_gather_matmul",
    "rs8": "matmul_reduce_scatter",
}


def lines(case, world):
    """A case in the words of `tandemctl tune --from`: none for one that is no plan of its own; collectives also on symmetric
    tensors, which they may run on by other algorithms."""
    if case.kind in OPS:
        dtype = "f8e4m3" if case.scales else "bf16"
        scales = f" --scales {case.scales}_wise --slow-accumulation" if case.scales else ""
        return [f"--op {OPS[case.kind]} --shape {case.m},{case.n},{case.k} --dtype {dtype}{scales}"]
    if case.size:
        elements = case.size // 2 // (world if case.kind == "all_gather" else 1)  # --shape is one rank's input
        plain = f"--op {case.kind} --shape {elements} --dtype bf16"
        return [plain, plain + " --symmetric"]
    return []


def all_lines(options):
    found = chosen(options.world, options.groups.split(","), options.small, options.only)
    return [line for case in found for line in lines(case, options.world)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--out")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--groups", default="matmul,fp8,blocks,collectives")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--time-limit", type=float, default=540, help="seconds; what is left is named")
    parser.add_argument("tune_options", nargs="*")
    options = parser.parse_args()
    text = "".join(line + "\n" for line in all_lines(options))
    if options.list:
        print(text, end="")
        return 0
    if not options.out:
        parser.error("--out is needed")
    cases_file, failed = options.out + ".cases", False
    with open(cases_file, "w") as file:
        file.write(text)
    daemon = Daemon(options.out + ".tandemd.log")
    try:
        process = subprocess.Popen(
            [
                os.path.join(BIN, "tandemctl"),
                "--runtime-dir",
                daemon.runtime_dir,
                "--timeout",
                "30",
                "tune",
                "--from",
                cases_file,
                "--world",
                str(options.world),
                "--time-limit",
                str(options.time_limit),
                *options.tune_options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in process.stdout:
            print(line, end="", flush=True)
            failed |= ": FAILED: " in line
        status = process.wait()
        # Each case is kept as soon as it is measured: also what was before a failure makes a table.
        table = os.path.join(daemon.runtime_dir, "state", "tuning.toml")
        if os.path.exists(table):
            shutil.copy(table, options.out)
        print(daemon.ctl("tuning", "list").stdout, flush=True)
    finally:
        daemon.stop()
    # Cases for which the time was too short (status 6) have been named; the others make a table.
    return 1 if failed or status not in (0, 6) or not os.path.exists(options.out) else 0


if __name__ == "__main__":
    sys.exit(main())
