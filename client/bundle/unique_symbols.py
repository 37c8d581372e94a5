"""Makes a shared library's unique symbols global ones, so that two copies of it in a process share nothing.

The dynamic loader has one object of each "unique" symbol (STB_GNU_UNIQUE: statics of inline functions and templates) in a process,
whatever library asks and under whatever name. Two copies of gRPC would share some of their state and not the rest. Global symbols are
looked up as all others. Needs pyelftools.
"""

import io

from elftools.elf.elffile import ELFFile

GLOBAL, UNIQUE = 1, 10
INFO_AT = 4  # of st_info in Elf64_Sym


def without_unique_symbols(library):
    """The library's bytes with global symbols in place of unique ones."""
    changed = bytearray(library)
    table = ELFFile(io.BytesIO(library)).get_section_by_name(".dynsym")
    for index in range(table.num_symbols()):
        at = table["sh_offset"] + index * table["sh_entsize"] + INFO_AT
        if changed[at] >> 4 == UNIQUE:
            changed[at] = GLOBAL << 4 | changed[at] & 0xF
    return bytes(changed)
