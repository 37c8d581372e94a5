"""What the documents name is in the tree: links, paths, files, flags, keys and identifiers."""

import os
import re
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
FOLDERS = ("bench", "client", "cmake", "common", "daemon", "deploy", "docs", "drivers", "engine", "examples", "ipc", "kernels",
           "program", "proto", "tests")
SOURCES = (".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".proto", ".txt", ".cmake", ".toml", ".service", ".conf", ".pml", "")
# Of other programs.
FLAGS = {"--now", "--nodes", "--gres"}
CONSTANTS = {"DCMAKE_INSTALL_PREFIX", "SLURM_JOB_ID", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}


def read(path):
    with open(os.path.join(ROOT, path), errors="replace") as file:
        return file.read()


class Documents(unittest.TestCase):
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
        cls.source = "\n".join(read(path) for path in cls.files
                               if os.path.splitext(path)[1] in SOURCES and path != own and "/corpus/" not in path)

    def missing(self, pattern, exists, of=lambda document, word: word):
        """What `pattern` finds in the documents and `exists` does not know."""
        found = [(document, of(document, word)) for document, text in self.documents.items()
                 for word in re.findall(pattern, text, re.M)]
        self.assertTrue(found, "the pattern finds nothing any more")
        return sorted({(document, word) for document, word in found if not exists(word)})

    def test_links(self):
        def target(document, link):
            return os.path.normpath(os.path.join(os.path.dirname(document), link))
        self.assertEqual(self.missing(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)",
                                      lambda path: path in self.files or path in self.folders, target), [])

    def test_paths(self):
        tops = "|".join(FOLDERS)

        def exists(path):
            path = path.rstrip("/.")
            return path in self.files or path in self.folders
        self.assertEqual([(document, path) for document, path in
                          self.missing(rf"(?<![\w./$-])((?:{tops})/[\w./-]*\w)(?![\w*{{<-])", exists)
                          # Folders of builds, and of a bundle.
                          if not re.match(r"(tests/bin|bench/results-)", path)
                          # Beside a document of its own folder.
                          and os.path.join(os.path.dirname(document), path) not in self.files], [])

    def test_flags(self):
        # Of the command line's libraries ("--x"), of configuration keys (quotas.sessions is --quotas-sessions), of scripts.
        keys = {"--" + key.replace(".", "-").replace("_", "-") for key in re.findall(r'"([a-z_]+(?:\.[a-z_]+)?)"', self.source)}
        self.assertEqual(self.missing(r"(?<![\w-])(--[a-z][a-z0-9-]+)",
                                      lambda flag: flag in FLAGS or flag in self.source or flag in keys), [])

    def test_identifiers(self):
        self.assertEqual(self.missing(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", self.source.__contains__), [])
        self.assertEqual(self.missing(r"\b([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+)\b",
                                      lambda name: name in CONSTANTS or name in self.source), [])
        self.assertEqual(self.missing(r"`([A-Z][A-Za-z0-9]+(?:::\w+)?)(?:\(\))?`",
                                      lambda name: all(part in self.source for part in name.split("::"))), [])

    def test_keys_of_the_configuration(self):
        """Where a document gives a key's default, it is the shipped file's."""
        shipped = dict(re.findall(r"^# (\w+) = \"?([^\"\n]+)\"?$", read("deploy/config/tandemd.toml"), re.M))
        given = re.findall(r"`quotas\.(\w+)` (\d+(?: [KMGT]iB)?)", self.documents["docs/operations.md"])
        self.assertGreaterEqual(len(given), 7)
        for key, value in given:
            self.assertEqual(shipped[key], value, key)


if __name__ == "__main__":
    unittest.main()
