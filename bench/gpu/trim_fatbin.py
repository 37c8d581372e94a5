#!/usr/bin/env python3
"""Takes the code of other GPUs out of a library: trim_fatbin.py LIBRARY OUT [--keep 90] [--list]

Each fat binary of the library stays where it is, but ends behind its code for the kept architecture, which is bit by bit
what it was; the rest of its room is zeros, which any compressor packs away. PTX goes too: it is for architectures that none
of the entries is for. A fat binary without code for the kept architecture stays whole: it is refused as before."""

import argparse
import os
import struct
import sys
from dataclasses import dataclass

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
# A fat binary starts with its magic, version, bytes of this header, bytes behind it.
# An entry starts with its kind, version, bytes of this header, bytes behind it; the architecture stands further on.
FATBIN, FATBIN_MAGIC, LENGTH_AT = struct.Struct("<IHHQ"), 0xBA55ED50, 8
ENTRY, ARCHITECTURE_AT = struct.Struct("<HHIQ"), 28
KINDS = {1: "ptx", 2: "elf"}
ELF_HEADER, SECTION_HEADER = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True)
class Entry:
    kind: str
    architecture: int
    start: int  # where in the file the header is
    end: int


@dataclass(frozen=True)
class FatBinary:
    section: str
    start: int  # where in the file the header is
    body: int  # where its entries start
    end: int
    entries: tuple


def sections(data):
    """{name: (offset, size)} of a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF file")
    header = ELF_HEADER.unpack_from(data)
    first, entry_size, count, names_at = header[6], header[11], header[12], header[13]
    found = [SECTION_HEADER.unpack_from(data, first + i * entry_size) for i in range(count)]
    names = found[names_at][4]
    name = lambda at: bytes(data[names + at : data.index(b"\0", names + at)]).decode()
    return {name(section[0]): (section[4], section[5]) for section in found}


def entries(data, at, end):
    """The entries of a fat binary."""
    while at < end:
        kind, _, header, length = ENTRY.unpack_from(data, at)
        if header < ARCHITECTURE_AT + 4 or at + header + length > end:
            raise ValueError("an entry is longer than its fat binary")
        (architecture,) = struct.unpack_from("<I", data, at + ARCHITECTURE_AT)
        yield Entry(KINDS.get(kind, str(kind)), architecture, at, at + header + length)
        at += header + length


def fat_binaries(data):
    places = sections(data)
    for section in SECTIONS:
        at, size = places.get(section, (0, 0))
        end = at + size
        while at + FATBIN.size <= end:
            magic, _, header, length = FATBIN.unpack_from(data, at)
            if magic != FATBIN_MAGIC:  # what aligns the next one
                at += 8
                continue
            body, stop = at + header, at + header + length
            if stop > end:
                raise ValueError(f"a fat binary of {section} is longer than its section")
            yield FatBinary(section, at, body, stop, tuple(entries(data, body, stop)))
            at = stop


def trim(data, keep):
    """Takes code out of `data`, a bytearray. Bytes that stay, and bytes that went."""
    kept = gone = 0
    for binary in list(fat_binaries(data)):
        stays = [entry for entry in binary.entries if entry.kind == "elf" and entry.architecture == keep]
        if not stays:
            kept += binary.end - binary.body
            continue
        body = b"".join(data[entry.start : entry.end] for entry in stays)
        room = binary.end - binary.body
        data[binary.body : binary.end] = body + bytes(room - len(body))
        struct.pack_into("<Q", data, binary.start + LENGTH_AT, len(body))
        kept, gone = kept + len(body), gone + room - len(body)
    return kept, gone


def print_list(data):
    sums = {}
    for binary in fat_binaries(data):
        for entry in binary.entries:
            key = binary.section, entry.kind, entry.architecture
            count, size = sums.get(key, (0, 0))
            sums[key] = count + 1, size + entry.end - entry.start
    for (section, kind, architecture), (count, size) in sorted(sums.items()):
        print(f"{section:16} {kind} sm_{architecture:<4} {count:5} entries {size:12} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--keep", type=int, default=90, metavar="ARCHITECTURE", help="as 90: sm_90 and sm_90a")
    parser.add_argument("--list", action="store_true", help="says what the library has, and writes nothing")
    options = parser.parse_args()
    with open(options.library, "rb") as file:
        data = bytearray(file.read())
    if options.list:
        print_list(data)
        return
    if not options.out:
        parser.error("OUT is needed")
    kept, gone = trim(data, options.keep)
    if not any(entry.architecture == options.keep for binary in fat_binaries(data) for entry in binary.entries):
        sys.exit(f"trim_fatbin: {options.library} has no code for sm_{options.keep}")
    with open(options.out, "wb") as file:
        file.write(data)
    os.chmod(options.out, 0o755)
    print(f"{options.out}: {kept} bytes of code stay, {gone} bytes are zeros")


if __name__ == "__main__":
    main()
