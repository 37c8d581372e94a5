"""The DEBs in dist/ (deploy/package makes them): contents, dependencies, settings kept, hardening; and that tandemd starts from the unpacked
files as an unprivileged user, with emulated GPUs, and runs a job."""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

from elf import missing_hardening

from daemon import Daemon

ROOT = pathlib.Path(__file__).parents[2]
DIST = pathlib.Path(os.environ.get("TANDEM_DIST", ROOT / "dist"))
NAMES = ("tandem-daemon", "tandem-client", "tandem-client-dev")
NOBODY = 65534
FILES = {
    "tandem-daemon": """
        usr/bin/tandemd usr/bin/tandemctl usr/libexec/tandem/tandem-engine usr/lib/systemd/system/tandemd.service
        usr/lib/systemd/system/tandem-mps.service usr/lib/systemd/system/tandem-mps-spare.service
        usr/lib/systemd/system/tandem-nvidia.service
        usr/lib/systemd/system/tandem-http.service usr/lib/systemd/system/tandem-http.socket
        usr/lib/sysusers.d/tandem.conf usr/lib/tmpfiles.d/tandem.conf
        etc/tandem/tandemd.toml etc/tandem/config.d etc/needrestart/conf.d/tandem-daemon.conf usr/share/man/man8/tandemd.8.gz usr/share/man/man8/tandem-engine.8.gz
        usr/share/man/man1/tandemctl.1.gz usr/share/man/man5/tandemd.toml.5.gz usr/share/bash-completion/completions/tandemctl
        usr/share/zsh/vendor-completions/_tandemctl usr/share/fish/vendor_completions.d/tandemctl.fish
        usr/share/doc/tandem/operations.md usr/share/doc/tandem/alerts.md usr/share/tandem/monitoring/tandem.rules.yml
        usr/share/tandem/slurm/prolog usr/share/tandem/kubernetes/daemonset.yaml usr/share/tandem/kubernetes/chart/values.yaml usr/share/tandem/cdi/tandem.json usr/share/tandem/tuning
        usr/share/doc/tandem-daemon/tandem-daemon.spdx.json""",
    "tandem-client": """
        usr/bin/tandem-tune-rank usr/bin/tandem-train-digits usr/share/tandem/digits.csv usr/share/tandem/LICENCE-digits.md
        usr/lib/*/libtandem.so.0 usr/lib/*/libtandem_grpc.so usr/lib/*/tandem usr/share/doc/tandem-client/bundled
        usr/share/doc/tandem-client/tandem-client.spdx.json""",
    "tandem-client-dev": """
        usr/include/tandem/client.h usr/include/tandem/tandem.h usr/lib/*/libtandem.so usr/lib/*/cmake/Tandem/TandemConfig.cmake
        usr/lib/*/pkgconfig/tandem.pc""",
}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def package(name):
    found = sorted(DIST.glob(f"{name}_*.deb"))
    return found[0] if len(found) == 1 else None


