"""Generates what is written from the tables common/ops.def and client/torch/torch_ops.def. test_tables.py compares.

python3 tests/source/tables.py           names the files that differ from the tables
python3 tests/source/tables.py --write   writes them
"""

import os
import re
import sys
import textwrap
from dataclasses import dataclass, field

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
COLUMNS = 110
PYTHON_COLUMNS = 132

OPS = "common/ops.def"
TORCH_OPS = "client/torch/torch_ops.def"
CPP_HEADERS = ("common/include/tandem/element_type.h", "common/include/tandem/op_request.h")
C_HEADER = "client/include/tandem/c_types.h"
PYTHON_ENUMS = "client/python/src/tandem/enums.py"
TORCH_TABLE = "client/python/src/tandem/torch/_op_table.py"

ENUM = re.compile(r"TANDEM_ENUM\((\w+), (\w+), (\w+), (\w+)\)")
ROW = re.compile(r"(TANDEM_\w+)\((k\w+), (\w+), (\d+)\)(?:  // (.*))?")
REFERENCE = re.compile(
    r"(?<![-/\w])(dtype|op|reduce_op|wire|on_unfused|placement|determinism|rounding|algorithm|role)\.(\w+)\b"
)
TORCH_ROW = re.compile(r"^TANDEM_TORCH_OP(_SEVERAL)?\(\w+, (\w+), (kAutocast|kOwnTypes),(.*?)\)$", re.M | re.S)


@dataclass
class Value:
    """A constant. comment: lines; one that begins with a space is kept as it stands."""

    constant: str
    name: str
    number: int
    comment: list[str]


@dataclass
class Enum:
    cpp: str
    c: str
    prefix: str
    python: str
    comment: list[str]
    values: list[Value] = field(default_factory=list)


def read(path, root=ROOT):
    with open(os.path.join(root, path)) as file:
        return file.read()


def parse_enums(text):
    """The enumerations of ops.def. ValueError names a line that no enumeration takes."""
    enums, comment, macro = [], [], None
    for line in text.splitlines():
        if line.startswith("//"):
            comment.append(line[2:].removeprefix(" "))
            continue
        if enum := ENUM.fullmatch(line):
            enums.append(Enum(*enum.groups(), comment))
            macro = None
        elif row := ROW.fullmatch(line):
            if not enums or macro not in (None, row[1]):
                raise ValueError(f"{OPS}: {row[1]} stands in another enumeration: {line}")
            macro = row[1]
            enums[-1].values.append(Value(row[2], row[3], int(row[4]), comment or ([row[5]] if row[5] else [])))
        comment = []
    return enums


def wrapped(comment, width):
    """Paragraphs filled to the width."""
    lines, paragraph = [], []
    for line in [*comment, None]:
        if line is not None and not line.startswith(" "):
            paragraph.append(line)
            continue
        lines += textwrap.wrap(" ".join(paragraph), width, break_long_words=False, break_on_hyphens=False)
        paragraph = []
        if line is not None:
            lines.append(line)
    return lines


def translated(comment, enums, constant):
    """The comment with the language's names for constants."""
    by_key = {enum.c.removeprefix("tandem_"): enum for enum in enums}

    def name(match):
        enum = by_key[match[1]]
        for value in enum.values:
            if value.name == match[2]:
                return constant(enum, value)
        raise ValueError(f"{OPS}: a comment names {match[0]}, which is no constant")

    return [REFERENCE.sub(name, line) for line in comment]


def cpp_name(_, value):
    return value.constant


def c_name(enum, value):
    return enum.prefix + value.name.upper()


def declaration(enum, enums, head, name, comment_of, last_comma):
    """An enumeration in C or C++: in one line where that fits and no constant has a comment."""
    rows = [f"{name(enum, value)} = {value.number}" for value in enum.values]
    one_line = f"{head} {{ {', '.join(rows)} }};"
    lines = comment_of(translated(enum.comment, enums, name), "")
    if not any(value.comment for value in enum.values) and len(one_line) <= COLUMNS:
        return "\n".join([*lines, one_line])
    lines.append(head + " {")
    for row, value in zip(rows, enum.values):
        lines += comment_of(translated(value.comment, enums, name), "  ")
        lines.append(f"  {row}{',' if last_comma or value is not enum.values[-1] else ''}")
    return "\n".join([*lines, "};"])


def cpp_comment(comment, indent):
    return [f"{indent}// {line}".rstrip() for line in wrapped(comment, COLUMNS - len(indent) - 3)]


def c_comment(comment, indent):
    lines = wrapped(comment, COLUMNS - len(indent) - 6)
    if not lines:
        return []
    lines = [f"{indent}/* {lines[0]}"] + [f"{indent} * {line}".rstrip() for line in lines[1:]]
    return [*lines[:-1], lines[-1] + " */"]


def replaced(pattern, new, text, where):
    """The text with its one match replaced."""
    text, count = re.subn(pattern, lambda _: new, text, flags=re.M)
    if count != 1:
        raise ValueError(f"{where}: {count} places for\n{new}")
    return text


