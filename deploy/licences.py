"""The projects whose libraries Tandem's packages have copies of, with their licences.

What cmake/TandemBundle.cmake copies is read from the plugin; a library that no project here has is an error, so that none is passed on
without its licence.
"""

import dataclasses
import json
import re


@dataclasses.dataclass(frozen=True)
class Project:
    """A project's libraries, by their names up to ".so"."""

    name: str
    libraries: str  # a pattern
    licence: str  # an SPDX expression
    copyright: str


PROJECTS = (
    Project("gRPC", r"libgrpc.*|libgpr", "Apache-2.0", "2014-2022 the gRPC authors"),
    Project(
        "gRPC's address sorting",
        r"libaddress_sorting",
        "Apache-2.0 AND BSD-3-Clause",
        "2017 the gRPC authors, 1995-1998 WIDE Project",
    ),
    Project("upb", r"libupb.*", "BSD-3-Clause", "2009-2022 Google LLC"),
    Project("Abseil", r"libabsl_.*", "Apache-2.0", "2017-2022 the Abseil authors"),
    Project("Protocol Buffers", r"libprotobuf.*|libutf8_.*", "BSD-3-Clause", "2008-2022 Google LLC"),
    Project(
        "c-ares",
        r"libcares",
        "MIT AND ISC",
        "1998 Massachusetts Institute of Technology, 2007-2023 Daniel Stenberg and others",
    ),
    Project("zlib", r"libz", "Zlib", "1995-2022 Jean-loup Gailly and Mark Adler"),
    Project("RE2", r"libre2", "BSD-3-Clause", "2009 the RE2 authors"),
    Project("OpenSSL", r"libssl|libcrypto", "Apache-2.0", "1998-2023 the OpenSSL Project authors"),
)


class UnknownLibrary(Exception):
    """A library is of no project of the list."""


def project_of(library):
    """The project of a library by its name ("libz.so.1")."""
    stem = library.partition(".so")[0]
    for project in PROJECTS:
        if re.fullmatch(project.libraries, stem):
            return project
    raise UnknownLibrary(f"{library} is of no project in deploy/licences.py: add it there with its licence")


def bundled(path):
    """{project: {file in the bundle: file that it is a copy of}} of the libraries in a bundled.json (client/bundle), by project names."""
    projects = {}
    with open(path) as file:
        for each in json.load(file):
            projects.setdefault(project_of(each["name"]), {})[each["file"]] = each["source"]
    return dict(sorted(projects.items(), key=lambda item: item[0].name.lower()))
