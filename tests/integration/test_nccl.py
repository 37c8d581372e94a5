"""Programs of NCCL behind libtandem-nccl.so, on the host backend: ranks are processes (nccl/main.cc), and a stand-in takes NCCL's
place (nccl/fake_nccl.cc)."""

import os
import re
import secrets
import signal
import subprocess
import tempfile
import unittest

from harness import BIN, TandemTest, check_most_ranks, host_only, wait_until

MOST_RANKS = 4
BUILD = os.path.dirname(BIN)
LIBRARY = os.path.join(BUILD, "lib/libtandem-nccl.so")
FAKE = os.path.join(BUILD, "tests/bin/libtandem_fake_nccl.so")
PROGRAM = os.path.join(BIN, "tandem-test-nccl")
CACHE = os.path.join(BUILD, "CMakeCache.txt")
PATIENCE = 300


@host_only("NCCL's stand-in works on host memory")
@unittest.skipUnless(os.path.exists(PROGRAM), "the build has no libtandem-nccl.so")
class Nccl(TandemTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tandem-nccl.")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.ranks = []
        self.addCleanup(self.end)

    def end(self):
        for process in self.ranks:
            process.kill()
            process.communicate()

    def start(self, world, scenario, each=None, **env):
        check_most_ranks(type(self).__module__, world)
        name = secrets.token_hex(4)
        for rank in range(world):
            own = {
                "LD_PRELOAD": LIBRARY,
                "TANDEM_NCCL_LIBRARY": FAKE,
                "TANDEM_NCCL_DEVICE": "host",
                "TANDEM_RUNTIME_DIR": self.daemon.runtime_dir,
                "TANDEM_REPORT": "1",
                "TMPDIR": self.folder,
                "NCCL_ID": name,
                "RANK": str(rank),
                "WORLD": str(world),
                "LOCAL_RANK": str(rank),
                **{key: str(value) for key, value in env.items()},
                **(each(rank) if each else {}),
            }
            self.ranks.append(
                subprocess.Popen(
                    [PROGRAM, scenario],
                    env={**os.environ, **own},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return self.ranks[-world:]

    def outputs(self, ranks, statuses=None):
        """(stdout, stderr) of each rank, once all have ended."""
        found = []
        for rank, process in enumerate(ranks):
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                self.fail(f"rank {rank} does not end")
            expected = statuses[rank] if statuses else 0
            self.assertEqual(process.returncode, expected, f"rank {rank}: {out}{err}")
            found.append((out, err))
        return found

    def taken(self, error):
        """(taken, seen) of the line at the end."""
        line = re.search(r"ran (\d+) of (\d+) collectives of NCCL", error)
        self.assertIsNotNone(line, error)
        return int(line[1]), int(line[2])

    def test_random_calls_of_two_three_and_four_ranks_are_right(self):
        for world in (2, 3, 4):
            with self.subTest(world=world):
                ranks = self.start(world, "random", SEED=world, CALLS=150)
                for _, error in self.outputs(ranks):
                    taken, seen = self.taken(error)
                    self.assertEqual(seen, 150)
                    self.assertGreater(taken, 40, error)

    def test_all_ranks_take_the_same_calls(self):
        ranks = self.start(4, "random", SEED=7, CALLS=100)
        self.assertEqual(len({self.taken(error) for _, error in self.outputs(ranks)}), 1)

    def test_what_tandem_does_not_run_reaches_nccl_with_its_arguments(self):
        for out, _ in self.outputs(self.start(2, "groups")):
            lines = dict(line.split(": ", 1) for line in out.splitlines())
            calls = {what: [call for call in log.split(";") if call.strip()] for what, log in lines.items()}
            self.assertEqual(calls["one"], [])
            one, two = "AllReduce count=10 type=7 op=0 root=0", "AllReduce count=20 type=7 op=0 root=0"
            self.assertEqual(calls["two"], ["GroupStart", one, two, "GroupEnd"])
            p2p = ["Send count=3 type=0 op=0 root=1", "Recv count=4 type=0 op=0 root=0"]
            self.assertEqual(calls["p2p"], ["GroupStart", one, *p2p, "GroupEnd"])
            own = ["RedOpCreatePreMulSum", "AllReduce count=5 type=7 op=7 root=0"]
            self.assertEqual(calls["own operator"], own)
            nothing = "AllReduce count=0 type=7 op=0 root=0"
            self.assertEqual(calls["f64 and nothing"], ["AllReduce count=6 type=8 op=0 root=0", nothing])
            self.assertEqual(calls["newer"], ["PutSignal 12345678"])
            self.assertEqual(calls["empty"], [])
            self.assertEqual(lines["lacking"], "the NCCL of this process has no ncclMemFree")

    def test_one_rank_that_is_switched_off_leaves_all_to_nccl(self):
        def off(rank):
            return {"TANDEM_NCCL": "0"} if rank == 1 else {}

        for out, error in self.outputs(self.start(3, "once", off)):
            self.assertIn("AllReduce count=1000", out)
            self.assertEqual(self.taken(error), (0, 1))
            self.assertIn("rank 1 cannot be served: it has TANDEM_NCCL=0", error)

    def test_one_rank_without_a_daemon_leaves_all_to_nccl(self):
        def elsewhere(rank):
            return {"TANDEM_RUNTIME_DIR": self.folder} if rank == 0 else {}

        for out, error in self.outputs(self.start(2, "once", elsewhere)):
            self.assertIn("AllReduce count=1000", out)
            self.assertEqual(self.taken(error), (0, 1))
            self.assertIn("since rank 0 cannot be served", error)

    def test_ranks_that_share_a_gpu_are_left_to_nccl(self):
        for _, error in self.outputs(self.start(2, "once", lambda rank: {"LOCAL_RANK": "0"})):
            self.assertIn("ranks 0 and 1 share a GPU", error)

    def test_the_exchange_is_all_that_nccl_sees_of_a_served_call(self):
        for out, error in self.outputs(self.start(2, "once")):
            self.assertEqual(self.taken(error), (1, 1))
            offers = ["AllGather count=512 type=0 op=0 root=0"] * 2
            self.assertEqual(out.splitlines(), ["CommInitRank", *offers, "CommDestroy"])

    def test_a_killed_rank_is_named_by_the_others(self):
        ranks = self.start(3, "killed")
        for out, error in self.outputs(ranks, [0, 0, -signal.SIGKILL])[:2]:
            self.assertRegex(out, r"state 6 text Tandem: .*\brank 2\b", error)

    def test_an_abort_ends_a_launch_that_waits_for_a_rank(self):
        ranks = self.start(2, "aborted")
        self.assertEqual(ranks[0].stdout.readline(), "aborted\n")
        self.outputs(ranks)

    def test_communicators_come_and_go_without_a_trace(self):
        ranks = self.start(2, "many_lives")
        for process in ranks:
            self.assertEqual(process.stdout.readline(), "done\n")
        wait_until(lambda: not self.daemon.ctl_json("groups")["groups"], 60, "groups stay")
        for _, error in self.outputs(ranks):
            self.assertEqual(self.taken(error), (50, 50))

    def test_a_capture_takes_what_was_prepared_and_passes_the_rest(self):
        for out, error in self.outputs(self.start(2, "captured")):
            passed = [f"AllReduce count={count} type=2 op=0 root=0" for count in (5, 6)]
            self.assertEqual(out.splitlines(), passed)
            self.assertEqual(self.taken(error), (2, 4))

    def test_a_late_rank_is_named_by_the_others(self):
        ranks = self.start(2, "late", TANDEM_NCCL_DEADLINE_S=3)
        self.assertRegex(ranks[0].stdout.readline(), r"state 6 text Tandem: .*\brank 1\b")
        self.outputs(ranks)

    def test_a_revoked_communicator_is_nccls_and_a_shrunk_one_goes_on(self):
        for out, error in self.outputs(self.start(2, "revoked")):
            revoked = ["CommRevoke", "AllReduce count=8 type=7 op=0 root=0", "CommDestroy"]
            self.assertEqual(out.splitlines(), revoked)
            self.assertEqual(self.taken(error), (2, 3))

    def test_a_suspended_communicator_has_no_memory_of_tandems(self):
        ranks = self.start(2, "suspended")
        for _ in range(3):
            for rank in ranks:
                self.assertEqual(rank.stdout.readline(), "asleep\n")
            (group,) = self.daemon.ctl_json("groups")["groups"]
            self.assertEqual(group["state"], "asleep")
            self.assertEqual(int(self.daemon.ctl_json("stats")["segment_bytes"]), 0)
            for rank in ranks:
                rank.stdin.write("go on\n")
                rank.stdin.flush()
        for out, error in self.outputs(ranks):
            self.assertEqual(out.splitlines(), ["CommSuspend flags=1", "CommResume"] * 3 + ["CommDestroy"])
            self.assertEqual(self.taken(error), (4, 4))

    def test_threads_of_one_process_are_left_to_nccl(self):
        ((_, error),) = self.outputs(self.start(1, "threads", LOCAL_RANK=0))
        self.assertEqual(self.taken(error), (0, 2))
        self.assertIn("ranks 0 and 1 are of one process", error)


@unittest.skipUnless(os.path.exists(LIBRARY) and os.path.exists(CACHE), "this is no build with libtandem-nccl.so")
class Library(unittest.TestCase):
    """Its name and its symbols, as programs of NCCL look for them."""

    def test_it_has_nccls_name(self):
        dynamic = subprocess.run(["readelf", "-dW", LIBRARY], capture_output=True, text=True, check=True).stdout
        self.assertIn("Library soname: [libnccl.so.2]", dynamic)
        needed = re.findall(r"Shared library: \[([^]]+)\]", dynamic)
        self.assertFalse([name for name in needed if "tandem" in name or "cuda" in name or "nccl" in name], needed)

    def test_it_exports_all_of_nccl_h_and_nothing_else(self):
        symbols = subprocess.run(
            ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True
        ).stdout
        exported = {line.split()[-1] for line in symbols.splitlines()}
        self.assertFalse([name for name in exported if not re.match(r"p?nccl[A-Z]", name)])
        with open(CACHE) as cache:
            folder = re.search(r"^TANDEM_NCCL_INCLUDE:PATH=(.*)$", cache.read(), re.M)[1]
        with open(os.path.join(folder, "nccl.h")) as header:
            declared = set(re.findall(r"\b(p?nccl[A-Z]\w*)\s*\(", re.sub(r"/\*.*?\*/", "", header.read(), flags=re.S)))
        self.assertGreater(len(declared), 80)
        self.assertEqual(declared - exported, set())


if __name__ == "__main__":
    unittest.main()