def headers_of_cpp(enums, root=ROOT):
    texts = {path: read(path, root) for path in CPP_HEADERS}
    for enum in enums:
        path = CPP_HEADERS[0] if enum.cpp == "DType" else CPP_HEADERS[1]
        head = f"enum class {enum.cpp} : uint8_t"
        new = declaration(enum, enums, head, cpp_name, cpp_comment, True)
        texts[path] = replaced(rf"(?:^//.*\n)*^{head} {{[^}}]*}};", new, texts[path], path)
    return texts


def header_of_c(enums, root=ROOT):
    text = read(C_HEADER, root)
    for enum in enums:
        new = declaration(enum, enums, f"enum {enum.c}", c_name, c_comment, False)
        text = replaced(rf"(?:^/\*(?:(?!\*/)[\s\S])*\*/\n)?^enum {enum.c} {{[^}}]*}};", new, text, C_HEADER)
    return {C_HEADER: text}


def enums_of_python(enums, root=ROOT):
    """The members only; a class has its own docstring."""
    text = read(PYTHON_ENUMS, root)
    for enum in enums:
        if enum.python == "none":
            continue
        rows = "".join(f"    {value.name} = {value.number}\n" for value in enum.values)
        head = re.search(rf'^class {enum.python}\(IntEnum\):\n    """[^"]*"""\n\n', text, re.M)
        if head is None:
            raise ValueError(f"{PYTHON_ENUMS}: no class {enum.python}")
        body = re.compile(r"(?:    \w+ = \d+\n)*").match(text, head.end())
        text = text[: head.end()] + rows + text[body.end() :]
    return {PYTHON_ENUMS: text}


def parse_torch_ops(text):
    """The rows of torch_ops.def: (name, whether autocast concerns it, its texts). Texts beside each other are one."""
    rows = []
    for several, name, types, rest in TORCH_ROW.findall(text):
        texts = [""]
        for piece, comma in re.findall(r'"([^"]*)"|(,)', rest):
            if comma:
                texts.append("")
            texts[-1] += piece
        if len(texts) != (4 if several else 2):
            raise ValueError(f"{TORCH_OPS}: {name} has {len(texts)} texts")
        rows.append((name, types == "kAutocast", texts))
    return rows


def parse_torch_ops_in_place(text):
    """The rows of the ops that change their first argument: name and arguments."""
    return re.findall(r'^TANDEM_TORCH_OP_IN_PLACE\(\w+, (\w+), "([^"]*)"\)', text, re.M)


TORCH_HEAD = '''"""The ops of torch.ops.tandem. Generated from client/torch/torch_ops.def, which has the reasons, by tests/source/tables.py."""

from __future__ import annotations

from typing import NamedTuple


class OpSchema(NamedTuple):
    """The schemas of one op's overloads, but for the arguments that the overloads add."""

    arguments: str
    into: str  # of the overloads that write `outs`
    outs: str
    result: str
    autocast: bool  # whether torch.autocast concerns the op


OPS = {
'''


def quoted(text, indent):
    """A text of Python, in several pieces where a line is too short for it."""
    width = PYTHON_COLUMNS - indent - len('"",')
    pieces = textwrap.wrap(text, width, drop_whitespace=False) or [""]
    return f"\n{' ' * indent}".join(f'"{piece}"' for piece in pieces)


def table_of_torch(root=ROOT):
    rows = []
    for name, casts, texts in parse_torch_ops(read(TORCH_OPS, root)):
        arguments, into, outs, result = texts if len(texts) == 4 else (texts[0], texts[0], texts[1], "Tensor")
        fields = [quoted(text, 8) for text in (arguments, into, outs, result)] + [str(casts)]
        rows.append(f'    "{name}": OpSchema(\n' + "".join(f"        {one},\n" for one in fields) + "    ),\n")
    in_place = [
        f'    "{name}": "{arguments}",\n' for name, arguments in parse_torch_ops_in_place(read(TORCH_OPS, root))
    ]
    tail = "# Arguments of the ops that change their first argument and return nothing.\nIN_PLACE_OPS = {\n"
    return {TORCH_TABLE: TORCH_HEAD + "".join(rows) + "}\n\n" + tail + "".join(in_place) + "}\n"}


def generated(root=ROOT):
    """path -> text of each file."""
    enums = parse_enums(read(OPS, root))
    files = headers_of_cpp(enums, root)
    files.update(header_of_c(enums, root))
    files.update(enums_of_python(enums, root))
    files.update(table_of_torch(root))
    return files


def differing(root=ROOT):
    """The generated files whose text is another one."""
    return [path for path, text in generated(root).items() if text != read(path, root)]


def main(arguments):
    if arguments not in ([], ["--write"]):
        sys.exit(__doc__)
    for path in differing():
        print(path)
        if arguments:
            text = generated()[path]
            with open(os.path.join(ROOT, path), "w") as file:
                file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
