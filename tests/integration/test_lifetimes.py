"""Two ranks make, use, drop, break off and fork at random (lifetimes_rank.py): every sum is right, and nothing is left or grows.

TANDEM_TEST_LIFETIMES is the number of groups. A library with AddressSanitizer is tried, too: its runtime is preloaded."""

import json
import os
import random
import socket
import subprocess
import sys
import unittest

from harness import BIN, TandemTest, host_only, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(BIN, "../lib/libtandem.so")
PACKAGE = os.path.join(HERE, "../../client/python/src")
WARM, GROUPS = 30, int(os.environ.get("TANDEM_TEST_LIFETIMES", "60"))
MOST_GROWTH = 8 << 20


def sanitizer():
    """The sanitizer that the library was built with, or an empty string."""
    with open(LIBRARY, "rb") as library:
        text = library.read()
    return next((name for name in ("asan", "tsan") if f"__{name}_init".encode() in text), "")


@host_only("its ranks read memory of the host backend")
class Lifetimes(TandemTest):
    gpus = 2

    def environment(self):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TANDEM_LIBRARY": LIBRARY}
        environment["TANDEM_RUNTIME_DIR"] = self.daemon.runtime_dir
        kind = sanitizer()
        if kind == "tsan":
            self.skipTest("Python does not run under ThreadSanitizer")
        if kind:
            find = ["gcc", "-print-file-name=libasan.so"]
            environment["LD_PRELOAD"] = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
            # Python keeps memory to its end.
            environment["ASAN_OPTIONS"] = "detect_leaks=0:" + environment.get("ASAN_OPTIONS", "")
        return environment

    def start(self):
        seed = str(random.randrange(1 << 30))
        print("seed", seed, flush=True)
        ends = socket.socketpair()
        self.ranks = []
        for rank, one in enumerate(ends):
            arguments = [str(rank), str(one.fileno()), seed, str(WARM), str(GROUPS)]
            self.ranks.append(
                subprocess.Popen(
                    [sys.executable, "-B", os.path.join(HERE, "lifetimes_rank.py"), *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=[one.fileno()],
                    env=self.environment(),
                )
            )
        for one in ends:
            one.close()
        self.addCleanup(self.end)

    def end(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()

    def usage(self):
        """Of the ranks, once they have ended their sessions, and of tandemd and its engines."""
        told = []
        for number, rank in enumerate(self.ranks):
            line = rank.stdout.readline()
            if not line:
                self.fail(f"rank {number} has ended with {rank.wait(60)}")
            told.append(json.loads(line))
        # Things that ranks have dropped end a little later.
        wait_until(lambda: not any(self.objects().values()), 60, "something is left")
        for pid in (self.daemon.process.pid, *self.daemon.engine_pids()):
            with open(f"/proc/{pid}/statm") as file:
                pages = int(file.read().split()[1])
            told.append({"bytes": pages * os.sysconf("SC_PAGE_SIZE"), "descriptors": self.daemon.descriptors_of(pid)})
        return told

    def objects(self):
        stats = self.daemon.ctl_json("stats")
        return {key: stats[key] for key in ("sessions", "groups", "plans", "segment_bytes")}

    def go_on(self):
        for rank in self.ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()

    def test_nothing_is_left_or_grows(self):
        self.start()
        before = self.usage()
        self.go_on()
        after = self.usage()
        self.go_on()
        self.assertEqual([rank.wait(60) for rank in self.ranks], [0, 0])
        for old, new in zip(before, after, strict=True):
            self.assertLessEqual(new["descriptors"], old["descriptors"] + 8, (before, after))
            if not sanitizer():  # which keeps freed memory
                self.assertLess(new["bytes"] - old["bytes"], MOST_GROWTH, (before, after))


if __name__ == "__main__":
    unittest.main()
