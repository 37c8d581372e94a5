"""One name, one type: a class or enumeration has a name that no other one has, in whatever namespace or file."""

import collections
import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TOPS = ("client", "common", "daemon", "drivers", "engine", "ipc", "kernels", "program")

COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.S)
TOKEN = re.compile(
    r"(?P<namespace>\bnamespace(?:\s+(?P<within>[\w:]+))?\s*\{)"
    r"|\b(?:class|struct|union|enum(?:\s+class|\s+struct)?)\s+"
    r"(?:\[\[\w+\]\]\s+|alignas\([^)]*\)\s+|__attribute__\(\([^)]*\)\)\s+|[A-Z_]+(?:\([^)]*\))?\s+)*"
    r"(?P<type>[\w:]+)\s*(?:final\s*)?(?::(?!:)[^;{()]*)?\{"
    r"|\{|\}"
)


def types_of(text):
    """(namespace, name) of the types that `text` defines at namespace scope; anonymous namespaces have no name."""
    scopes = []
    for token in TOKEN.finditer(COMMENTS.sub(" ", text)):
        if token["namespace"]:
            scopes.append("namespace " + (token["within"] or ""))
        elif token["type"]:
            seen = all(scope.startswith("namespace ") for scope in scopes)
            if seen and "::" not in token["type"]:
                yield "::".join(filter(None, (scope.split(" ", 1)[1] for scope in scopes))), token["type"]
            scopes.append("type")
        elif token[0] == "{":
            scopes.append("block")
        elif scopes:
            scopes.pop()


def twice(root):
    """name -> [file (namespace)] of the names that stand for more than one type."""
    found = collections.defaultdict(list)
    for top in TOPS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if name not in ("tests", "build")]
            for name in sorted(names):
                if name.endswith((".h", ".cuh", ".cc", ".cu")):
                    path = os.path.join(folder, name)
                    with open(path, errors="replace") as file:
                        for namespace, defined in types_of(file.read()):
                            found[defined].append(f"{os.path.relpath(path, root)} ({namespace})")
    return {name: places for name, places in found.items() if len(places) > 1}


class TypeNames(unittest.TestCase):
    maxDiff = None

    def test_each_type_has_its_name_alone(self):
        self.assertEqual(twice(ROOT), {})

    def test_a_planted_one_is_found(self):
        files = {
            "engine/a.h": "namespace x::engine {\nstruct Plan {\n  enum class Kind { kA };\n};\n}",
            "client/b.h": "namespace x {\nclass Plan final : public Base {\n};\n// struct Group {\n}",
            "daemon/c.cc": "namespace x {\nnamespace {\nstruct Plan {};\nstruct Step {};\n}\nstruct Plan::Part {};\n}",
            "daemon/d.cc": "namespace x {\nvoid F() {\n  struct Group {};\n}\nstruct Group;\nstruct Group {};\n}",
            "daemon/tests/e.cc": "namespace x {\nstruct Group {};\n}",
        }
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            self.assertEqual(twice(root), {"Plan": ["client/b.h (x)", "daemon/c.cc (x)", "engine/a.h (x::engine)"]})


if __name__ == "__main__":
    unittest.main()
