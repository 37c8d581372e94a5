"""The extras of the wheel, as `tandem-gpu[vllm]`: they ask for the versions that Tandem knows, and for no others."""

import ast
import os
import re
import unittest

import tomllib

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
PACKAGE = os.path.join(ROOT, "client/python/src/tandem")


def read(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def parsed(version):
    return tuple(int(part) for part in version.split("."))


def bounds(requirement):
    """(name, [(operator, version), …]) of a requirement."""
    name, rest = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return name, [re.fullmatch(r"(==|>=|<=)([\d.]+)", bound).groups() for bound in rest.split(",") if bound]


def allows(requirement, version):
    """Whether the version satisfies the requirement; bounds and version have as many parts as they like."""
    compared = {"==": parsed(version).__eq__, ">=": parsed(version).__ge__, "<=": parsed(version).__le__}
    return all(compared[operator](parsed(bound)) for operator, bound in bounds(requirement)[1])


def range_of(name, versions):
    """The requirement that a table of these versions stands for."""
    first, last = min(versions, key=parsed), max(versions, key=parsed)
    return f"{name}=={first}" if first == last else f"{name}>={first},<={last}"


def recorded(door):
    """The versions in the signature table of a door."""
    body = ast.parse(read(f"client/python/src/tandem/{door}/_signatures.py")).body
    (table,) = [one.value for one in body if isinstance(one, ast.AnnAssign) and one.target.id == "RECORDED"]
    return [version.value for version in table.keys]


class Extras(unittest.TestCase):
    def setUp(self):
        self.extras = tomllib.loads(read("client/python/pyproject.toml"))["project"]["optional-dependencies"]
        self.required = {name: of for extra in self.extras.values() for of in extra for name in [bounds(of)[0]]}

    def test_doors_with_a_table(self):
        tables = [door for door in os.listdir(PACKAGE) if os.path.exists(f"{PACKAGE}/{door}/_signatures.py")]
        self.assertEqual(sorted(tables), ["sglang", "vllm"])
        for door in tables:
            self.assertEqual(self.extras[door], [range_of(door, recorded(door))])

    def test_the_versions_of_the_tests(self):
        pins = dict(re.findall(r"([\w-]+)==([\d.]+)", read("tests/torch/setup_venv")))
        pins["torch"] = re.search(r"version=\$\{2:-([\d.]+)\}", read("tests/torch/setup_venv"))[1]
        tested = self.required.keys() & pins.keys()
        self.assertGreaterEqual(tested, {"torch", "jax", "megatron-core"})
        for name in tested:
            self.assertTrue(allows(self.required[name], pins[name]), (self.required[name], pins[name]))

    def test_every_part_of_the_package_has_an_extra(self):
        parts = [name for name in os.listdir(PACKAGE) if os.path.exists(f"{PACKAGE}/{name}/__init__.py")]
        self.assertEqual(sorted(parts), sorted(self.extras))


class Versions(unittest.TestCase):
    def test_allows(self):
        self.assertTrue(allows("a>=0.14,<=0.16.1", "0.16.1"))
        self.assertFalse(allows("a>=0.14,<=0.16.1", "0.16.2"))
        self.assertFalse(allows("a==0.5.23", "0.5.3"))
        self.assertTrue(allows("a", "7"))

    def test_range_of(self):
        self.assertEqual(range_of("a", ["0.9.1", "0.25.1", "0.33.0"]), "a>=0.9.1,<=0.33.0")
        self.assertEqual(range_of("a", ["0.5.23"]), "a==0.5.23")


if __name__ == "__main__":
    unittest.main()