@unittest.skipUnless(
    all(package(name) for name in NAMES), f"not one package of each name in {DIST}: run deploy/package"
)
@unittest.skipUnless(shutil.which("dpkg-deb") and shutil.which("readelf"), "needs dpkg-deb and readelf")
class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tandem-packages-")
        cls.addClassCleanup(folder.cleanup)
        pathlib.Path(folder.name).chmod(0o755)
        cls.roots, cls.control, cls.fields = {}, {}, {}
        for name in NAMES:
            cls.roots[name] = pathlib.Path(folder.name) / name
            cls.control[name] = pathlib.Path(folder.name) / f"{name}.control"
            output("dpkg-deb", "-x", package(name), cls.roots[name])
            output("dpkg-deb", "-e", package(name), cls.control[name])
            cls.fields[name] = dict(re.findall(r"^(\S+): (.*)$", (cls.control[name] / "control").read_text(), re.M))
        # Both packages in one tree, as on a node.
        cls.node = pathlib.Path(folder.name) / "node"
        for name in ("tandem-daemon", "tandem-client"):
            output("dpkg-deb", "-x", package(name), cls.node)

    def binaries(self, name):
        """Programs and libraries of the project's own. Copies of the distribution's are for test_client_alone.py."""
        for path in sorted(self.roots[name].rglob("*")):
            if path.match("usr/lib/*/tandem/*"):
                continue
            if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
                yield path

    def depends(self, name):
        return {
            word.split(" ")[0]
            for entry in self.fields[name].get("Depends", "").split(", ")
            for word in entry.split(" | ")
        }

    @staticmethod
    def offers(packages):
        """The packages' names and those that they provide."""
        provided = output("dpkg-query", "-W", "-f", "${Provides}, ", *packages) if packages else ""
        return packages | {entry.split(" ")[0] for entry in provided.split(", ")}

    def test_files(self):
        for name, patterns in FILES.items():
            for pattern in patterns.split():
                # A link to another package's file is there, too.
                found = [path for path in self.roots[name].glob(f"{pattern}*") if path.match(pattern)]
                self.assertEqual(len(found), 1, f"{name}: {pattern}")
            for document in ("copyright", "NOTICE", "changelog.gz", "changelog.Debian.gz"):
                self.assertTrue((self.roots[name] / "usr/share/doc" / name / document).is_file(), f"{name}: {document}")
            self.assertLessEqual({path.name for path in self.roots[name].iterdir()}, {"usr", "etc"})

    def test_owners_and_modes(self):
        for name in NAMES:
            for line in output("dpkg-deb", "-c", package(name)).splitlines():
                mode, owner = line.split()[:2]
                self.assertEqual(owner, "root/root", line)
                if mode[0] != "l":
                    self.assertNotEqual(mode[8], "w", line)  # others
        self.assertTrue((self.roots["tandem-daemon"] / "usr/share/tandem/slurm/epilog").stat().st_mode & stat.S_IXOTH)

    def test_settings_survive_an_upgrade(self):
        self.assertEqual(
            (self.control["tandem-daemon"] / "conffiles").read_text().split(),
            ["/etc/tandem/tandemd.toml", "/etc/needrestart/conf.d/tandem-daemon.conf"],
        )
        self.assertEqual(
            (self.roots["tandem-daemon"] / "etc/tandem/tandemd.toml").read_text(),
            (ROOT / "deploy/config/tandemd.toml").read_text(),
        )

    def test_scripts_are_valid_shell(self):
        for script in ("postinst", "prerm", "postrm"):
            path = self.control["tandem-daemon"] / script
            self.assertTrue(path.stat().st_mode & stat.S_IXUSR, script)
            output("sh", "-n", path)
        client = self.control["tandem-client"]
        self.assertEqual((client / "triggers").read_text().split(), ["activate-noawait", "ldconfig"])
        version = self.fields["tandem-client"]["Version"].rsplit("-", 1)[0]
        self.assertEqual((client / "shlibs").read_text(), f"libtandem 0 tandem-client (>= {version})\n")

    def test_the_engine_is_in_a_directory_of_its_version(self):
        version = self.fields["tandem-daemon"]["Version"].rsplit("-", 1)[0]
        link = self.roots["tandem-daemon"] / "usr/libexec/tandem/tandem-engine"
        self.assertEqual(os.readlink(link), f"{version}/tandem-engine")
        self.assertTrue(os.access(link, os.X_OK))

    def test_dependencies_have_every_library(self):
        for name in ("tandem-daemon", "tandem-client"):
            own = {path.name for path in self.roots[name].rglob("lib*.so*")}
            for binary in self.binaries(name):
                found = dict(
                    re.findall(
                        r"^\s+(\S+) => (/\S+)",
                        output(
                            "env",
                            "LC_ALL=C",
                            "LD_LIBRARY_PATH=" + str(next(self.roots["tandem-client"].glob("usr/lib/*/"))),
                            "ldd",
                            str(binary),
                        ),
                        re.M,
                    )
                )
                for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", binary)):
                    if needed in own or needed.startswith("ld-linux"):
                        continue
                    path = os.path.realpath(found[needed])
                    owners = {
                        line.split(":")[0]
                        for candidate in (path, path.removeprefix("/usr"))
                        for line in subprocess.run(
                            ["dpkg", "-S", candidate], capture_output=True, text=True, timeout=60, check=False
                        ).stdout.splitlines()
                    }
                    self.assertTrue(
                        self.offers(owners) & self.depends(name), f"{name}: {binary.name} needs {needed} of {owners}"
                    )
        exact = f"tandem-client (= {self.fields['tandem-client']['Version']})"
        self.assertIn(exact, self.fields["tandem-client-dev"]["Depends"])
        self.assertEqual(self.fields["tandem-daemon"]["Recommends"], exact)

    def test_programs_are_hardened(self):
        checked = fortified = 0
        for name in ("tandem-daemon", "tandem-client"):
            for binary in self.binaries(name):
                missing = missing_hardening(binary)
                # The plugin finds the copies in the package by a path from its own folder.
                allowed = {"no run path"} if binary.name == "libtandem_grpc.so" else set()
                self.assertLessEqual(missing, {"FORTIFY"} | allowed, binary.name)
                fortified += "FORTIFY" not in missing
                checked += 1
        self.assertGreaterEqual(checked, 7)
        # Not every program calls a function that has a checked form.
        self.assertGreaterEqual(fortified, checked - 2)

    @unittest.skipUnless(shutil.which("lintian"), "needs lintian")
    def test_lintian_has_no_errors(self):
        done = subprocess.run(
            ["lintian", "--fail-on", "error", "--allow-root", *(package(name) for name in NAMES)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("rpmlint") and list(DIST.glob("*.rpm")), "needs rpmlint and RPMs in dist/")
    def test_rpmlint_has_no_errors(self):
        command = ["rpmlint", "-c", str(ROOT / "deploy/rpm/rpmlint.toml"), *map(str, DIST.glob("*.rpm"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(re.findall(r"^.*: E: .*$", done.stdout, re.M), [], done.stderr)
        self.assertIn("3 packages", done.stdout)

    def test_the_unpacked_daemon_serves_an_unprivileged_user(self):
        wrapper = []
        if os.geteuid() == 0:
            wrapper = [
                "setpriv",
                f"--reuid={NOBODY}",
                f"--regid={NOBODY}",
                "--clear-groups",
                "--no-new-privs",
                "--inh-caps=-all",
                "--bounding-set=-all",
            ]
        daemon = Daemon(self.node / "usr/bin/tandemd", wrapper, owner=NOBODY if wrapper else None)
        self.addCleanup(daemon.stop)
        with open(f"/proc/{daemon.process.pid}/status") as status:
            self.assertIn(f"Uid:\t{NOBODY if wrapper else os.geteuid()}", status.read())
        library = next(self.node.glob("usr/lib/*/libtandem.so.0")).parent
        environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(library)}
        doctor = subprocess.run(
            [*wrapper, self.node / "usr/bin/tandemctl", "--runtime-dir", daemon.runtime_dir, "doctor"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
        self.assertEqual(doctor.returncode, 0, doctor.stdout + doctor.stderr)
        digits = subprocess.run(
            [*wrapper, self.node / "usr/bin/tandem-train-digits", "--runtime-dir", daemon.runtime_dir, "--world", "2"],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
            check=False,
        )
        self.assertEqual(digits.returncode, 0, digits.stdout + digits.stderr)
        engines = {os.readlink(f"/proc/{pid}/exe") for pid in output("pgrep", "-P", str(daemon.process.pid)).split()}
        self.assertEqual(engines, {str((self.node / "usr/libexec/tandem/tandem-engine").resolve())})
        self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    unittest.main()
