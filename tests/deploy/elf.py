"""The hardening of a program or a library, by readelf."""

import re
import subprocess


def readelf(binary, *options):
    return subprocess.run(
        ["readelf", "-W", *options, binary], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def missing_hardening(binary):
    """Names of what the program or library has not. FORTIFY is missing also where no function is called that has a checked form."""
    header, dynamic, segments = (readelf(binary, option) for option in ("-h", "-d", "-l"))
    symbols = readelf(binary, "--dyn-syms")
    found = {
        "PIE": re.search(r"Type:\s+DYN", header),
        "BIND_NOW": re.search(r"\b(BIND_NOW|NOW)\b", dynamic),
        "RELRO": "GNU_RELRO" in segments,
        "stack without execution": re.search(r"GNU_STACK.* RW ", segments),
        "no run path": not re.search(r"\((RPATH|RUNPATH)\)", dynamic),
        "stack protector": "__stack_chk_fail" in symbols,
        "FORTIFY": re.search(r"__\w+_chk@", symbols.replace("__stack_chk_fail", "")),
    }
    return {name for name, has in found.items() if not has}
