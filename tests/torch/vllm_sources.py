"""The Python sources of vLLM's releases, and the packages that importing its communicators needs beside torch's environment.

They lie in the build folder and are fetched once, in a few requests: a wheel has several hundred MB of kernels, which are left out.
The sources name themselves a build for the CPU, as wheels for the CPU do, so that vLLM takes its CPU platform."""

import os
import subprocess
import sys

import wheel_files
from node import BIN

FOLDER = os.path.join(os.path.dirname(BIN), "vllm")
NEEDED = (
    *("aiohappyeyeballs==2.7.1", "aiohttp==3.14.5", "aiosignal==1.4.0", "attrs==26.1.0", "cbor2==6.3.0"),
    *("certifi==2026.10.19.post1", "frozenlist==1.8.0", "multidict==7.2.1", "openai==3.57.0", "openai-harmony==0.0.8"),
    *("propcache==0.5.4", "pyzmq==27.3.0", "requests==2.34.2", "sniffio==1.3.1", "urllib3==2.8.0", "yarl==1.25.1"),
)


def source(version):
    """The folder with vLLM's package `vllm`; wheel_files.Unreachable if it cannot be had."""
    return wheel_files.extract(
        f"vllm=={version}",
        lambda name: name.endswith((".py", "/METADATA", "/entry_points.txt")),
        os.path.join(FOLDER, version),
        _name_for_the_cpu,
    )


def _name_for_the_cpu(folder):
    (info,) = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
    path = os.path.join(folder, info, "METADATA")
    with open(path) as file:
        lines = file.read().split("\n")
    with open(path, "w") as file:
        file.write("\n".join(f"{line}+cpu" if line.startswith("Version: ") else line for line in lines))


def paths(version):
    """The folders of a Python's path with vLLM and what it needs; wheel_files.Unreachable if they cannot be had."""
    folders = [source(version), needed()]
    done = os.path.join(folders[0], ".compiled")
    if not os.path.exists(done):  # the tests' processes write no bytecode, and each would compile it all
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", "import vllm.config, vllm.distributed.parallel_state"]
        subprocess.run(command, env=env, check=True)
        with open(done, "w"):
            pass
    return folders


def needed():
    """The folder with the packages; wheel_files.Unreachable if they cannot be had."""
    return wheel_files.install(os.path.join(FOLDER, "needed"), NEEDED)
