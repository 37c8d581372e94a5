"""What the documents name is in the tree: links, paths, files, flags, keys, identifiers and whole programs; and they can be
read: no wide table cells, long paragraphs or long lines."""

import json
import os
import re
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
FOLDERS = (
    "bench",
    "client",
    "cmake",
    "common",
    "daemon",
    "deploy",
    "docs",
    "drivers",
    "engine",
    "examples",
    "ipc",
    "kernels",
    "program",
    "proto",
    "runtime",
    "tests",
)
SOURCES = (
    ".cc",
    ".h",
    ".cu",
    ".cuh",
    ".py",
    ".sh",
    ".proto",
    ".txt",
    ".cmake",
    ".toml",
    ".service",
    ".conf",
    ".pml",
    "",
)
# Flags of other programs.
FLAGS = {
    *("--now", "--nodes", "--gres", "--cflags", "--libs", "--since"),
    "--model-path",
    "--tensor-parallel-size",
    "--tp-size",
    *("--rm", "--group-add", "--namespace", "--create-namespace", "--set", "--unix-socket"),
}
CONSTANTS = {
    "MPI_BYTE",
    "MPI_COMM_WORLD",
    "rule_files",
    "DCMAKE_INSTALL_PREFIX",
    "DCMAKE_PREFIX_PATH",
    "SLURM_JOB_ID",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}


def read(path):
    with open(os.path.join(ROOT, path), errors="replace") as file:
        return file.read()


MOST_CELL, MOST_LINES, MOST_COLUMNS = 80, 8, 120


def prose_lines(text):
    """(number, line) outside fenced code; numbers begin at 1."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def is_row(line):
    return line.lstrip().startswith("|")


def wide_cells(text):
    """(line, cell) of table cells over MOST_CELL characters; of a link only its text counts."""
    cells = [
        (number, re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell.strip()))
        for number, line in prose_lines(text)
        if is_row(line)
        for cell in re.split(r"(?<!\\)\|", line)
    ]
    return [(number, cell) for number, cell in cells if len(cell) > MOST_CELL]


def long_lines(text):
    """(line, columns) of lines of prose over MOST_COLUMNS; a line that is one long word, such as a link, cannot be broken."""
    return [
        (number, len(line))
        for number, line in prose_lines(text)
        if len(line) > MOST_COLUMNS and not is_row(line) and len(line.split()) > 1
    ]


def long_paragraphs(text):
    """First lines of paragraphs, or items of a list, over MOST_LINES lines."""
    found, first, count = [], 0, 0
    for number, line in [*prose_lines(text), (-1, "")]:
        if not line.strip() or is_row(line) or line.startswith("#"):
            count = 0
            continue
        if count == 0 or re.match(r"\s*([-*]|\d+\.)\s", line):
            first, count = number, 0
        count += 1
        if count == MOST_LINES + 1:
            found.append(first)
    return found


def shown_programs(text):
    """(file, code) of the fenced code behind each line `<!-- FILE -->`."""
    return re.findall(r"^<!-- (\S+) -->\n+```\w*\n(.*?)^```$", text, re.M | re.S)


def differing_programs(text, read_file=read):
    """Files whose text is not what the document shows of them."""
    return [path for path, code in shown_programs(text) if code != read_file(path)]


DOOR = ["What to set", "What is taken", "What is not taken", "How to see it", "How to switch it off"]


def doors(readme):
    """The pages that the first table's rows lead to, as a whole."""
    table = re.search(r"^\| your program \|.*?\n\n", readme, re.M | re.S)[0]
    return re.findall(r"\]\(([^)#]+)\)", table)


def first_headings(text):
    """As many headings of the second level as a page of a door begins with."""
    return [line[3:] for _, line in prose_lines(text) if line.startswith("## ")][: len(DOOR)]


def anchors(text):
    """The anchors of the headings of a document, as GitHub makes them."""
    headings = [line for _, line in prose_lines(text) if re.match(r"#+ ", line)]
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()) for line in headings]
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in shown}


def dead_anchors(documents):
    """(document, link) of links to a heading that the linked document does not have."""
    known = {path: anchors(text) for path, text in documents.items()}
    found = []
    for document, text in documents.items():
        for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", text):
            target = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
            if anchor not in known.get(target, ()):
                found.append((document, f"{path}#{anchor}"))
    return found


