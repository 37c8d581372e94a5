"""The Python sources of SGLang's releases, and the packages that importing its groups needs beside torch's environment.

They lie in the build folder and are fetched once, in a few requests; the wheel's kernels are left out."""

import os
import subprocess
import sys

import torch
import wheel_files
from node import BIN

FOLDER = os.path.join(os.path.dirname(BIN), "sglang")
NEEDED = (
    *("apache-tvm-ffi==0.1.15.post2", "compressed-tensors==0.20.1", "dill==0.4.0", "gguf==0.19.0", "loguru==0.7.3"),
    *("certifi==2026.10.19.post1", "ipython==9.18.1", "msgspec==0.23.0", "orjson==3.13.0", "pillow==13.0.0"),
    *("pybase64==1.5.1", "pyzmq==27.3.0", "requests==2.34.2", "starlette==1.10.0", "traitlets==5.16.1"),
    *("sentencepiece==0.2.3", "urllib3==2.8.0"),
    f"torchvision==0.{int(torch.__version__.split('.')[1]) + 15}.0",  # of this torch
)


def source(version):
    """The folder with SGLang's package `sglang`; wheel_files.Unreachable if it cannot be had."""
    return wheel_files.extract(
        f"sglang=={version}",
        lambda name: name.endswith((".py", "/METADATA", "/entry_points.txt")) and "/multimodal_gen/" not in name,
        os.path.join(FOLDER, version),
        _name_the_kernels,
    )


def _name_the_kernels(folder):
    """The folders that SGLang looks for when it is imported, without the sources of its kernels."""
    for name in ("csrc", "include"):
        os.makedirs(os.path.join(folder, "sglang/kernels/jit", name), exist_ok=True)


def paths(version):
    """The folders of a Python's path with SGLang and what it needs; wheel_files.Unreachable if they cannot be had."""
    folders = [source(version), needed()]
    done = os.path.join(folders[0], ".compiled")
    if not os.path.exists(done):  # the tests' processes write no bytecode, and each would compile it all
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [
            sys.executable,
            "-c",
            "import sglang.srt.distributed.parallel_state, sglang.srt.layers.layer_boundary",
        ]
        subprocess.run(command, env=env, check=True)
        with open(done, "w"):
            pass
    return folders


def needed():
    """The folder with the packages; wheel_files.Unreachable if they cannot be had."""
    return wheel_files.install(os.path.join(FOLDER, "needed"), NEEDED)
