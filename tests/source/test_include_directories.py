"""Each target has its own include directories: no CMake file gives any to all targets of a folder or of the build."""

import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SKIPPED = re.compile(r"\.|build|dist$|shared$|__pycache__$")

COMMENTS = re.compile(r"#[^\n]*")
# The commands, properties and variables of CMake by which directories reach targets that do not name them.
GLOBAL = re.compile(
    r"\b(?<!target_)(include_directories)\s*\("
    r"|\b(CMAKE_INCLUDE_CURRENT_DIR(?:_IN_INTERFACE)?)\b"
    r"|\b(CMAKE_\w*STANDARD_INCLUDE_DIRECTORIES)\b"
    r"|\bset_(?:directory_properties|property)\s*\((?:DIRECTORY\b)?[^)]*\b(INCLUDE_DIRECTORIES)\b"
    r"|\b(CMAKE_(?:C|CXX|CUDA)_FLAGS\w*)\s[^)]*-(?:I|isystem)"
    r"|\b(?<!target_)(add_compile_options|add_definitions)\s*\([^)]*-(?:I|isystem)",
    re.I,
)


def cmake_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not SKIPPED.match(name)]
        for name in names:
            if name == "CMakeLists.txt" or name.endswith(".cmake"):
                yield os.path.join(folder, name)


def global_directories(root):
    """(file, command) of all directories that targets get without naming them."""
    found = []
    for path in cmake_files(root):
        with open(path, errors="replace") as file:
            text = COMMENTS.sub(" ", file.read())
        for match in GLOBAL.finditer(text):
            found.append((os.path.relpath(path, root), next(filter(None, match.groups()))))
    return sorted(found)


class IncludeDirectories(unittest.TestCase):
    def test_no_global_ones(self):
        self.assertGreater(len(list(cmake_files(ROOT))), 30)
        self.assertEqual(global_directories(ROOT), [])

    def test_planted_ones_are_found(self):
        planted = {
            "CMakeLists.txt": ("include_directories", 'include_directories("${CMAKE_SOURCE_DIR}")'),
            "a/CMakeLists.txt": ("CMAKE_INCLUDE_CURRENT_DIR", "set(CMAKE_INCLUDE_CURRENT_DIR ON)"),
            "b/CMakeLists.txt": (
                "INCLUDE_DIRECTORIES",
                'set_property(DIRECTORY APPEND PROPERTY INCLUDE_DIRECTORIES "/x")',
            ),
            "c/d.cmake": ("CMAKE_CXX_FLAGS", 'set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -I/x")'),
            "c/e.cmake": ("add_compile_options", "add_compile_options(-Wall\n  -I/x)"),
            "c/f.cmake": (
                "CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES",
                "list(APPEND CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES /x)",
            ),
        }
        innocent = {
            "g/CMakeLists.txt": "# include_directories(x)\ntarget_include_directories(t PUBLIC x)\n"
            "add_compile_options(-Wall)\ntarget_compile_options(t PRIVATE -Iy)\n",
            "build/CMakeLists.txt": "include_directories(x)",
        }
        with tempfile.TemporaryDirectory() as root:
            texts = {path: text for path, (_, text) in planted.items()}
            for path, text in {**texts, **innocent}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            self.assertEqual(global_directories(root), sorted((path, name) for path, (name, _) in planted.items()))


if __name__ == "__main__":
    unittest.main()
