"""No modules of the Python package import each other in a circle. Imports for types only and imports in functions count too."""

import ast
import pathlib
import tempfile
import unittest

SOURCES = pathlib.Path(__file__).parents[2] / "client/python/src"


def modules_below(root):
    """The file of each module, by the module's name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name, path, modules):
    """The modules among `modules` that this one names in an import, wherever the import stands."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join(parents + ([node.module] if node.module else []))
            for alias in node.names:  # a module of the package, or a name in its __init__
                full = f"{origin}.{alias.name}"
                found.add(full if full in modules else origin)
    return {module for module in found if module in modules and module != name}


def circles(root):
    """Sorted lists of modules, each of which reaches all others of its list by imports."""
    modules = modules_below(root)
    imports = {name: imports_of(name, path, modules) for name, path in modules.items()}
    reached = {name: set(found) for name, found in imports.items()}
    for middle in modules:  # Warshall's transitive closure
        for name in modules:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return sorted(
        {
            tuple(sorted({name} | {n for n in reached[name] if name in reached[n]}))
            for name in modules
            if name in reached[name]
        }
    )


class PythonImports(unittest.TestCase):
    def test_the_package_has_no_circle(self):
        self.assertGreater(len(modules_below(SOURCES)), 30)
        self.assertEqual(circles(SOURCES), [])

    def test_planted_circles_are_found(self):
        typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A\n"
        for closing in (
            "from . import a\n",
            "from .a import A\n",
            "import p.a\n",
            "def f():\n    from p import a\n",
            typed,
        ):
            with self.subTest(closing=closing), tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(folder)
                (root / "p").mkdir()
                (root / "p/__init__.py").write_text("from .a import A\n")
                (root / "p/a.py").write_text("from .b import B\nclass A: pass\n")
                (root / "p/b.py").write_text("from .c import C\nclass B: pass\n")
                (root / "p/c.py").write_text("class C: pass\n")
                self.assertEqual(circles(root), [])
                (root / "p/c.py").write_text(closing + "class C: pass\n")
                self.assertEqual(circles(root), [("p.a", "p.b", "p.c")])

    def test_a_package_and_its_part_can_be_a_circle(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "p/q").mkdir(parents=True)
            (root / "p/__init__.py").write_text("from . import a\n")
            (root / "p/a.py").write_text("import p\n")
            (root / "p/q/__init__.py").write_text("from .. import a\n")
            self.assertEqual(circles(root), [("p", "p.a")])


if __name__ == "__main__":
    unittest.main()
