"""Runs clang-tidy over the sources of a build folder; prints the findings and exits with 1 where there are some.

    tidy.py BUILD      BUILD/compile_commands.json names what to check; a unity build (tests/lint --tidy makes one) parses
                       each header once a library

A source that was clean is not checked again while its preprocessed text, the checks and clang-tidy stay the same: see
$XDG_CACHE_HOME/tandem/tidy.
"""

import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
CHECKS = os.path.join(ROOT, ".clang-tidy")
TIDY = os.environ.get("TANDEM_CLANG_TIDY", "clang-tidy-14")
CLANG = os.environ.get("TANDEM_CLANGXX", "clang++-14")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tandem", "tidy")
KEPT_SECONDS = 30 * 86400


def entries(build):
    """The C++ entries of the compile commands; generated code apart."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    generated = os.path.join(os.path.abspath(build), "proto") + os.sep
    return [
        entry
        for entry in commands
        if entry["file"].endswith((".cc", ".cxx")) and not os.path.abspath(entry["file"]).startswith(generated)
    ]


def flags_of(entry):
    """The compiler's flags that decide what the source means."""
    words = entry.get("arguments") or shlex.split(entry["command"])
    flags = []
    for word, following in zip(words, words[1:] + [""]):
        if word.startswith(("-I", "-D", "-std=", "-m")):
            flags.append(word)
        elif word == "-isystem":
            flags += [word, following]
    return flags


def stamp_of(entry, flags):
    """The name of the file that says that this text is clean; None for a text that cannot be preprocessed."""
    done = subprocess.run(
        [CLANG, *flags, "-w", "-E", "-P", "-C", entry["file"]], cwd=entry["directory"], capture_output=True, check=False
    )
    if done.returncode:
        return None
    digest = hashlib.sha256(done.stdout.replace(ROOT.encode(), b""))
    with open(CHECKS, "rb") as file:
        digest.update(file.read())
    digest.update(subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout)
    return os.path.join(CACHE, digest.hexdigest())


def findings(entry):
    """clang-tidy's findings in one entry; empty for a clean one."""
    flags = flags_of(entry)
    stamp = stamp_of(entry, flags)
    if stamp and os.path.exists(stamp):
        os.utime(stamp)
        return ""
    command = [TIDY, "--quiet", f"--config-file={CHECKS}", entry["file"], "--", *flags]
    done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True, check=False)
    if done.returncode == 0 and not done.stdout.strip():
        if stamp:
            os.makedirs(CACHE, exist_ok=True)
            with open(stamp, "w", encoding="utf-8"):
                pass
        return ""
    return done.stdout or done.stderr


def drop_old_stamps():
    """Forgets the texts that no run has met for a month."""
    if os.path.isdir(CACHE):
        for file in os.scandir(CACHE):
            if time.time() - file.stat().st_mtime > KEPT_SECONDS:
                os.unlink(file.path)


def check(build):
    """All findings in `build`, each once."""
    seen, texts = set(), []
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for text in pool.map(findings, entries(build)):
            if text and text not in seen:
                seen.add(text)
                texts.append(text)
    return "".join(texts)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    drop_old_stamps()
    found = check(sys.argv[1])
    print(found, end="")
    sys.exit(1 if found else 0)
