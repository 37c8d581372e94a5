"""Texts that are not UTF-8: each answers with its field, and neither gRPC nor protobuf writes a line."""

import os
import subprocess
import sys
import tempfile
import unittest

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


if __name__ == "__main__":
    unittest.main()
