"""What the integration suites say of themselves, for runs on GPUs: which tests are the host backend's own, and how many GPUs a
suite needs."""

import ast
import glob
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SUITES = os.path.join(HERE, "../../../../tests/integration")
sys.path[:0] = [os.path.join(HERE, ".."), SUITES]
import harness
import jobs
import run_digits

# Things that only emulated GPUs have: options of tandemd, names, memory.
HOSTS_OWN = ("--emulated-", "--testing-emulated-", "--testing-visibility-delay-us", "EMU-", "register_foreign")


def chosen_by_cuda(test):
    """Whether a condition is `CUDA` (True) or `not CUDA` (False); None: it is another."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = chosen_by_cuda(test.operand)
        return None if inner is None else not inner
    return True if isinstance(test, ast.Name) and test.id == "CUDA" else None


def unmarked(node):
    """The strings of HOSTS_OWN that a run on GPUs would use, with their lines: what host_only marks or CUDA chooses is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [(node.lineno, word) for word in HOSTS_OWN if word in node.value]
    if any(
        isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "host_only"
        for mark in getattr(node, "decorator_list", ())
    ):
        return []
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.If, ast.IfExp)) and (cuda := chosen_by_cuda(node.test)) is not None:
        taken = node.body if cuda else node.orelse
        children = taken if isinstance(taken, list) else [taken]
    return [found for child in children for found in unmarked(child)]


class HostsOwnTest(unittest.TestCase):
    def test_every_suite_marks_what_only_emulated_gpus_have(self):
        for path in glob.glob(os.path.join(SUITES, "test_*.py")):
            with self.subTest(suite=os.path.basename(path)), open(path) as file:
                self.assertEqual(unmarked(ast.parse(file.read())), [], 'mark the test: @host_only("why")')

    def test_what_is_not_marked_is_found(self):
        for source, found in (
            ('extra = ("--emulated-memory-bytes", "1")', ["--emulated-"]),
            ('extra = () if CUDA else ("--testing-emulated-fused",)', []),
            ('extra = ("--testing-emulated-fused",) if CUDA else ()', ["--testing-emulated-"]),
            ('if not CUDA:\n  word = "EMU-0000"', []),
            ('if busy:\n  word = "EMU-0000"', ["EMU-"]),
            ('class A:\n  def test(self):\n    client.call("register_foreign")', ["register_foreign"]),
            ('class A:\n  @host_only("why")\n  def test(self):\n    client.call("register_foreign")', []),
            ('@host_only("why")\nclass A:\n  extra = ("--testing-visibility-delay-us", "9")', []),
            (
                '@cuda_only\nclass A:\n  extra = ("--testing-visibility-delay-us", "9")',
                ["--testing-visibility-delay-us"],
            ),
        ):
            self.assertEqual([word for _, word in unmarked(ast.parse(source))], found, source)


class RecoveryTest(unittest.TestCase):
    def test_every_job_names_classes_that_exist(self):
        folder = os.path.join(SUITES, "../gpu/recovery")
        for words, _ in jobs.RECOVERY.values():
            for module, *names in (word.split(".") for word in words):
                with open(os.path.join(folder, module + ".py")) as file:
                    classes = {node.name for node in ast.parse(file.read()).body if isinstance(node, ast.ClassDef)}
                self.assertLessEqual(set(names), classes, module)


class CutBundleTest(unittest.TestCase):
    def test_a_bundle_without_suites_has_no_jobs_of_them(self):
        with tempfile.TemporaryDirectory() as bundle:
            self.assertEqual(list(jobs.suite_jobs(bundle, "cuda", 2)), [])


class DigitsTest(unittest.TestCase):
    def test_it_trains_on_as_many_ranks_as_there_are_gpus(self):
        def worlds(gpus, cuda=True):
            return [
                (daemon["gpus"], [run[1] + (" kill" if "--kill-rank" in run else "") for run in runs])
                for daemon, runs in run_digits.plan(gpus, cuda)
            ]

        four = (4, ["4", "4 kill", "3", "1"])
        self.assertEqual(
            [worlds(gpus) for gpus in (1, 2, 4, 8)], [[(1, ["1"])], [(2, ["2", "2 kill", "1"])], [four], [four]]
        )
        self.assertEqual(worlds(8, cuda=False), [four, (8, ["8"])])
        for daemon, runs in run_digits.plan(2, True):
            self.assertIn(["--world", "2", "--kill-rank", "1", "--at-epoch", "3"], runs)
            self.assertNotIn("extra", daemon)


class MostRanksTest(unittest.TestCase):
    def test_a_module_that_uses_more_gpus_than_it_says_fails_on_every_backend(self):
        harness.check_most_ranks(__name__, 2)
        self.addCleanup(globals().pop, "MOST_RANKS", None)
        for count in (3, 4):
            with self.assertRaisesRegex(AssertionError, f"say MOST_RANKS = {count}"):
                harness.check_most_ranks(__name__, count)
            with self.assertRaisesRegex(AssertionError, f"say MOST_RANKS = {count}"):
                harness.needs_gpus(count)(type(self))
            globals()["MOST_RANKS"] = count
            harness.check_most_ranks(__name__, count)
            harness.needs_gpus(count)(lambda: None)

    def test_a_suite_gets_as_many_gpus_as_it_says(self):
        with tempfile.TemporaryDirectory() as bundle:
            folder = os.path.join(bundle, "tests/integration")
            os.makedirs(folder)
            for name, text in (
                ("pair", "import unittest\n"),
                ("three", '"""Of three."""\nMOST_RANKS = 3\n'),
                ("four", "MOST_RANKS = 4\n"),
            ):
                with open(os.path.join(folder, f"test_{name}.py"), "w") as file:
                    file.write(text)
            for count, gpus in (
                (4, {"test_pair": 2, "test_three": 3, "test_four": 4}),
                (2, {"test_pair": 2, "test_three": 2, "test_four": 2}),
            ):
                self.assertEqual({job.name: job.gpus for job in jobs.suite_jobs(bundle, "cuda", count)}, gpus)

    def test_every_suite_says_it_where_it_is_read(self):
        for path in glob.glob(os.path.join(SUITES, "test_*.py")):
            with open(path) as file:
                module = ast.parse(file.read())
            said = [
                node.value.value
                for node in module.body
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MOST_RANKS"
            ]
            self.assertEqual([jobs.most_ranks(path)], said or [2], path)


if __name__ == "__main__":
    unittest.main()
