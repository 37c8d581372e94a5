"""A client whose process has no room: for threads, for memory, for descriptors. It gets a status and goes on."""

import json
import os
import subprocess
import sys
import unittest

from harness import BIN, TandemTest, host_only

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


if __name__ == "__main__":
    unittest.main()
