#!/usr/bin/env python3
"""Takes the code of other GPUs out of a library: trim_fatbin.py LIBRARY OUT [--keep 90] [--relocatable] [--list]

Every entry of the library's fat binaries keeps its header and its length; the code of other architectures becomes zeros,
which any compressor packs away. What is kept is bit by bit what it was, and so is all that the host runs. PTX goes too:
it is for architectures that none of the entries is for. --relocatable keeps __nv_relfatbin, which is for linkers."""

import argparse
import os
import struct
import sys
from dataclasses import dataclass

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
# Of a fat binary: magic, version, bytes of this header, bytes behind it. Of an entry: kind, version, bytes of its header,
# bytes behind it, and after twelve more bytes the architecture.
FATBIN, FATBIN_MAGIC = struct.Struct("<IHHQ"), 0xBA55ED50
ENTRY, ARCHITECTURE_AT = struct.Struct("<HHIQ"), 28
KINDS = {1: "ptx", 2: "elf"}
ELF_HEADER, SECTION_HEADER = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True)
class Entry:
    section: str
    kind: str
    architecture: int
    start: int  # of its code in the file
    size: int


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


def entries(data):
    """The entries of all fat binaries of the library."""
    places = sections(data)
    for section in SECTIONS:
        at, size = places.get(section, (0, 0))
        end = at + size
        while at + FATBIN.size <= end:
            magic, _, header, length = FATBIN.unpack_from(data, at)
            if magic != FATBIN_MAGIC:  # what aligns the next one
                at += 8
                continue
            entry, at = at + header, at + header + length
            if at > end:
                raise ValueError(f"a fat binary of {section} is longer than its section")
            while entry < at:
                kind, _, header, length = ENTRY.unpack_from(data, entry)
                if header < ARCHITECTURE_AT + 4 or entry + header + length > at:
                    raise ValueError(f"an entry of {section} is longer than its fat binary")
                (architecture,) = struct.unpack_from("<I", data, entry + ARCHITECTURE_AT)
                yield Entry(section, KINDS.get(kind, str(kind)), architecture, entry + header, length)
                entry += header + length


def trim(data, keep, relocatable):
    """Zeros in `data`, a bytearray, where the code of an entry goes. Bytes that stay, and bytes that went."""
    kept = gone = 0
    for entry in list(entries(data)):
        stays = entry.kind == "elf" and entry.architecture == keep
        if stays and (relocatable or entry.section == SECTIONS[0]):
            kept += entry.size
        else:
            data[entry.start : entry.start + entry.size] = bytes(entry.size)
            gone += entry.size
    return kept, gone


def print_list(data):
    sums = {}
    for entry in entries(data):
        key = entry.section, entry.kind, entry.architecture
        count, size = sums.get(key, (0, 0))
        sums[key] = count + 1, size + entry.size
    for (section, kind, architecture), (count, size) in sorted(sums.items()):
        print(f"{section:16} {kind} sm_{architecture:<4} {count:5} entries {size:12} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--keep", type=int, default=90, metavar="ARCHITECTURE", help="as 90: sm_90 and sm_90a")
    parser.add_argument("--relocatable", action="store_true", help="keeps that of __nv_relfatbin too")
    parser.add_argument("--list", action="store_true", help="says what the library has, and writes nothing")
    options = parser.parse_args()
    with open(options.library, "rb") as file:
        data = bytearray(file.read())
    if options.list:
        print_list(data)
        return
    if not options.out:
        parser.error("OUT is needed")
    kept, gone = trim(data, options.keep, options.relocatable)
    if not kept:
        sys.exit(f"trim_fatbin: {options.library} has no code for sm_{options.keep}")
    with open(options.out, "wb") as file:
        file.write(data)
    os.chmod(options.out, 0o755)
    print(f"{options.out}: {kept} bytes of code kept, {gone} bytes zeroed")


if __name__ == "__main__":
    main()
