"""Tandem beside what a user would pick instead, on the GPUs of this node.

    run.py --out FILE [--world 0] [--groups empty,matmul,…] [--rounds 30] [--small] [--only REGEX] [--arms REGEX] [--without-tandem]
        [--tandemd OPTION] [--ranks-per-gpu 1] [--seconds 500]
    run.py --list [--world 2] [--groups …] [--small] [--only REGEX]

A call for whose cases the time is too short names those that are left; the next one with the same FILE goes on with them.
Each world size gets its own ranks, one process a GPU, and all arms alternate in them. A rank that ends early or says
nothing for a while costs the arm at which it stood: the ranks are started again without it.

With several ranks on a GPU, launch costs show beside PyTorch's, and nothing of links. NCCL refuses such groups."""

import argparse
import json
import os
import secrets
import subprocess
import sys
import time

import cases
import node

SILENCE_S = 45
STARTS = 5


def gpu_count():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def environment(ranks_per_gpu):
    """Of a rank. Ranks of one GPU share its hardware queues, and PyTorch needs a setting for ranks that meet there."""
    shared = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    return {**os.environ, **(shared if ranks_per_gpu > 1 else {})}


class Ranks:
    """The processes of one job."""

    def __init__(self, options, world, runtime_dir, skip, done, seconds, folder):
        meet, key = os.path.join(folder, f"meet.{secrets.token_hex(4)}"), secrets.token_hex(16)
        here = os.path.dirname(os.path.abspath(__file__))
        self.logs, self.processes = [], []
        for rank in range(world):
            self.logs.append(os.path.join(folder, f"world{world}-rank{rank}.log"))
            command = (
                [
                    sys.executable,
                    "-u",
                    "-B",
                    os.path.join(here, "rank.py"),
                    "--rank",
                    str(rank),
                    "--world",
                    str(world),
                    "--meet",
                    meet,
                    "--out",
                    options.out,
                    "--groups",
                    options.groups,
                    "--rounds",
                    str(options.rounds),
                    "--job_key",
                    key,
                    "--runtime_dir",
                    runtime_dir,
                    "--skip",
                    json.dumps(skip),
                    "--done",
                    json.dumps(done),
                    "--seconds",
                    str(seconds),
                    "--ranks_per_gpu",
                    str(options.ranks_per_gpu),
                ]
                + ["--small"] * options.small
                + ["--only", options.only]
                + ["--arms", options.arms]
            )
            with open(self.logs[-1], "wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=log,
                        preexec_fn=node.die_with_parent,
                        env=environment(options.ranks_per_gpu),
                    )
                )

    def ended_well(self):
        return all(process.poll() == 0 for process in self.processes)

    def watch(self, until):
        """Until all have ended, or one has failed, or nobody has written for SILENCE_S. The fault, or None."""
        while not self.ended_well():
            codes = [process.poll() for process in self.processes]
            bad = [f"rank {rank} ended with {code}" for rank, code in enumerate(codes) if code]
            if bad:
                time.sleep(1)
                return ", ".join(bad)
            newest = max(os.stat(log).st_mtime for log in self.logs)
            if time.time() - newest > SILENCE_S or time.monotonic() > until:
                return "silence" if time.monotonic() <= until else "out of time"
            time.sleep(0.2)
        return None

    def stood_at(self):
        """(case, arm) that rank 0 was at, from its log; None before the first."""
        with open(self.logs[0], errors="replace") as log:
            stands = [
                line.split(maxsplit=2)[2].strip()
                for line in log
                if len(line.split(maxsplit=2)) == 3 and line.split()[1] in ("prepare", "measure")
            ]
        return stands[-1].rsplit(" / ", 1) if stands else None

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def tails(self, lines=12):
        texts = []
        for rank, path in enumerate(self.logs):
            with open(path, errors="replace") as log:
                texts.append(f"--- rank {rank}\n" + "".join(log.readlines()[-lines:]))
        return "\n".join(texts)


