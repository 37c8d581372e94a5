"""The DEB and the RPM of the client in dist/ need the C and C++ libraries only: by their dependencies, by each file in them, and in
another release of Debian, where nothing of gRPC is and where a job runs with them."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from daemon import Daemon

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/torch"))
import other_root

DIST = pathlib.Path(os.environ.get("TANDEM_DIST", ROOT / "dist"))
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", ROOT / "build/check/bin"))
PACKAGES = {"libc6", "libgcc-s1", "libstdc++6"}
LIBRARIES = re.compile(r"(ld-linux.*|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so\.\d+")
OF_RPM = re.compile(r"(rpmlib|rtld)\(.*|/sbin/ldconfig|/bin/sh|libtandem\.so\.0\(.*|" + LIBRARIES.pattern + r"\(.*")
OWN_NAME = re.compile(r"lib\S+-[0-9a-f]{8}\.so(\.\d+)*")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def one(pattern):
    """The one file in dist/ by this name, or None."""
    found = sorted(DIST.glob(pattern))
    return found[0] if len(found) == 1 else None


def dynamic(library, tag):
    """Names in the entries of a kind of the library's dynamic section."""
    return re.findall(rf"\({tag}\).*\[(.*)\]", output("readelf", "-Wd", library))


@unittest.skipUnless(one("tandem-client_*.deb"), f"not one tandem-client in {DIST}: run deploy/package")
@unittest.skipUnless(shutil.which("dpkg-deb") and shutil.which("readelf"), "needs dpkg-deb and readelf")
class ClientAlone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.package = one("tandem-client_*.deb")
        folder = tempfile.TemporaryDirectory(prefix="tandem-client-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name) / "root"
        output("dpkg-deb", "-x", cls.package, cls.root)
        cls.libraries = next(cls.root.glob("usr/lib/*/libtandem.so.0")).parent
        cls.plugin = cls.libraries / "libtandem_grpc.so"
        cls.copies = sorted((cls.libraries / "tandem").iterdir())

    def test_its_dependencies(self):
        depends = output("dpkg-deb", "-f", self.package, "Depends").strip()
        names = [entry.split(" ")[0] for entry in re.split(r", | \| ", depends)]
        self.assertEqual(set(names), PACKAGES, depends)

    def test_each_file_finds_what_it_needs(self):
        """Along run paths and names, as the loader goes."""
        binaries = [
            path
            for path in self.root.rglob("*")
            if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"
        ]
        self.assertGreater(len(binaries), 10)
        seen = set()
        for binary in binaries:
            folders = [self.libraries]  # the loader's own
            for paths in (*dynamic(binary, "RUNPATH"), *dynamic(binary, "RPATH")):
                self.assertRegex(paths, r"^\$ORIGIN(/tandem)?$", binary.name)
                folders.insert(0, pathlib.Path(paths.replace("$ORIGIN", str(binary.parent))))
            for name in dynamic(binary, "NEEDED"):
                if not LIBRARIES.fullmatch(name):
                    found = [folder / name for folder in folders if (folder / name).exists()]
                    self.assertTrue(found, f"{binary.name} needs {name}")
                    seen.add(found[0])
        self.assertLessEqual(set(self.copies), seen, "copies that nothing needs")

    def test_the_copies_are_apart_from_others(self):
        """Names that no other library has, and no symbol that is one for the process ("u")."""
        self.assertTrue(any(path.name.startswith("libgrpc++") for path in self.copies), self.copies)
        for path in self.copies:
            self.assertRegex(path.name, OWN_NAME)
            self.assertEqual(dynamic(path, "SONAME"), [path.name])
            self.assertNotRegex(output("nm", "-D", "--defined-only", path), r"(?m)^\S+ u ")

    def test_nothing_for_tls(self):
        """The client speaks over Unix sockets."""
        names = " ".join(path.name for path in self.copies)
        self.assertNotRegex(names, r"libssl|libcrypto|libre2|libsystemd")

    def test_the_documents_name_each_copy(self):
        docs = self.root / "usr/share/doc/tandem-client"
        document = json.loads((docs / "tandem-client.spdx.json").read_text())
        packages = {package["SPDXID"]: package for package in document["packages"]}
        contained = [
            packages[each["relatedSpdxElement"]]
            for each in document["relationships"]
            if each["relationshipType"] == "CONTAINS"
        ]
        self.assertGreater(len(contained), 3)
        linked = {
            each["relatedSpdxElement"] for each in document["relationships"] if "LINK" in each["relationshipType"]
        }
        self.assertFalse(linked & {package["SPDXID"] for package in contained}, "linked from the system and contained")
        notice, texts = (docs / "NOTICE").read_text(), (docs / "copyright").read_text()
        for package in contained:
            self.assertNotEqual(package["licenseDeclared"], "NOASSERTION", package["name"])
            named = f"{package['name']} {package['versionInfo']}"
            self.assertIn(named, " ".join(notice.split()))
            self.assertIn(named, " ".join(texts.split()))
            self.assertGreater((docs / "bundled" / f"{package['name']}.copyright").stat().st_size, 200)
        for path in self.copies:
            self.assertIn(f"/usr/lib/*/tandem/{path.name}\n", texts)

    @unittest.skipUnless((BIN / "tandem-test-beside-shared-grpc").exists(), "needs the programs of the tests")
    def test_beside_another_grpc(self):
        """Programs with a gRPC of their own: the shared one of this system, and a static copy."""
        daemon = Daemon(BIN / "tandemd", gpus=1)
        self.addCleanup(daemon.stop)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.libraries)}
        for kind in ("shared", "static"):
            with self.subTest(kind=kind):
                program = [BIN / f"tandem-test-beside-{kind}-grpc", str(daemon.runtime_dir)]
                ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    @unittest.skipIf(other_root.unavailable(), other_root.unavailable())
    @unittest.skipUnless((BIN / "tandemd").exists(), "needs a tandemd")
    def test_in_another_debian(self):
        """dpkg installs it where its build's libraries are not, the loader loads the gRPC plugin, and a job runs with a tandemd outside."""
        try:
            root = other_root.make(os.path.join(os.path.dirname(BIN), "roots"))
        except OSError as error:
            self.skipTest(str(error))
        daemon = Daemon(BIN / "tandemd", gpus=2)
        self.addCleanup(daemon.stop)
        for path in daemon.runtime_dir.rglob("*"):  # no group of the sockets is in the other system
            path.chmod(0o777)
        with tempfile.TemporaryDirectory() as given:
            shutil.copy(self.package, given)
            ran = other_root.run(
                root,
                "! ldconfig -p | grep -E 'grpc|protobuf|absl|libre2|cares|spdlog'; "
                "python3 -c 'import ctypes, os; ctypes.CDLL(\"libtandem_grpc.so\", os.RTLD_NOW)'; "
                "tandem-train-digits --backend host --world 2 --runtime-dir /tmp/shared",
                given,
                as_root="dpkg -i /tmp/given/tandem-client_*.deb",
                shared=str(daemon.runtime_dir),
            )
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("accuracy", ran.stdout)


@unittest.skipUnless(one("tandem-client-[0-9]*.rpm") and shutil.which("rpm"), "needs one RPM of the client, and rpm")
class ClientRpmAlone(unittest.TestCase):
    def test_what_it_asks_for_and_offers(self):
        package = one("tandem-client-[0-9]*.rpm")
        for each in output("rpm", "-qp", "--requires", package).splitlines():
            self.assertRegex(each, OF_RPM)
        self.assertNotRegex(output("rpm", "-qp", "--provides", package), OWN_NAME)
        self.assertRegex(output("rpm", "-qpl", package), r"/tandem/libgrpc\+\+\S*" + OWN_NAME.pattern[6:])


if __name__ == "__main__":
    unittest.main()
