"""The package's sources: types by mypy in strict mode, style by ruff, and that everything public has a docstring."""

import ast
import glob
import importlib.util
import os
import subprocess
import sys
import unittest

PACKAGE = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../client/python"))


def run(module, *arguments):
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=PACKAGE, capture_output=True, text=True)


class Source(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy")
    def test_types(self):
        done = run("mypy", "--config-file", "pyproject.toml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("ruff"), "no ruff")
    def test_style(self):
        done = run("ruff", "check", "--no-cache", ".")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_docstrings(self):
        missing = []
        for path in sorted(glob.glob(os.path.join(PACKAGE, "src/tandem/**/*.py"), recursive=True)):
            with open(path) as file:
                tree = ast.parse(file.read())
            name = os.path.relpath(path, PACKAGE)
            if ast.get_docstring(tree) is None:
                missing.append(name)
            if os.path.basename(path).startswith("_") and not path.endswith("__init__.py"):
                continue
            for node in ast.walk(tree):
                public = isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
                if public and node.name != "forward" and ast.get_docstring(node) is None:  # one of a callback's
                    missing.append(f"{name}: {node.name}")
        self.assertEqual(missing, [])

    def test_files_are_short(self):
        for path in glob.glob(os.path.join(PACKAGE, "src/tandem/**/*.py"), recursive=True):
            with open(path) as file:
                self.assertLessEqual(len(file.readlines()), 500, path)


if __name__ == "__main__":
    unittest.main()
