"""A bundle of a build, made and run as on a GPU machine, with the host backend: TANDEM_BUILD_DIR is the build."""

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = os.path.join(HERE, "../../run")
BUILD = os.environ.get("TANDEM_BUILD_DIR", os.path.join(HERE, "../../../../build/check"))

FAILING = """import unittest
class Planted(unittest.TestCase):
    def test_good(self):
        pass
    def test_bad(self):
        self.fail("planted")
"""
STUCK = """import time, unittest
class Planted(unittest.TestCase):
    def test_stuck(self):
        time.sleep(600)
"""


class HostBundle(unittest.TestCase):
    def call(self, *words, folder=None):
        return subprocess.run(
            [os.path.join(folder, "run") if folder else RUN, *words],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def check_packed(self, bundle, archive):
        """Of this build; one with CUDA is bounded by the same command."""
        packed = self.call("pack", bundle, archive)
        self.assertEqual(packed.returncode, 0, packed.stderr)
        self.assertLess(os.path.getsize(archive), 64 << 20)
        with tarfile.open(archive) as files:
            self.assertLessEqual({"bundle/run", "bundle/bin/tandemd", "bundle/lib/libtandem.so"}, set(files.getnames()))
        small = os.path.join(os.path.dirname(archive), "small")  # to pack the bundle again takes a minute
        os.mkdir(small)
        shutil.copy(os.path.join(bundle, "bundle.txt"), small)
        with open(os.path.join(small, "random"), "wb") as file:
            file.write(os.urandom(2 << 20))
        refused = self.call("pack", small, archive, "1")
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertRegex(refused.stderr, r"has \d+ bytes packed, more than 1 MiB")
        self.assertFalse(os.path.exists(archive))

    def test_bundle_and_run(self):
        with tempfile.TemporaryDirectory() as temporary:
            bundle, results = os.path.join(temporary, "bundle"), os.path.join(temporary, "results")
            made = self.call("bundle", "--here", BUILD, bundle)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.check_packed(bundle, os.path.join(temporary, "bundle.tar.xz"))
            for name, text in (("test_a_failing", FAILING), ("test_a_stuck", STUCK)):
                with open(os.path.join(bundle, f"tests/integration/{name}.py"), "w") as file:
                    file.write(text)
            with open(os.path.join(bundle, "runner/jobs.py"), "a") as file:
                file.write("\nSUITES['test_a_stuck'] = -10\n")  # a limit of 5 s, in which it surely begins
            wanted = (
                "conformance",
                "integration",
                "--backend",
                "host",
                "-o",
                results,
                "--only",
                "^(conformance_w2|test_a_.*|test_basic|test_bad_input|test_services|digits_w4)$",
            )

            # Too little time: only what fits is run, and what is left is said.
            first = self.call(*wanted, "-s", "40", folder=bundle)
            self.assertEqual(first.returncode, 1, first.stdout + first.stderr)
            self.assertRegex(first.stdout.splitlines()[-1], "^not run, call again: conformance_w2")
            # The next call runs what is left, and its table has all.
            second = self.call(*wanted, folder=bundle)
            self.assertEqual(second.returncode, 1, second.stdout + second.stderr)
            table = second.stdout.split("\n\n")[-1].splitlines()
            self.assertEqual(len(table), 1 + 7, second.stdout)
            rows = {}
            with open(os.path.join(results, "results.jsonl")) as lines:
                for line in lines:
                    row = json.loads(line)
                    if not row["cut"]:
                        self.assertNotIn(row["job"], rows, "run twice")
                        rows[row["job"]] = row
            shown = second.stdout + second.stderr
            self.assertEqual(
                set(rows),
                {
                    "conformance_w2",
                    "test_a_failing",
                    "test_a_stuck",
                    "test_basic",
                    "test_bad_input",
                    "test_services",
                    "digits_w4",
                },
                shown,
            )
            for name, passed in (
                ("conformance_w2", 20),
                ("test_basic", 5),
                ("test_bad_input", 10),
                ("test_services", 3),
                ("digits_w4", 100),
            ):
                self.assertEqual((rows[name]["code"], rows[name]["failed"]), (0, 0), rows[name])
                self.assertGreaterEqual(rows[name]["passed"], passed)
            failing, stuck = rows["test_a_failing"], rows["test_a_stuck"]
            self.assertEqual((failing["passed"], failing["failed"], failing["timed_out"]), (1, 1, False))
            self.assertEqual(failing["failures"], ["test_a_failing.Planted.test_bad"])
            self.assertEqual(
                (stuck["timed_out"], stuck["failures"]), (True, ["test_a_stuck.Planted.test_stuck (did not end)"])
            )
            for row in rows.values():
                self.assertEqual(row["left_behind"], 0, row)
                self.assertTrue(os.path.getsize(os.path.join(results, row["log"])), row)
            self.assertNotIn(
                "begin conformance_w2" if "end   conformance_w2: ok" in first.stdout else "no such line", second.stdout
            )


if __name__ == "__main__":
    unittest.main()
