"""Lines of the client library, and of the libraries below it: to the program's callback or nowhere (c_client/log.c)."""

import os
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

from harness import BIN, TandemTest
from test_refusal import FAILED_PRECONDITION, MAGIC, field

DEBUG, INFO, WARNING, ERROR = range(4)
# gRPC has a line at level ERROR about a tracer that it does not know.
TRACE = {"GRPC_TRACE": "no_such_tracer"}
TRACED = "Unknown trace var: 'no_such_tracer'"


def run(runtime_dir, how, **env):
    """(lines of the callback as (level, text), the rest of standard output, standard error)."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [os.path.join(BIN, "tandem-test-log"), runtime_dir, str(how)],
        env={**clean, **env},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode}: {done.stdout}{done.stderr}")
    lines = done.stdout.splitlines()
    end = next(at for at, line in enumerate(lines) if line.startswith("status "))
    return [(int(line[0]), line[2:]) for line in lines[:end]], lines[end:], done.stderr


class LogHook(TandemTest):
    gpus = 2

    def texts(self, lines, level):
        return "\n".join(text for of, text in lines if of == level)

    def test_without_a_callback_nothing_is_written(self):
        lines, rest, errors = run(self.daemon.runtime_dir, "none", **TRACE)
        self.assertEqual((lines, rest, errors), ([], ["status 0 ", "taken back"], ""))

    def test_the_callback_has_the_librarys_lines_and_grpcs(self):
        lines, rest, errors = run(self.daemon.runtime_dir, INFO, **TRACE)
        self.assertEqual((rest, errors), (["status 0 ", "taken back"], ""))
        self.assertEqual({level for level, _ in lines}, {INFO, WARNING})
        self.assertIn("gRPC: " + TRACED, self.texts(lines, WARNING))
        self.assertRegex(self.texts(lines, INFO), rf"session \d+ with tandemd 0\.\S+ at {self.daemon.runtime_dir}")
        self.assertRegex(self.texts(lines, INFO), r"group 'alone', number \d+: rank 0 of 1 on ")
        self.assertRegex(self.texts(lines, INFO), r"plan 'collective #1': all_reduce by \w+, \w+")

    def test_levels(self):
        lines, _, errors = run(self.daemon.runtime_dir, ERROR, **TRACE)
        self.assertEqual((lines, errors), ([], ""))
        lines, _, errors = run(self.daemon.runtime_dir, WARNING, **TRACE)
        self.assertEqual(({level for level, _ in lines}, errors), ({WARNING}, ""))
        lines, _, errors = run(self.daemon.runtime_dir, DEBUG, GRPC_TRACE="channel")
        self.assertIn("gRPC: ", self.texts(lines, DEBUG))
        self.assertEqual(errors, "")

    def test_a_program_that_asks_grpc_for_its_lines_has_them(self):
        lines, _, errors = run(self.daemon.runtime_dir, "none", GRPC_VERBOSITY="error", **TRACE)
        self.assertEqual(lines, [])
        self.assertIn(TRACED, errors)
        lines, _, errors = run(self.daemon.runtime_dir, WARNING, GRPC_VERBOSITY="error", **TRACE)
        self.assertIn(TRACED, self.texts(lines, WARNING))
        self.assertEqual(errors, "")


class ProtobufsLines(unittest.TestCase):
    def test_a_reply_that_is_not_utf_8(self):
        """libprotobuf has a line about a text that it cannot take."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(os.path.join(folder, "lease.sock"))
            listener.listen(1)
            body = field(4, field(1, FAILED_PRECONDITION) + field(2, b"\xff\xfe"))

            def serve():
                for _ in range(2):
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1 << 20)
                        connection.send(struct.pack("=IIQ", MAGIC, 0, len(body)) + body)

            daemon = threading.Thread(target=serve)
            daemon.start()
            silent, (status, _), errors = run(folder, "none")
            self.assertIn("does not speak Tandem's protocol", status)
            self.assertEqual((silent, errors), ([], ""))
            heard, _, errors = run(folder, INFO)
            self.assertEqual(errors, "")
            self.assertRegex(heard[0][1], r"protobuf: String field '\S+' contains invalid UTF-8")
            daemon.join()


if __name__ == "__main__":
    unittest.main()
