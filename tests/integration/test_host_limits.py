"""A client whose process has no room: for threads, for memory, for descriptors. It gets a status and goes on."""

import json
import os
import subprocess
import sys
import unittest

from harness import BIN, CallFailed, Client, Daemon, TandemTest, host_only, wait_until

LIBRARY = os.path.join(BIN, "../lib/libtandem.so")

# argv: the library, the runtime directory, the limit's name and its amount (of RLIMIT_AS: MiB above what is used).
CLIENT = """
import ctypes, json, resource, sys
library, directory, name, amount = sys.argv[1], sys.argv[2].encode(), sys.argv[3], int(sys.argv[4])
tandem = ctypes.CDLL(library)
tandem.tandem_connect.restype = tandem.tandem_stream_create.restype = ctypes.c_void_p
for function in (tandem.tandem_status_message, tandem.tandem_status_reason):
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
tandem.tandem_status_code.argtypes = [ctypes.c_void_p]
tandem.tandem_connect.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p]
tandem.tandem_stream_create.argtypes = [ctypes.c_void_p]
if name == "RLIMIT_AS":
    amount = (int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()) + (amount << 20)
if name != "none":
    resource.setrlimit(getattr(resource, name), (amount, resource.getrlimit(getattr(resource, name))[1]))
def told(status):
    text = [function(status).decode() for function in (tandem.tandem_status_reason, tandem.tandem_status_message)]
    return [tandem.tandem_status_code(status), *text]
client, stream = ctypes.c_void_p(), ctypes.c_void_p()
outcomes = [told(tandem.tandem_connect(directory, b"client", 20000, ctypes.byref(client)))]
outcomes.append(told(tandem.tandem_stream_create(ctypes.byref(stream))))
print(json.dumps(outcomes), flush=True)
import os
os._exit(0)  # the end of a session is not what is tried
"""
RESOURCE_EXHAUSTED = 8


@host_only("CUDA's driver ends a process without memory by itself")
class HostLimits(TandemTest):
    gpus = 1

    def setUp(self):
        with open(LIBRARY, "rb") as library:
            text = library.read()
        if b"__asan_init" in text or b"__tsan_init" in text:
            self.skipTest("a sanitizer's runtime is in no Python")
        super().setUp()

    def outcomes(self, limit, amount):
        ran = subprocess.run(
            [sys.executable, "-c", CLIENT, LIBRARY, self.daemon.runtime_dir, limit, str(amount)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(ran.returncode, 0, f"{limit} {amount}: {ran.stderr}")
        return json.loads(ran.stdout)

    def test_without_room_for_threads_a_client_gets_a_status(self):
        self.assertEqual([outcome[0] for outcome in self.outcomes("none", 0)], [0, 0])
        refused = 0
        for mib in (2, 20, 40, 60, 90):
            for code, reason, message in self.outcomes("RLIMIT_AS", mib):
                refused += code != 0
                self.assertIn(code, (0, RESOURCE_EXHAUSTED), f"{mib} MiB: {message}")
                self.assertEqual(code != 0, reason != "", message)
        self.assertGreater(refused, 0)


@host_only("CUDA's libraries open descriptors of their own")
class FewDescriptors(TandemTest):
    """A client or tandemd has too few descriptors: the first failure names the limit and the process."""

    gpus = 1

    def attempt(self, client):
        """All kinds of calls that need descriptors; the failure of the first that fails, or None."""
        operand = {"dtype": "f32", "shape": [64]}
        request = {"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]}
        try:
            client.connect()
            client.call("join", name=f"g{client.pid}", world=1, rank=0, job_key=self.job_key)
            group = {"group": f"g{client.pid}"}
            for memory in ("in", "out", "third"):
                client.call("register", memory=memory, bytes=4096, **group)
                client.call("allocate", memory=f"{memory} of all", shape=[16], **group)
            client.call("prepare", key="k", plan="k", request=request, **group)
            for stream in ("a", "b", "c"):
                client.call("launch", plan="k", stream=stream, bindings=[["in", 0], ["out", 0]])
                client.call("sync", stream=stream)
            client.call("wait", plan="k")
        except CallFailed as failure:
            return failure
        return None

    def check(self, failure, pid, limit):
        self.assertEqual((failure.code, failure.detail["reason"]), ("RESOURCE_EXHAUSTED", "FD_LIMIT"), failure.message)
        self.assertEqual((failure.detail["pid"], failure.detail["limit"]), (pid, limit), failure.message)
        self.assertIn(f"process {pid}", failure.message)
        self.assertIn(f"may have {limit}", failure.message)

    def test_a_client_names_its_own_limit(self):
        refused = 0
        for limit in (7, 8, 9, 10, 11, 12, 14, 64):
            client = Client(self.daemon, "few", wrapper=("prlimit", f"--nofile={limit}:{limit}", "--"))
            failure = self.attempt(client)
            if failure is not None:
                refused += 1
                with self.subTest(limit=limit):
                    self.check(failure, client.pid, limit)
            client.close()
        self.assertGreater(refused, 1)
        self.assertIsNone(self.attempt(self.daemon.client("as ever")))

    def test_tandemd_refuses_to_start_with_too_few(self):
        for gpus, limit in ((1, 64), (8, 64), (8, 128)):
            daemon = Daemon(gpus, wrapper=("prlimit", f"--nofile={limit}:{limit}", "--"), wait=False)
            self.addCleanup(daemon.stop)
            self.assertEqual(daemon.process.wait(60), 1)
            needed = 64 + 16 * gpus
            self.assertIn(f"tandemd needs {needed} descriptors for {gpus} GPUs", daemon.tail())
            self.assertIn(f"process {daemon.process.pid} may have {limit} open at most", daemon.tail())

    def test_tandemd_names_its_limit_to_clients_beyond_it(self):
        limit = 96
        daemon = Daemon(1, wrapper=("prlimit", f"--nofile={limit}:{limit}", "--"))
        self.addCleanup(daemon.stop)
        served, failure = [], None
        while failure is None and len(served) < limit:
            client = daemon.client(f"{len(served)}")
            failure = self.attempt(client)
            served.append(client)
        # One user's part of tandemd's descriptors is a quota, and may be met before all are in use.
        self.assertEqual(failure.code, "RESOURCE_EXHAUSTED", failure.message)
        if failure.detail["reason"] == "FD_LIMIT":
            self.check(failure, daemon.process.pid, limit)
        else:
            self.assertTrue(failure.detail["reason"].startswith("QUOTA_"), failure.message)
            self.assertIn(f"limit {failure.detail['limit']}", failure.message)
        self.assertGreater(len(served), 2)
        # Clients that are connected continue, and others connect once one has ended.
        for client in served[:-1]:
            client.call("check")
        for client in served[-3:]:
            client.close()
        wait_until(lambda: self.attempt(daemon.client("next")) is None, 60, "nobody can come")


if __name__ == "__main__":
    unittest.main()
