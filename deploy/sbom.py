"""Writes the SPDX 2.3 bill of materials of a package: this project's programs, the packages of the distribution that they are linked
with, those whose libraries the package has copies of (--bundled), and those whose headers were compiled into them.

    deploy/sbom.py --name tandem-daemon --version 0.2.0 --build build/package --output tandem-daemon.spdx.json PROGRAM...

What a program needs comes from the program itself (its dynamic section, as the loader resolves it), from the link commands (static
libraries) and from the compiler's dependencies (headers) in the build folder, so that no list has to be kept. SOURCE_DATE_EPOCH sets
the time in the document.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import uuid

import licences


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def dynamic_libraries(program):
    """Files of the libraries that the loader gives a program, those that libraries need too."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {os.path.realpath(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", text, re.M)}


def build_files(build, targets):
    """Static libraries and headers outside the project that objects and links of the build have read."""
    # Python's packages and the compiler have their own folders below /usr; only what is linked or included is named here.
    commands = output("ninja", "-C", build, "-t", "commands", *targets)
    static = {os.path.realpath(path) for path in re.findall(r"(?<=\s)(/usr/\S+\.a)(?=\s)", commands)}
    objects = set(re.findall(r"-o (\S+\.o)\b", commands))
    headers, wanted = set(), False
    for line in output("ninja", "-C", build, "-t", "deps").splitlines():
        if line and not line.startswith(" "):
            wanted = line.split(":")[0] in objects
        elif wanted and line.strip().startswith("/usr/"):
            headers.add(os.path.realpath(line.strip()))
    return static, headers


def packages_by_dpkg(paths):
    # A merged /usr: a package may list a file without it.
    names = [name for path in sorted(paths) for name in (path, path.removeprefix("/usr"))]
    if not names:
        return set()
    text = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True, check=False).stdout
    owners = {line.split(": ")[0].split(", ")[0] for line in text.splitlines() if not line.startswith("diversion")}
    if not owners:
        return set()
    fields = "${Package}|${Version}|${source:Package}\\n"
    return {
        (name, version, source, f"pkg:deb/{distribution()}/{name}@{version}")
        for name, version, source in (
            line.split("|") for line in output("dpkg-query", "-W", "-f", fields, *sorted(owners)).splitlines()
        )
    }


def packages_by_rpm(paths):
    if not paths:
        return set()
    fields = "%{NAME}|%{EVR}|%{SOURCERPM}\\n"
    text = subprocess.run(
        ["rpm", "-qf", "--qf", fields, *sorted(paths)], capture_output=True, text=True, check=False
    ).stdout
    return {
        (name, version, source, f"pkg:rpm/{distribution()}/{name}@{version}")
        for name, version, source in (line.split("|") for line in text.splitlines() if line.count("|") == 2)
    }


def packages_of(paths):
    """The distribution's packages that these files are of."""
    return packages_by_dpkg(paths) if shutil.which("dpkg") else packages_by_rpm(paths)


@functools.cache
def distribution():
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        if line.startswith("ID="):
            return line[3:].strip('"')
    return "linux"


def element(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def licences_of(copies):
    """{package: SPDX expression} of the packages whose libraries are copied: `copies` as licences.bundled gives them."""
    found = {}
    for project, files in copies.items():
        for package in packages_of(set(files.values())):
            found.setdefault(package, set()).update(project.licence.split(" AND "))
    return {package: " AND ".join(sorted(names)) for package, names in found.items()}


def document(name, version, dynamic, static, headers, bundled):
    """The document. `dynamic`, `static` and `headers` are packages: (name, version, source, purl). `bundled` has such packages and
    their licences."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", datetime.datetime.now(datetime.timezone.utc).timestamp()))
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    own = element(name)
    packages = [
        {
            "SPDXID": own,
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "Apache-2.0",
            "licenseDeclared": "Apache-2.0",
            "copyrightText": "NOASSERTION",
            "supplier": "Organization: Tandem maintainers",
        }
    ]
    relationships = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own}]
    for package, package_version, source, purl in sorted(dynamic | static | headers | set(bundled)):
        licence = bundled.get((package, package_version, source, purl), "NOASSERTION")
        packages.append(
            {
                "SPDXID": element(package),
                "name": package,
                "versionInfo": package_version,
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False,
                "licenseConcluded": licence,
                "licenseDeclared": licence,
                "copyrightText": "NOASSERTION",
                "sourceInfo": f"built from the source package {source}",
                "externalRefs": [
                    {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
                ],
            }
        )
    for kind, found in (("DYNAMIC_LINK", dynamic), ("STATIC_LINK", static), ("CONTAINS", set(bundled))):
        for package in sorted(found):
            relationships.append(
                {"spdxElementId": own, "relationshipType": kind, "relatedSpdxElement": element(package[0])}
            )
    for package in sorted(headers - dynamic - static - set(bundled)):
        relationships.append(
            {"spdxElementId": element(package[0]), "relationshipType": "BUILD_DEPENDENCY_OF", "relatedSpdxElement": own}
        )
    content = json.dumps([name, version, packages, relationships], sort_keys=True)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"https://tandem.example/spdx/{name}-{version}-{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "creationInfo": {"created": created, "creators": ["Tool: deploy/sbom.py"]},
        "packages": packages,
        "relationships": relationships,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--build", required=True, help="the build folder, of Ninja")
    parser.add_argument(
        "--target", action="append", default=[], help="build target whose objects count; default: the programs' names"
    )
    parser.add_argument("--bundled", help="list of the libraries that the package has copies of (client/bundle)")
    parser.add_argument("--output", required=True)
    parser.add_argument("programs", nargs="+", help="programs and libraries of the package")
    arguments = parser.parse_args()
    targets = arguments.target or [pathlib.Path(program).name for program in arguments.programs]
    own = {os.path.realpath(program) for program in arguments.programs}
    dynamic = set().union(*map(dynamic_libraries, arguments.programs)) - own
    static, headers = build_files(arguments.build, targets)
    try:
        copies = licences.bundled(arguments.bundled) if arguments.bundled else {}
    except licences.UnknownLibrary as error:
        sys.exit(f"sbom.py: {error}")
    text = json.dumps(
        document(
            arguments.name,
            arguments.version,
            packages_of(dynamic),
            packages_of(static),
            packages_of(headers),
            licences_of(copies),
        ),
        indent=1,
    )
    pathlib.Path(arguments.output).write_text(text + "\n")


if __name__ == "__main__":
    main()
