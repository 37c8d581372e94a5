"""Copies a library and all that it needs, so that it runs where only the C and C++ libraries are.

    bundle_libraries.py [--strip] [--folder NAME] LIBRARY OUT

OUT gets the library, OUT/NAME the libraries that it needs, and OUT/bundled.json says what they are copies of. Each copy has a
name of its own (name-HASH.so.N), which nothing else in a process asks for, finds the others beside itself, and shares no
symbols with another copy (unique_symbols.py). The process's own gRPC stays apart. The libraries of SYSTEM are never copied.

Needs patchelf, pyelftools, ldd, and with --strip the program strip.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from elftools.elf.elffile import ELFFile
from unique_symbols import without_unique_symbols

# Those of each machine with a C++ program: glibc's and GCC's run time.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so(\.\d+)?")


class BundleError(Exception):
    """A library cannot be bundled. The text says why."""


def entries(library, tag):
    """The values of a kind of the library's dynamic entries, as pyelftools names both ("DT_NEEDED", "needed")."""
    with open(library, "rb") as file:
        found = ELFFile(file).get_section_by_name(".dynamic").iter_tags(tag)
        return [getattr(each, tag.removeprefix("DT_").lower()) for each in found]


def needed(library):
    """The names that a library asks the loader for."""
    return entries(library, "DT_NEEDED")


def found(library):
    """Name and file of each library that the loader gives this one, those that libraries need too."""
    told = subprocess.run(
        ["ldd", library], capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if told.returncode != 0:
        raise BundleError(f"ldd {library}: {(told.stderr or told.stdout).strip()}")
    return dict(re.findall(r"^\s+(\S+) => (/\S+) \(0x", told.stdout, re.M))


def own_names(sources):
    """{name: the copy's name}: libz.so.1 becomes libz-0123abcd.so.1. The digits stand for all of the bundle: a process that has two
    bundles takes no library of one for the other's."""
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(hashlib.sha256(pathlib.Path(sources[name]).read_bytes()).digest())
    return {name: name.replace(".so", f"-{digest.hexdigest()[:8]}.so", 1) for name in sources}


def copy(source, target, names, run_path, strip, soname=None):
    """Copies a library, with `names` in place of those that it asks for, and a path to them from its own folder."""
    shutil.copyfile(source, target)
    target.chmod(0o644)
    if strip:  # before patchelf: what that has moved, strip may break
        subprocess.run(["strip", "--strip-unneeded", target], check=True)
    before = needed(target)
    asked = [name for name in before if name in names]
    # One change at a time: patchelf 0.14 loses some of several.
    changes = [["--set-soname", soname]] if soname else []
    changes += [["--replace-needed", name, names[name]] for name in asked]
    # A run path that does nothing is left out; one of the build's would be a mistake.
    changes += [["--set-rpath", run_path] if asked else ["--remove-rpath"]]
    for change in changes:
        subprocess.run(["patchelf", *change, target], check=True)
    target.write_bytes(without_unique_symbols(target.read_bytes()))
    if sorted(needed(target)) != sorted(names.get(name, name) for name in before):
        raise BundleError(f"patchelf has left {target} with {needed(target)}")
    if entries(target, "DT_RUNPATH") != ([run_path] if asked else []) or entries(target, "DT_RPATH"):
        raise BundleError(f"patchelf has left {target} with the run path {entries(target, 'DT_RUNPATH')}")


def bundle(library, out, folder, strip):
    """Writes the bundle. Returns what bundled.json says: name, file and source of each copy."""
    files = found(library)
    wanted, sources = needed(library), {}
    while wanted:
        name = wanted.pop()
        if SYSTEM.fullmatch(name) or name in sources:
            continue
        if name not in files:
            raise BundleError(f"{library} needs {name}, which the loader does not find")
        sources[name] = os.path.realpath(files[name])
        wanted += needed(sources[name])
    names = own_names(sources)
    shutil.rmtree(out, ignore_errors=True)
    (out / folder).mkdir(parents=True)
    for name, source in sources.items():
        copy(source, out / folder / names[name], names, "$ORIGIN", strip, names[name])
    copy(library, out / library.name, names, f"$ORIGIN/{folder}", strip)
    return [{"name": name, "file": f"{folder}/{names[name]}", "source": sources[name]} for name in sorted(sources)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--strip", action="store_true", help="without the symbols that only debuggers read")
    parser.add_argument("--folder", default="tandem", help="of the copies, in OUT (default: tandem)")
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    line = parser.parse_args()
    try:
        copies = bundle(line.library, line.out, line.folder, line.strip)
    except (BundleError, subprocess.CalledProcessError) as error:
        sys.exit(f"bundle_libraries.py: {error}")
    (line.out / "bundled.json").write_text(json.dumps(copies, indent=1) + "\n")


if __name__ == "__main__":
    main()
