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
# An entry of --help: names, then the text in a separate column, or in that column on the next line. Entries of an option group are
# further to the right by two.
ENTRY = re.compile(r"^( {2}| {4})(\S.*)$")
COLUMN = 28  # from the entry's beginning
TITLE = re.compile(r"^ {0,2}(\w[\w ]*):$")


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
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    )
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def split_entry(line, is_continued):
    """An entry's names and its text, which is empty if it comes on the next line."""
    if is_continued or line[COLUMN - 1 : COLUMN] != " ":
        return line, ""
    return line[:COLUMN].strip(), line[COLUMN:].strip()


def sections(text):
    """The sections of a --help: title → [(entry's name, text)]. Those of option groups are among those of the program."""
    found, entries = {}, None
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""]):
        title, entry = TITLE.match(line), ENTRY.match(line)
        if title:
            entries = found.setdefault(title.group(1), [])
        elif entries is None or line.strip().startswith("["):
            continue  # before the first section, or an option group's name or rule
        elif entry:
            entries.append(split_entry(entry.group(2), following.startswith(" " * COLUMN)))
        elif entries and line.strip():
            name, about = entries[-1]
            entries[-1] = (name, f"{about} {line.strip()}".strip())
    return found


def tagged(entries):
    """Entries of --help as tagged paragraphs: options bold, the names of their values in italics."""
    lines = []
    for name, about in entries:
        name = re.sub(r"(\w+):\1 in", r"\1 in", name)
        name, excludes, others = name.partition(" Excludes: ")
        if excludes:
            about += f". Not with {', '.join(others.split())}"
        words = [
            f"\\fB{escaped(word)}\\fR" if re.match(r"--?[a-z]", word) else f"\\fI{escaped(word)}\\fR"
            for word in name.split(" ")
        ]
        lines += [".TP", " ".join(words), escaped(about) if about else "\\&"]
    return "\n".join(lines)


def options(help_text, names):
    found = sections(help_text)
    entries = [entry for title, part in found.items() for entry in part if title in names]
    if not entries:
        raise UnreadableHelp(f"no {' or '.join(names)} in: {help_text}")
    return tagged(entries)


def commands(program, above=()):
    """tandemctl's commands, each with its arguments and options; commands of commands come after them."""
    lines = []
    for name, about in sections(output(program, *above, "--help")).get("Subcommands", []):
        path = (*above, name)
        help_text = output(program, *path, "--help")
        found = sections(help_text)
        lines += [f".SS {escaped(' '.join(path))}", escaped(about)]
        entries = [
            entry
            for title, part in found.items()
            for entry in part
            if title != "Subcommands" and not entry[0].startswith("-h,")
        ]
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
        "tandem-engine.8": {
            "USAGE": escaped(output(line.engine, code=2, error=True).split("usage: ")[1].split(" (")[0])
        },
        "tandemctl.1": {
            "OPTIONS": options(tandemctl_help, ("Options", "OPTIONS")),
            "COMMANDS": "\n".join(commands(line.tandemctl)),
        },
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
