"""Writes the documents on what the package tandem-client has copies of: `copyright` and `NOTICE` with the bundled libraries, their
versions and licences, and the licences' texts as the distribution's packages have them.

    deploy/notices.py --bundled build/package/bundle/bundled.json --copyright deploy/debian/copyright --notice NOTICE --output FOLDER

FOLDER gets copyright, NOTICE and bundled/PACKAGE.copyright. A licence's text that this machine does not have is an error.
"""

import argparse
import pathlib
import shutil
import sys
import textwrap

from licences import UnknownLibrary, bundled
from sbom import packages_of

CHANGES = "Changed in each: its name and those of the libraries that it needs, the path to them, and unique symbols, which are global ones."


def versions(sources):
    """{name: version} of the distribution's packages that files are of."""
    found = {name: version for name, version, _, _ in packages_of(set(sources))}
    if not found:
        sys.exit(f"notices.py: {', '.join(sources)}: of no package of this machine")
    return found


def texts_of(package):
    """The files with a package's licences."""
    debian = pathlib.Path("/usr/share/doc") / package / "copyright"
    found = [debian] if debian.is_file() else sorted(pathlib.Path("/usr/share/licenses").glob(f"{package}/*"))
    if not found:
        sys.exit(f"notices.py: {package} has its licence neither in {debian} nor in /usr/share/licenses")
    return found


def named(packages):
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


def stanza(project, files, packages):
    """A project's entry in a copyright file in Debian's form."""
    lines = ["Files:", *sorted(f" /usr/lib/*/{file}" for file in files)]
    lines += [f"Copyright: {project.copyright}", f"License: {project.licence.replace(' AND ', ' and ')}"]
    texts = ", ".join(f"bundled/{name}.copyright" for name in sorted(packages))
    comment = f"{project.name}, copied from {named(packages)}. {CHANGES} All holders and the full text: {texts}."
    return "\n".join([*lines, "Comment:", textwrap.indent(textwrap.fill(comment, 78), " ")]) + "\n"


def licence_paragraphs(projects, known):
    """Paragraphs of the short names that the file does not explain yet."""
    names = {name for project in projects for name in project.licence.split(" AND ")}
    return [
        f"License: {name}\n The full text is in the copyright files in the folder bundled, beside this file.\n"
        for name in sorted(names)
        if f"\nLicense: {name}\n " not in known
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bundled", required=True, help="the list that client/bundle has written")
    parser.add_argument("--copyright", type=pathlib.Path, required=True)
    parser.add_argument("--notice", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    try:
        copies = bundled(arguments.bundled)
    except UnknownLibrary as error:
        sys.exit(f"notices.py: {error}")
    projects = {project: (list(files), versions(files.values())) for project, files in copies.items()}
    head = arguments.copyright.read_text().rstrip("\n") + "\n"
    text = [head, *(stanza(project, *rest) for project, rest in projects.items()), *licence_paragraphs(projects, head)]
    folder = arguments.output / "bundled"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (arguments.output / "copyright").write_text("\n".join(text))
    lines = [f"- {project.name} ({project.licence}): {named(packages)}" for project, (_, packages) in projects.items()]
    (arguments.output / "NOTICE").write_text(
        arguments.notice.read_text().rstrip("\n")
        + "\n\n"
        + textwrap.fill(f"The package tandem-client has copies of these libraries. {CHANGES}", 120)
        + "\n\n"
        + "\n".join([*lines, *(f"- {project.name}: copyright {project.copyright}" for project in projects)])
        + "\n"
    )
    for package in {name for _, packages in projects.values() for name in packages}:
        texts = "\n".join(path.read_text(errors="replace") for path in texts_of(package))
        (folder / f"{package}.copyright").write_text(texts)


if __name__ == "__main__":
    main()
