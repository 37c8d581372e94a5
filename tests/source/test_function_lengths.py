"""A function has at most 100 lines, in C++, CUDA and Python. Longer ones are listed here, and the list may only shrink."""

import ast
import os
import re
import tempfile
import unittest

from cpp_functions import functions

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SKIPPED = re.compile(r"\.(?!ci$)|build|dist$|shared$|__pycache__$")
MOST = 100
# Lines of the functions that are longer, by file and name.
LONGER = {
    ("kernels/cuda/fused/kernel/fused_compute.cuh", "ComputeByHalves"): 118,
    ("tests/integration/operation_cases.py", "collectives"): 123,
}


def python_functions(text):
    return [
        (node.name, node.lineno, node.end_lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def longer(root, most=MOST):
    """({(file, name): lines} of the functions below `root` that have more lines, how many functions there are)."""
    found, count = {}, 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not SKIPPED.match(name)]
        for name in names:
            path = os.path.join(folder, name)
            read = python_functions if name.endswith(".py") else functions
            if not name.endswith((".c", ".cc", ".cu", ".cuh", ".h", ".py")):
                continue
            with open(path) as file:
                text = file.read()
            for function, first, last in read(text):
                count += 1
                if last - first + 1 > most:
                    key = (os.path.relpath(path, root), function)
                    found[key] = max(found.get(key, 0), last - first + 1)
    return found, count


class FunctionLengths(unittest.TestCase):
    def test_no_function_is_too_long(self):
        found, count = longer(ROOT)
        self.assertGreater(count, 10000, "functions are not found")
        grown = {key: lines for key, lines in found.items() if lines > LONGER.get(key, MOST)}
        self.assertEqual(grown, {}, "split them by idea")
        self.assertEqual(LONGER.keys() - found.keys(), set(), "take these out of the list")

    def check(self, text, *expected):
        self.assertEqual(functions(text), list(expected))

    def test_functions_are_found(self):
        self.check("int F() {\n  return 1;\n}\n", ("F", 1, 3))
        self.check("namespace a::b {\ntemplate <int N = 4>\nint F(int x = 3)\n{ return x; }\n}", ("F", 2, 4))
        self.check(
            "class A final : public B {\n public:\n  ~A() override { if (x) { y(); } }\n  int z_{3};\n};", ("~A", 3, 3)
        )
        self.check("A::A(int x) : x_{x}, y_(x) {\n  z();\n}", ("A::A", 1, 3))
        self.check("auto F() -> std::vector<int> {\n  return {1, 2};\n}", ("F", 1, 3))
        self.check(
            "A& A::operator=(const A& a) & noexcept {\n}\nbool operator()(int x) const {\n}",
            ("A::operator=", 1, 2),
            ("operator()", 3, 4),
        )
        self.check("__global__ void __launch_bounds__(kThreads, 1) K(const P p) {\n}", ("K", 1, 2))
        self.check("TEST_F(Suite, Name) {\n  [] { f(); }();\n}", ("TEST_F(Suite, Name)", 1, 3))
        self.check('extern "C" {\nvoid F(void) {\n}\n}', ("F", 2, 3))

    def test_other_braces_are_no_functions(self):
        self.check(
            "constexpr int k[] = {1, 2};\nstd::function<void(int)> f_{g};\nenum class E : int { a, b };\nstruct S { int x = 1; };"
        )
        self.check("#define F(x) \\\n  void x() {   \\\n  }\nint y;")

    def test_text_and_comments_are_passed_over(self):
        self.check(
            "int F() {\n  f(\"{\", '{', '\\'', 1'000, u8\"}\");  // {\n  /* { */ g(R\"x(\n{)x\");\n}\nint G() {}",
            ("F", 1, 5),
            ("G", 6, 6),
        )

    def test_one_branch_of_a_conditional_counts(self):
        self.check("#ifdef A\nint F() {\n#else\nint F(int x) {\n#endif\n  return 1;\n}", ("F", 2, 7))

    def test_planted_ones_are_found(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text in (
                ("a.cc", "void Short() {" + "\n" * 99 + "}\nvoid Long() {" + "\n" * 100 + "}\n"),
                ("b.py", "def right():" + "\n    f()" * 99 + "\ndef long():" + "\n    f()" * 100 + "\n"),
                ("c.txt", "void Long() {" + "\n" * 200 + "}\n"),
            ):
                with open(os.path.join(root, name), "w") as file:
                    file.write(text)
            self.assertEqual(longer(root), ({("a.cc", "Long"): 101, ("b.py", "long"): 101}, 4))


if __name__ == "__main__":
    unittest.main()