def finished_cases(path, world):
    if not os.path.exists(path):
        return []
    with open(path) as lines:
        results = [json.loads(line) for line in lines]
    return [result["case"] for result in results if result.get("world") == world and "case" in result]


def chosen(options, world):
    """Names of the cases, in their order."""
    return [case.name for case in cases.chosen(world, options.groups.split(","), options.small, options.only)]


def cases_left(options, world):
    """Names of the cases that FILE has no line of."""
    finished = set(finished_cases(options.out, world))
    return [name for name in chosen(options, world) if name not in finished]


def compare(options, world, folder, end, daemon_log):
    """All cases at one world size. True if none was lost."""
    skip, good = [], True
    for _ in range(STARTS):
        daemon = None
        left = end - time.monotonic()
        if left < 20:
            print(f"W={world}: out of time", flush=True)
            return False
        if not options.without_tandem:
            try:
                shared = [f"--testing-engines-per-gpu={options.ranks_per_gpu}"] if options.ranks_per_gpu > 1 else []
                daemon = node.Daemon(daemon_log, options.tandemd + shared)
                print(f"tandemd and its engines ready after {daemon.ready_seconds:.2f} s", flush=True)
            except RuntimeError as failure:
                print(f"without Tandem: {failure}", flush=True)
                good = False
        ranks = Ranks(
            options,
            world,
            daemon.runtime_dir if daemon else "",
            skip,
            finished_cases(options.out, world),
            left - 15,
            folder,
        )
        try:
            problem = ranks.watch(end)
        finally:
            ranks.kill()
            if daemon is not None:
                # When lanes did what, for a look at what a plan's time is made of.
                daemon.ctl("trace", "-o", os.path.join(folder, f"world{world}-trace.json"))
                print(daemon.ctl("stats").stdout, flush=True)
                if problem:
                    print(daemon.ctl("queue").stdout[-1500:], flush=True)
                daemon.stop()
        if problem is None:
            return good
        good = False
        where = ranks.stood_at()
        print(
            f"W={world}: {problem} at {where}\n{ranks.tails()}\n--- tandemd\n{daemon.tail(15) if daemon else ''}",
            flush=True,
        )
        if where is None or len(where) != 2 or where in skip:
            return False
        skip.append(where)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="a line a case is added to it")
    parser.add_argument("--list", action="store_true", help="names the cases and measures nothing; no GPU needed")
    parser.add_argument("--world", type=int, default=0, help="0: 2, 4 and 8, as far as there are GPUs")
    parser.add_argument("--groups", default=",".join(cases.GROUPS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--small", action="store_true", help="a few cases of each group")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose names it finds")
    parser.add_argument("--arms", default="", metavar="REGEX", help="arms whose names it finds")
    parser.add_argument("--without-tandem", action="store_true")
    parser.add_argument(
        "--tandemd", action="append", default=[], metavar="OPTION", help="of tandemd, as --speculative-launch=false"
    )
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=500, help="of all world sizes together")
    options = parser.parse_args()
    unknown = set(options.groups.split(",")) - set(cases.GROUPS + cases.MORE)
    if unknown:
        parser.error(f"no such groups: {', '.join(sorted(unknown))}")
    if not chosen(options, options.world or 2):
        parser.error(f"no case's name has {options.only}")
    if options.list:
        print("\n".join(chosen(options, options.world or 2)))
        return
    if not options.out:
        parser.error("--out is needed")
    options.out = os.path.abspath(options.out)
    worlds = [options.world] if options.world else [world for world in (2, 4, 8) if world <= gpu_count()]
    begun, good = time.monotonic(), True
    logs = os.path.splitext(options.out)[0] + "-logs"
    os.makedirs(logs, exist_ok=True)
    for index, world in enumerate(worlds):
        left = options.seconds - (time.monotonic() - begun)
        end = time.monotonic() + left / (len(worlds) - index)
        good &= compare(options, world, logs, end, os.path.join(logs, f"world{world}-tandemd.log"))
        if left := cases_left(options, world):
            print(f"W={world}: not measured, {len(left)} cases: {', '.join(left)}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
