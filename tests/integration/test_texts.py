"""Texts that are not UTF-8: each answers with its field, and neither gRPC nor protobuf writes a line. Control characters of names
reach no terminal."""

import os
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from unittest import mock

from harness import BIN, TandemTest, host_only

TEXTS = os.path.join(BIN, "tandem-test-texts")
PACKAGE = os.path.join(os.path.dirname(__file__), "../../client/python/src")
LIBRARY = os.path.join(BIN, "../lib/libtandem.so")

# A text of Python whose character is a lone surrogate, as file names of other encodings have it.
PYTHON = """
import sys, tandem
from tandem.plan import Operand
BAD = "caf\\udce9"
def refused(field, call, *arguments, texts=(BAD, "a\\0b"), **named):
    for text in texts:
        try:
            call(*[text if value is BAD else value for value in arguments],
                 **{name: text if value is BAD else value for name, value in named.items()})
        except tandem.InvalidArgument as error:
            assert (error.reason, error.field) == ("BAD_FIELD", field), (call, error, error.field)
        else:
            raise AssertionError(f"{call} takes {field} {text!r}")
refused("name", tandem.connect, sys.argv[1], name=BAD)
client = tandem.connect(sys.argv[1])
good = {"world_size": 1, "rank": 0, "job_key": "a job key of the texts"}
refused("name", client.join, BAD, **good)
refused("job_key", client.join, "g", texts=[BAD], **{**good, "job_key": BAD})
refused("gpu_uuid", client.join, "g", gpu_uuid=BAD, **good)
refused("options[placement]", lambda text: client.join("g", options={"placement": text}, **good), BAD)
refused("options", lambda text: client.join("g", options={text: "engine"}, **good), BAD)
group = client.join("g", **good)
uuid = group.gpu_uuid
refused("gpu_uuid", client.registered, 4, gpu_uuid=BAD)
refused("gpu_uuid", client.empty, 4, gpu_uuid=BAD)
refused("persistent_name", client.empty, 4, gpu_uuid=uuid, name=BAD)
refused("persistent_name", group.empty, 4, name=BAD)
one = Operand("input", "f32", (4,)), Operand("output", "f32", (4,))
refused("key", group.prepare, BAD, "all_reduce", one)
client.check()
"""


class Texts(TandemTest):
    gpus = 1

    def silent(self, *command, **arguments):
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=120, check=False, **arguments
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), done.stderr)

    def test_the_c_interface_names_the_field(self):
        self.silent(TEXTS, self.daemon.runtime_dir)

    def test_a_program_whose_file_name_is_no_text_connects(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(os.fsencode(folder), b"caf\xe9")
            os.symlink(TEXTS, path)
            self.silent(path, self.daemon.runtime_dir)

    @host_only("of the Python package, which is the same on GPUs")
    def test_the_python_package_names_the_field(self):
        with open(LIBRARY, "rb") as library:
            text = library.read()
        if b"__asan_init" in text or b"__tsan_init" in text:
            self.skipTest("a sanitizer's runtime is in no Python")
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TANDEM_LIBRARY": LIBRARY}
        self.silent(sys.executable, "-B", "-c", PYTHON, self.daemon.runtime_dir, env=environment)

    def test_a_daemons_folder_that_is_no_text_is_refused_or_serves(self):
        """Its clients get the folder's path."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(os.fsencode(folder), b"caf\xe9")
            for key in (b"--runtime-dir=", b"--state-dir="):
                done = subprocess.run(
                    [os.path.join(BIN, "tandemd"), "--check-config", b"--backend=host", key + path],
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=60,
                    check=False,
                )
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("is not UTF-8", done.stderr)


# They turn the text around, begin a command of the terminal, or end a line.
CONTROLS = ("\u202e", "\u009b2J", "\u2028", "\x1b[2J")
LISTINGS = ("sessions", "groups", "pools", "plans", "queue", "stats", "top --once", "doctor", "topo")


class Terminals(TandemTest):
    gpus = 1

    def assertHarmless(self, text, told):
        found = {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")} - {
            "\n"
        }
        self.assertEqual(found, set(), (told, text))

    def refused(self, client, field, cmd, **arguments):
        reply = client.call(cmd, check=False, **arguments)
        self.assertFalse(reply["ok"], (cmd, arguments))
        self.assertEqual((reply["detail"]["reason"], reply["detail"]["field"]), ("BAD_FIELD", field), reply)
        self.assertHarmless(reply["message"], cmd)

    def check_terminals(self):
        for listing in LISTINGS:
            for form in ((), ("--json",)):
                shown = self.daemon.ctl(*listing.split(), *form, check=False)
                self.assertHarmless(shown.stdout + shown.stderr, (listing, form))
        self.assertHarmless(self.daemon.tail(10000), "tandemd's log")

    def test_names_are_refused(self):
        operand = {"dtype": "f32", "shape": [64]}
        request = {"op": "all_reduce", "operands": [{"role": role, **operand} for role in ("input", "output")]}
        for text in CONTROLS:
            with self.subTest(text=ascii(text)):
                client, name = self.daemon.client(), f"a{text}b"
                self.refused(client, "name", "connect", runtime_dir=self.daemon.runtime_dir, name=name)
                client.connect()
                self.refused(client, "name", "join", name=name, group="tp", world=1, rank=0)
                client.call("join", name="tp", group="tp", world=1, rank=0)
                self.refused(client, "key", "prepare", group="tp", key=name, plan="ar", request=request)
                client.call("prepare", group="tp", key="ar", plan="ar", request=request)
                self.check_terminals()
                client.close()

    def test_a_program_whose_file_name_has_them_connects(self):
        program = os.environ.get("TANDEM_TEST_CLIENT", os.path.join(BIN, "tandem-test-client"))
        for text in (*CONTROLS, "\udce9"):
            with self.subTest(text=ascii(text)), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, f"a{text}b")
                os.symlink(os.path.abspath(program), path)
                with mock.patch.dict(os.environ, {"TANDEM_TEST_CLIENT": path}):
                    client = self.daemon.client()
                client.call("connect", runtime_dir=self.daemon.runtime_dir, name="")
                sessions = {session["pid"]: session for session in self.daemon.ctl_json("sessions")["sessions"]}
                self.assertRegex(sessions[client.pid]["name"], "^a.*b$")
                self.check_terminals()
                client.close()


if __name__ == "__main__":
    unittest.main()
