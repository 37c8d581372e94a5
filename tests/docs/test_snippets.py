"""The lines of C and C++ that the pages show compile as they stand, with the public headers and with what they say they have."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from test_docs import ROOT, read, shown_programs

INCLUDE = [f"-I{os.path.join(ROOT, folder)}" for folder in ("client/include", "common/include")]
# The beginning and the end of a program that has a page's lines in a function, and how it is compiled.
C = """
#include <stdio.h>
#include "tandem/tandem.h"
void WriteLine(void* user, int level, const char* line);
void Run(tandem_client* client, tandem_group* group, void* input, void* output, size_t count, tandem_stream* stream,
         void* user, tandem_request request, tandem_join_options options);
void Run(tandem_client* client, tandem_group* group, void* input, void* output, size_t count, tandem_stream* stream,
         void* user, tandem_request request, tandem_join_options options) {
"""
CPP = """
#include "tandem/client.h"
#include "tandem/host_stream.h"
void Run(const std::string& key, int rank, int64_t count, const tandem::OpRequest& request, tandem::HostStream* stream,
         std::span<const tandem::Binding> bindings, tandem::Milliseconds timeout) {
"""
LANGUAGES = {
    "c": (C, ["cc", "-std=c11", "-x", "c"]),
    "cpp": (CPP, ["c++", "-std=c++20", "-x", "c++"]),
}
UNUSED = ("parameter", "variable", "but-set-variable", "result")
WARNINGS = ["-Wall", "-Wextra", "-Werror", *(f"-Wno-unused-{what}" for what in UNUSED)]


def snippets(text):
    """(language, lines) of each fenced piece of C or C++ that is no whole program."""
    programs = {code for _, code in shown_programs(text)}
    found = re.findall(r"^```(c|cpp)\n(.*?)^```$", text, re.M | re.S)
    return [(language, code) for language, code in found if code not in programs]


def faults(language, code):
    """What the compiler says of the lines."""
    begin, command = LANGUAGES[language]
    with tempfile.NamedTemporaryFile("w", suffix=f".{language}") as file:
        file.write(f"{begin}{code}}}\n")
        file.flush()
        done = subprocess.run(
            [*command, "-fsyntax-only", *WARNINGS, *INCLUDE, file.name], capture_output=True, text=True, check=False
        )
    return done.stderr if done.returncode else ""


@unittest.skipUnless(shutil.which("c++") and shutil.which("cc"), "no compiler")
class Snippets(unittest.TestCase):
    def check(self, page, least):
        found = snippets(read(page))
        self.assertGreaterEqual(len(found), least)
        for language, code in found:
            with self.subTest(code):
                self.assertEqual(faults(language, code), "")

    def test_readme(self):
        self.check("README.md", 1)

    def test_integrators(self):
        self.check("docs/integrators.md", 5)

    def test_first_program(self):
        self.check("docs/first-program.md", 1)

    def test_planted_faults(self):
        self.assertIn("tandem_no_such", faults("c", "tandem_no_such(group);\n"))
        self.assertIn("NoSuch", faults("cpp", "tandem::Client::NoSuch();\n"))
        self.assertEqual(snippets("```c\nint a;\n```\n<!-- a.c -->\n```c\nint b;\n```\n"), [("c", "int a;\n")])


if __name__ == "__main__":
    unittest.main()
