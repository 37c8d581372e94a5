"""tests/run: a failing stage hides none behind it, and all failures are listed last."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Stand-ins note their command lines. A part of $FAILING in a command line makes it fail.
STAND_IN = """#!/bin/sh
call="$(basename "$0") $*"
echo "$call" >> "$CALLS"
IFS=,
for part in $FAILING; do
  case $call in *"$part"*) failed=1 ;; esac
done
if [ "$(basename "$0")" = ctest ]; then
  mkdir -p "$2/Testing/Temporary"
  printf 'one_test 1 2.5\\nother_test 2 100.25\\n---\\n' > "$2/Testing/Temporary/CTestCostData.txt"
  [ -z "$failed" ] || printf '3:one_test\\n12:other_test\\n' > "$2/Testing/Temporary/LastTestsFailed.log"
  [ -z "$failed" ] || printf 'much\\nFAIL: test_it (of %s)\\nthe reason\\n' "$2"
fi
exit ${failed:-0}
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="tandem-run-")
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        for name in ("tests/run", "deploy/setup.sh"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        for name in ("bin/cmake", "bin/ninja", "bin/ctest"):
            self.write(name, STAND_IN)
        for name in ("lint", "deploy/setup_tools", "torch/setup_venv"):
            self.write(f"tests/{name}", STAND_IN)
        # Every package is there.
        self.write("bin/dpkg-query", "#!/bin/sh\necho install ok installed\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_with(self, *failing, options=()):
        """The exit status, the command lines of the stages, and the last lines of what is said."""
        calls = self.root / "calls"
        calls.write_text("")
        done = subprocess.run(
            ["bash", self.root / "tests/run", *options],
            env={
                **os.environ,
                "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                "CALLS": str(calls),
                "FAILING": ",".join(failing),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        stages = []
        for line in calls.read_text().splitlines():
            words = line.split()
            if words[0] == "ctest":
                stages.append(words[2].rsplit("/", 1)[1])
            elif words[0] == "lint":
                stages.append("lint")
        return done.returncode, stages, done.stdout.splitlines()

    def test_all_stages_pass(self):
        status, stages, said = self.run_with()
        self.assertEqual((status, stages), (0, ["check", "lint", "asan", "tsan"]), said)
        self.assertIn("all tests passed", said[-1])

    def test_failures_hide_no_stage_and_come_last(self):
        status, stages, said = self.run_with("build/check --output", "build/tsan --output", "lint")
        self.assertEqual((status, stages), (1, ["check", "lint", "asan", "tsan"]), said)
        self.assertEqual(
            said[-4:],
            [
                "run: FAILED:",
                "  build/check: one_test other_test",
                "  format or lint differs: tests/lint --fix formats",
                "  build/tsan: one_test other_test",
            ],
        )

    def test_reasons_come_before_the_list(self):
        _, _, said = self.run_with("build/tsan --output")
        log = said.index("run: build/tsan/tests.log:")
        self.assertEqual(said[log + 1 : log + 3], [f"FAIL: test_it (of {self.root}/build/tsan)", "the reason"])
        self.assertEqual(said[-2:], ["run: FAILED:", "  build/tsan: one_test other_test"])

    def test_the_slowest_are_named(self):
        _, _, said = self.run_with()
        self.assertEqual(sum(line.endswith("slowest: other_test 100 s, one_test 2 s") for line in said), 3, said)

    def test_a_build_that_fails_hides_no_stage(self):
        status, stages, said = self.run_with("ninja -C " + str(self.root / "build/check"))
        self.assertEqual((status, stages), (1, ["lint", "asan", "tsan"]), said)
        self.assertEqual(said[-2:], ["run: FAILED:", "  build/check: the build"])

    def test_quick_fails_too(self):
        status, stages, said = self.run_with("build/check --output", options=("--quick",))
        self.assertEqual((status, stages), (1, ["check"]), said)
        self.assertEqual(said[-1], "  build/check: one_test other_test")


if __name__ == "__main__":
    unittest.main()
