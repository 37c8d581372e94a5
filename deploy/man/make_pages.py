#!/usr/bin/env python3
"""Makes the man pages from the templates beside this file and the programs' own tables of options and keys.

    make_pages.py --version V --tandemd PROGRAM --engine PROGRAM --tandemctl PROGRAM FOLDER

In a template, `@OPTIONS@` stands for the program's options, `@COMMANDS@` for tandemctl's commands with their options, `@KEYS@` for the keys
of tandemd.toml and `@VERSION@` for the version."""

import argparse
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
# An entry of --help: names, then at least two spaces and the text, or the text on lines of its own further to the right.
ENTRY = re.compile(r"^  (\S.*?)(?:\s{2,}(\S.*))?$")


class UnreadableHelp(Exception):
    """A program's --help is not as CLI11 prints it."""


def output(*command, code=0, error=False):
    """Standard output of `command` (or its standard error), which must end with `code`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TANDEM_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    if done.returncode != code:
        raise UnreadableHelp(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr}")
    return done.stderr if error else done.stdout


def escaped(text):
    """`text` as roff prints it as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def sections(text):
    """The sections of a --help: title → [(entry's name, text)]."""
    found, entries = {}, None
    for line in text.splitlines():
        title = re.match(r"^(?:\[Option Group: )?(\w[\w ]*?)\]?:$", line.strip())
        entry = ENTRY.match(line)
        if title and len(line) - len(line.lstrip()) <= 2:
            entries = found.setdefault(title.group(1), [])
        elif entries is not None and line.startswith(" " * 8) and entries:
            name, about = entries[-1]
            entries[-1] = (name, f"{about} {line.strip()}".strip())
        elif entries is not None and entry:
            entries.append((entry.group(1), entry.group(2) or ""))
    return found


def tagged(entries):
    """Entries of --help as tagged paragraphs: options bold, the names of their values in italics."""
    lines = []
    for name, about in entries:
        if not about and not name.startswith("-"):
            continue  # a group's own description
        words = [f"\\fB{escaped(word)}\\fR" if word.startswith("-") else f"\\fI{escaped(word)}\\fR" for word in name.split(" ")]
        lines += [".TP", " ".join(words), escaped(about) if about else "\\&"]
    return "\n".join(lines)


def options(help_text, names):
    found = sections(help_text)
    entries = [entry for title, part in found.items() for entry in part if title in names]
    if not entries:
        raise UnreadableHelp(f"no {' or '.join(names)} in: {help_text}")
    return tagged(entries)


def described(help_text):
    """The description that a --help begins with."""
    lines = [line for line in help_text.splitlines() if line.strip()]
    return next(line for line in lines if not line.startswith("Usage"))


def commands(program, above=()):
    """tandemctl's commands, each with its arguments and options; commands of commands come after them."""
    lines = []
    for name, about in sections(output(program, *above, "--help")).get("Subcommands", []):
        path = (*above, name)
        help_text = output(program, *path, "--help")
        found = sections(help_text)
        lines += [f".SS {escaped(' '.join(path))}", escaped(about)]
        entries = [entry for title, part in found.items() for entry in part
                   if title != "Subcommands" and not entry[0].startswith("-h,")]
        if entries:
            lines.append(tagged(entries))
        lines += commands(program, path)
    if not above and not lines:
        raise UnreadableHelp("tandemctl --help lists no subcommands")
    return lines


def keys(text):
    """The keys of a file of defaults: paragraphs of comments, the last line of each the key with its default."""
    lines, table = [], ""
    for paragraph in text.split("\n\n"):
        rows = paragraph.strip().splitlines()
        if rows and re.match(r"^\[\w+\]$", rows[0]):
            table = rows.pop(0).strip("[]")
            lines.append(f".SS [{escaped(table)}]")
        setting = re.match(r"^# (\w+) = (.*)$", rows[-1]) if rows else None
        if not setting:
            continue
        about = " ".join(row.removeprefix("# ") for row in rows[:-1])
        lines += [".TP", f"\\fB{escaped(setting.group(1))}\\fR = {escaped(setting.group(2))}", escaped(about)]
    if not lines:
        raise UnreadableHelp("tandemd --print-default-config has no keys")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("version", "tandemd", "engine", "tandemctl"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("folder", type=pathlib.Path)
    line = parser.parse_args()
    tandemctl_help = output(line.tandemctl, "--help")
    tables = {
        "tandemd.8": {"OPTIONS": options(output(line.tandemd, "--help"), ("Options", "OPTIONS"))},
        "tandemd.toml.5": {"KEYS": keys(output(line.tandemd, "--print-default-config"))},
        # tandem-engine has no --help; without arguments it prints its usage and ends with 2.
        "tandem-engine.8": {"USAGE": escaped(output(line.engine, code=2, error=True).split("usage: ")[1].split(" (")[0])},
        "tandemctl.1": {"OPTIONS": options(tandemctl_help, ("Options", "OPTIONS")),
                        "COMMANDS": "\n".join(commands(line.tandemctl))},
    }
    line.folder.mkdir(parents=True, exist_ok=True)
    for name, parts in tables.items():
        page = (HERE / f"{name}.in").read_text()
        for key, text in {**parts, "VERSION": escaped(line.version)}.items():
            if f"@{key}@" not in page:
                raise UnreadableHelp(f"{name}.in has no @{key}@")
            page = page.replace(f"@{key}@", text)
        (line.folder / name).write_text(page)


if __name__ == "__main__":
    try:
        main()
    except UnreadableHelp as error:
        sys.exit(f"make_pages.py: {error}")
