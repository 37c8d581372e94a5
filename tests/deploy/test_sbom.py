"""The bill of materials that deploy/sbom.py makes of this build: valid by the rules of SPDX 2.3, and it has what the programs need."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", ROOT / "build/check/bin"))
BUILD = BIN.parent
RELATIONSHIPS = {"CONTAINS", "DESCRIBES", "DYNAMIC_LINK", "STATIC_LINK", "BUILD_DEPENDENCY_OF"}


@unittest.skipUnless((BUILD / "build.ninja").exists() and shutil.which("ninja"), "needs a build by Ninja")
@unittest.skipUnless(shutil.which("dpkg") or shutil.which("rpm"), "needs dpkg or rpm")
class BillOfMaterials(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            made = cls.make(pathlib.Path(folder), "libz.so.1")
            assert made.returncode == 0, made.stderr
            cls.document = json.loads((pathlib.Path(folder) / "sbom.json").read_text())
        cls.packages = {package["SPDXID"]: package for package in cls.document["packages"]}

    @staticmethod
    def make(folder, bundled):
        """The document, in folder/sbom.json, of a package that has a copy of libz, by this name."""
        source = sorted(pathlib.Path("/usr").glob("lib*/**/libz.so.1"))[0]
        copies = [{"name": bundled, "file": "tandem/copy.so", "source": str(source.resolve())}]
        (folder / "bundled.json").write_text(json.dumps(copies))
        command = [sys.executable, "-B", ROOT / "deploy/sbom.py", "--name", "tandem-daemon", "--version", "1.2.3"]
        command += ["--build", BUILD, "--bundled", folder / "bundled.json", "--output", folder / "sbom.json"]
        return subprocess.run(
            [*command, BIN / "tandemd", BIN / "tandemctl"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        )

    def related(self, kind):
        """Names of the packages in relationships of a kind."""
        return {
            self.packages[end]["name"]
            for each in self.document["relationships"]
            if each["relationshipType"] == kind
            for end in (each["spdxElementId"], each["relatedSpdxElement"])
            if end in self.packages and self.packages[end]["name"] != "tandem-daemon"
        }

    def test_it_is_a_document_of_spdx_2_3(self):
        self.assertEqual(self.document["spdxVersion"], "SPDX-2.3")
        self.assertEqual(self.document["dataLicense"], "CC0-1.0")
        self.assertEqual(self.document["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        self.assertRegex(self.document["documentNamespace"], r"^https://[^#\s]+$")
        self.assertEqual(len(self.packages), len(self.document["packages"]), "an id is there twice")
        for package in self.document["packages"]:
            self.assertRegex(package["SPDXID"], r"^SPDXRef-[A-Za-z0-9.-]+$")
            self.assertTrue(package["name"] and package["versionInfo"])
            self.assertFalse(package["filesAnalyzed"])
            for field in ("downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText"):
                self.assertIn(field, package)
            for reference in package.get("externalRefs", []):
                self.assertRegex(reference["referenceLocator"], r"^pkg:(deb|rpm)/[a-z]+/[^@\s]+@\S+$")
        ids = {"SPDXRef-DOCUMENT", *self.packages}
        for each in self.document["relationships"]:
            self.assertIn(each["relationshipType"], RELATIONSHIPS)
            self.assertLessEqual({each["spdxElementId"], each["relatedSpdxElement"]}, ids)

    def test_it_has_what_the_programs_are_linked_with(self):
        linked = self.related("DYNAMIC_LINK") | self.related("STATIC_LINK")
        for library in ("grpc++", "protobuf", "systemd", "libc6|glibc"):
            self.assertTrue([name for name in linked if re.search(library, name, re.I)], (library, sorted(linked)))

    def test_it_has_what_the_package_has_copies_of(self):
        (contained,) = self.related("CONTAINS")
        self.assertRegex(contained, "zlib")
        licences = {package["licenseDeclared"] for package in self.packages.values() if package["name"] == contained}
        self.assertEqual(licences, {"Zlib"})

    def test_a_copy_without_a_known_licence_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            made = self.make(pathlib.Path(folder), "libnobodysown.so.1")
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("add it there with its licence", made.stderr)

    def test_it_has_what_is_headers_only(self):
        everything = {package["name"] for package in self.document["packages"]}
        for library in ("cli11", "toml"):
            self.assertTrue(
                [name for name in everything if re.search(library, name, re.I)], (library, sorted(everything))
            )


if __name__ == "__main__":
    unittest.main()