class Documents(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.files = {name for name in os.listdir(ROOT) if os.path.isfile(os.path.join(ROOT, name))}
        cls.folders = set(FOLDERS)
        for top in FOLDERS:
            for folder, folders, names in os.walk(os.path.join(ROOT, top)):
                folder = os.path.relpath(folder, ROOT)
                cls.folders |= {os.path.join(folder, name) for name in folders}
                cls.files |= {os.path.join(folder, name) for name in names}
        cls.documents = {path: read(path) for path in sorted(cls.files) if path.endswith(".md")}
        own = os.path.relpath(os.path.abspath(__file__), ROOT)
        cls.source = "\n".join(
            read(path)
            for path in cls.files
            if os.path.splitext(path)[1] in SOURCES and path != own and "/corpus/" not in path
        )

    def missing(self, pattern, exists, of=lambda document, word: word):
        """Matches of `pattern` in the documents that `exists` does not know."""
        found = [
            (document, of(document, word))
            for document, text in self.documents.items()
            for word in re.findall(pattern, text, re.M)
        ]
        self.assertTrue(found, "the pattern finds nothing any more")
        return sorted({(document, word) for document, word in found if not exists(word)})

    def test_links(self):
        def target(document, link):
            return os.path.normpath(os.path.join(os.path.dirname(document), link))

        self.assertEqual(
            self.missing(
                r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)",
                lambda path: path in self.files or path in self.folders,
                target,
            ),
            [],
        )

    def test_anchors(self):
        self.assertEqual(dead_anchors(self.documents), [])

    def test_paths(self):
        tops = "|".join(FOLDERS)

        def exists(path):
            path = path.rstrip("/.")
            return path in self.files or path in self.folders

        self.assertEqual(
            [
                (document, path)
                for document, path in self.missing(rf"(?<![\w./$-])((?:{tops})/[\w./-]*\w)(?![\w*{{<-])", exists)
                # Folders of builds, and of a bundle.
                if not re.match(r"(tests/bin|bench/results-)", path)
                # Beside a document of the same folder.
                and os.path.join(os.path.dirname(document), path) not in self.files
            ],
            [],
        )

    def test_pages_named_in_sources(self):
        named = set(re.findall(r"\b(?:docs|bench/figures)/[a-z/_-]+\.md", self.source))
        self.assertGreater(len(named), 10)
        self.assertEqual(named - self.files, set())

    def test_flags(self):
        # Flags of the command lines, of configuration keys (quotas.sessions is --quotas-sessions), and of scripts.
        keys = {
            "--" + key.replace(".", "-").replace("_", "-")
            for key in re.findall(r'"([a-z_]+(?:\.[a-z_]+)?)"', read("daemon/config/config_keys.cc"))
        }
        flags = FLAGS | keys | set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", self.source))
        self.assertEqual(self.missing(r"(?<![\w-])(--[a-z][a-z0-9-]+)", lambda flag: flag in flags), [])

    def test_identifiers(self):
        self.assertEqual(
            self.missing(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", lambda name: name in CONSTANTS or name in self.source),
            [],
        )
        self.assertEqual(
            self.missing(r"\b([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+)\b", lambda name: name in CONSTANTS or name in self.source),
            [],
        )
        self.assertEqual(
            self.missing(
                r"`([A-Z][A-Za-z0-9]+(?:::\w+)?)(?:\(\))?`",
                lambda name: all(part in self.source for part in name.split("::")),
            ),
            [],
        )

    def test_keys_of_the_configuration(self):
        """Where a document gives a key's default, it is the shipped file's."""
        shipped = dict(re.findall(r"^# (\w+) = \"?([^\"\n]+)\"?$", read("deploy/config/tandemd.toml"), re.M))
        given = re.findall(r"`quotas\.(\w+)` (\d+(?: [KMGT]iB)?)", self.documents["docs/operations.md"])
        self.assertGreaterEqual(len(given), 7)
        for key, value in given:
            self.assertEqual(shipped[key], value, key)

    def faults(self, find):
        """The findings of `find`, by document."""
        return {document: found for document, text in self.documents.items() if (found := find(text))}

    def test_covers_what_is_read(self):
        for document in (
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "bench/README.md",
            "docs/README.md",
            "docs/first-program.md",
            "docs/model/README.md",
        ):
            self.assertIn(document, self.documents)

    def test_cells_are_short(self):
        self.assertEqual(self.faults(wide_cells), {})

    def test_paragraphs_are_short(self):
        self.assertEqual(self.faults(long_paragraphs), {})

    def test_lines_are_short(self):
        self.assertEqual(self.faults(long_lines), {})

    def test_programs_are_the_files(self):
        shown = {path for text in self.documents.values() for path, _ in shown_programs(text)}
        self.assertGreaterEqual(shown, {"examples/all_reduce.cc", "examples/all_reduce.c"})
        self.assertEqual(self.faults(differing_programs), {})

    def test_results_are_cited(self):
        cited = {
            os.path.normpath(os.path.join(os.path.dirname(document), link))
            for document, text in self.documents.items()
            for link in re.findall(r"\]\(([^)#\s]+)\)", text)
        }
        results = {path for path in self.files if path.startswith("bench/results/")}
        self.assertGreater(len(results), 5)
        self.assertEqual(results - cited, set(), "no page needs them")

    def test_results_are_one_summary_a_machine(self):
        for path in sorted(path for path in self.files if path.startswith("bench/results/")):
            self.assertRegex(path, r"^bench/results/(gpu-[1-8]x\w+|host)\.jsonl$")
            for line in read(path).splitlines():
                case = json.loads(line)
                self.assertIn("part", case, path)
                self.assertLess(len(line), 2500, f"{path}: {line[:80]} is no summary")

    def test_the_first_screen(self):
        """The first screen has the purpose, the programs, the gains, the commands and the first program, in this order."""
        text = re.match(r".*?```cpp\n.*?```\n", self.documents["README.md"], re.S)[0]
        self.assertLess(text.count("\n"), 70)
        rows = [line.strip("|").split("|") for line in text.splitlines() if is_row(line)]
        programs, gains = ([row for row in rows if len(row) == cells] for cells in (2, 4))
        self.assertEqual(len(programs) + len(gains), len(rows))
        for table in (programs, gains):
            self.assertIn(len(table), range(2 + 3, 2 + 9))
        parts = ("# Tandem", programs[0][0], gains[0][0], "./deploy/quickstart", "./tests/run", "```cpp")
        order = [text.index(part) for part in parts]
        self.assertEqual(order, sorted(order))

    def test_doors_have_the_same_headings(self):
        found = {page: first_headings(text) for page, text in self.documents.items()}
        pages = doors(self.documents["README.md"])
        self.assertGreaterEqual(len(pages), 7)
        self.assertEqual({page: found[page] for page in pages}, dict.fromkeys(pages, DOOR))
        self.assertEqual(sorted(pages), sorted(page for page, headings in found.items() if headings[:1] == DOOR[:1]))

    def test_every_page_is_in_the_index(self):
        index = self.documents["docs/README.md"]
        pages = [
            os.path.relpath(path, "docs")
            for path in self.documents
            if path.startswith(("docs/", "bench/figures/")) and path != "docs/README.md"
        ]
        self.assertEqual([page for page in pages if f"]({page})" not in index], [])


class PlantedFaults(unittest.TestCase):
    """Each check finds what it is for, and nothing in a text without it."""

    def test_cells(self):
        row = "| a | %s |\n|---|---|\n"
        self.assertEqual(wide_cells(row % ("x" * 81)), [(1, "x" * 81)])
        self.assertEqual(wide_cells(row % ("x" * 80)), [])
        self.assertEqual(wide_cells(row % f"[{'x' * 78}](a/long/target.md)"), [])
        self.assertEqual(wide_cells("```\n" + row % ("x" * 81) + "```\n"), [])

    def test_paragraphs(self):
        self.assertEqual(long_paragraphs("# A\n\n" + "words\n" * 9 + "\n"), [3])
        self.assertEqual(long_paragraphs("- first\n" + "- item\n" + "  words\n" * 8), [2])
        self.assertEqual(long_paragraphs("words\n" * 8 + "\n" + "- item\n" * 9 + "\n" + "| a |\n" * 9), [])
        self.assertEqual(long_paragraphs("words\n" * 4 + "```\n" + "code\n" * 9 + "```\n" + "words\n" * 4), [])

    def test_lines(self):
        self.assertEqual(long_lines("short\n" + "word " * 24 + "w\n"), [(2, 121)])
        self.assertEqual(
            long_lines("word " * 23 + "words\n| " + "x" * 130 + " |\n```\n" + "code " * 30 + "\n```\n"), []
        )

    def test_doors(self):
        self.assertEqual(
            doors("| your program | do |\n|---|---|\n| a | [b](c.md) [d](e.md#f) |\n\n[g](h.md)"), ["c.md"]
        )
        page = "".join(f"## {title}\n### more\n" for title in ("b", *DOOR))
        self.assertEqual(first_headings(page), ["b", *DOOR[:-1]])

    def test_anchors(self):
        pages = {"a/b.md": "# One `two`\n[x](#one-two) [y](c.md#no)\n", "a/c.md": "```\n# no\n```\n"}
        self.assertEqual(dead_anchors(pages), [("a/b.md", "c.md#no")])

    def test_programs(self):
        page = "<!-- a/b.c -->\n```c\nint a;\n```\n"
        self.assertEqual(differing_programs(page, lambda path: "int a;\n"), [])
        self.assertEqual(differing_programs(page, lambda path: "int b;\n"), ["a/b.c"])


if __name__ == "__main__":
    unittest.main()
