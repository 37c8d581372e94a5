#!/usr/bin/env python3
"""Compares the C interface with its committed list: constants, prototypes, layouts of structs, exported symbols.

    check_c_abi.py --header tandem.h --include DIR --library libtandem.so --cc cc --list tandem_c.abi [--update]

A line that changes or goes breaks programs that exist: TANDEM_ABI_VERSION must grow then. New lines are compatible. After a wanted
change, run with --update and commit the list."""

import argparse
import os
import re
import subprocess
import sys
import tempfile


def whole_text(header):
    """The header's text, each header of the same folder that it includes in place of the #include, once."""
    seen = set()

    def text(path):
        if path in seen or not os.path.exists(path):
            return ""
        seen.add(path)
        with open(path, encoding="utf-8") as file:
            return re.sub(
                r'^#include "tandem/(\w+\.h)"$',
                lambda part: text(os.path.join(os.path.dirname(path), part[1])),
                file.read(),
                flags=re.M,
            )

    return text(header)


def declarations(header):
    """(kind, name, text) of every declaration in the header."""
    text = re.sub(r"/\*.*?\*/", " ", whole_text(header), flags=re.S)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    text = re.sub(r'extern "C" \{', "", text)
    for match in re.finditer(r"enum (\w+) \{(.*?)\}", text, re.S):
        for constant in re.finditer(r"(\w+) =\s+(-?\d+)", match[2]):
            yield "constant", constant[1], f"{match[1]} {constant[1]} = {constant[2]}"
    for match in re.finditer(r"typedef struct (\w+) \{(.*?)\} \w+;", text, re.S):
        fields = [" ".join(field.split()) for field in match[2].split(";") if field.strip()]
        yield "struct", match[1], fields
    for match in re.finditer(r"typedef (?:void|int) \(\*(\w+)\)\(([^)]*)\);", text, re.S):
        yield "callback", match[1], " ".join(match[0].split())
    for match in re.finditer(r"TANDEM_C_API ([^;]+);", text):
        prototype = " ".join(match[1].split())
        yield "function", re.search(r"(\w+)\(", prototype)[1], prototype


def names_of(field):
    """The names that a field's declaration declares: `int a, b` has two."""
    first, *rest = field.split(",")
    return [re.search(r"(\w+)$", part.strip())[1] for part in [first, *rest]]


def layouts(structs, include, cc):
    """The offset and size of every field, as the compiler lays them out."""
    program = '#include <stdio.h>\n#include "tandem/tandem.h"\nint main(void) {\n'
    for name, fields in structs:
        program += f'  printf("layout {name} %zu bytes\\n", sizeof({name}));\n'
        for field in fields:
            for member in names_of(field):
                program += (
                    f'  printf("layout {name}.{member} at %zu, %zu bytes\\n", offsetof({name}, {member}), '
                    f"sizeof((({name}*)0)->{member}));\n"
                )
    program += "  return 0;\n}\n"
    with tempfile.TemporaryDirectory() as directory:
        source, binary = os.path.join(directory, "layout.c"), os.path.join(directory, "layout")
        with open(source, "w", encoding="utf-8") as file:
            file.write(program)
        subprocess.run([cc, "-std=c11", *(f"-I{each}" for each in include), source, "-o", binary], check=True)
        return subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[2] for line in lines.splitlines() if line.split()[2].startswith("tandem_")}


def main():
    parser = argparse.ArgumentParser()
    for name in ("--header", "--library", "--cc", "--list"):
        parser.add_argument(name, required=True)
    parser.add_argument("--include", action="append", required=True)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    found = list(declarations(arguments.header))
    version = re.search(r"#define TANDEM_ABI_VERSION (\d+)", whole_text(arguments.header))[1]
    lines = [f"version {version}"]
    structs = [(name, value) for kind, name, value in found if kind == "struct"]
    lines += [f"{kind} {value}" for kind, _, value in found if kind != "struct"]
    lines += [f"field {name}: {field}" for name, fields in structs for field in fields]
    lines += layouts(structs, arguments.include, arguments.cc)
    functions = {name for kind, name, _ in found if kind == "function"}
    symbols = exported(arguments.library)
    problems = [f"{name} is declared and not exported" for name in sorted(functions - symbols)]
    problems += [f"{name} is exported and not declared" for name in sorted(symbols - functions)]
    if arguments.update:
        with open(arguments.list, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    with open(arguments.list, encoding="utf-8") as file:
        committed = file.read().splitlines()
    gone = [line for line in committed if line not in lines]
    new = [line for line in lines if line not in committed]
    problems += [f"gone or changed: {line}" for line in gone] + [f"not in the list: {line}" for line in new]
    for problem in problems:
        print(problem)
    if gone or new:
        print(
            f"If this is wanted, run with --update and commit {arguments.list}; if a line is gone or changed, "
            "let TANDEM_ABI_VERSION grow."
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
