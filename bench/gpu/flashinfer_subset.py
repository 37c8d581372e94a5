#!/usr/bin/env python3
"""The part of FlashInfer that all-reduces through memory that GPUs share, without multicast and without a compiler.

    flashinfer_subset.py sources FLASHINFER FOLDER   writes the sources of its two modules to FOLDER
    flashinfer_subset.py package FLASHINFER FOLDER   puts its Python files to FOLDER, between stand-ins of what they import

FLASHINFER: the folder `flashinfer` of its wheel. The kernels and the host's part are FlashInfer's own. The dispatch has the
types, patterns and numbers of ranks that bench/gpu/peers measures: all of them take an hour to compile."""

import os
import re
import shutil
import sys

TYPES, RANKS = ("bfloat16_code",), ("2", "4", "8")
PATTERNS = ("kAllReduce", "kARResidualRMSNorm")
COPIED = ("trtllm_ar.py", "vllm_ar.py", "cuda_ipc.py", "torch_symmetric_memory.py")
# They stand for the rest of the package. `comm/mnnvl.py` is the part with multicast: there is none of it here.
STAND_INS = {
    "__init__.py": "",
    "comm/__init__.py": "",
    "comm/mnnvl.py": "CommBackend = SymmDeviceMemory = TorchDistBackend = None\n",
    "jit/__init__.py": "",
    "jit/comm.py": '''\
"""Modules that were built before."""
import os
import tvm_ffi


class Built:
    def __init__(self, name):
        self.path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "modules", name + ".so")

    def build_and_load(self):
        return tvm_ffi.load_module(self.path)


def gen_trtllm_comm_module():
    return Built("trtllm_comm")


def gen_vllm_comm_module():
    return Built("vllm_comm")
''',
    "utils.py": """\
def register_custom_op(name, fn=None, /, *, mutates_args, device_types=None, schema=None):
    return lambda function: function


def round_up(x, y):
    return (x + y - 1) // y * y
""",
}


def read(path):
    with open(path) as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def replaced(pattern, new, text, what):
    """`text` with exactly one match of `pattern` replaced."""
    found, count = re.subn(pattern, lambda match: new, text, flags=re.S)
    if count != 1:
        sys.exit(f"flashinfer_subset: {what} is not where it was in 0.7.2")
    return found


def without_cases(text, kept):
    """A switch's body without the cases that are not named in `kept`."""
    head, *cases, tail = re.split(r"(?=\n\s*(?:case |default:))", text)
    named = lambda case: re.match(r"\s*case ([\w:]+):", case).group(1).split("::")[-1]
    stays = [case for case in cases if named(case) in kept]
    if {named(case) for case in stays} != set(kept):
        sys.exit(f"flashinfer_subset: 0.7.2 had cases for {', '.join(kept)}")
    return "".join([head, *stays, tail])


def fusion_header(text):
    """trtllm_allreduce_fusion.cuh with fewer cases in its dispatch."""
    head, macro, switch = re.fullmatch(
        r"(.*)(#define DISPATCH_PATTERN.*?)(\n\n\s*switch \(params\.nranks\).*)", text, re.S
    ).groups()
    return head + without_cases(macro, PATTERNS) + without_cases(switch, RANKS)


def fusion_source(text):
    """trtllm_allreduce_fusion.cu with fewer types in its dispatch."""
    head, macro, rest = re.fullmatch(r"(.*)(#define DISPATCH_FLOATING_TYPES.*?\}\(\)\n)(.*)", text, re.S).groups()
    return head + without_cases(macro, TYPES) + rest


def lamport_source(text):
    """What fills a workspace, of trtllm_allreduce.cu: the all-reduce beside it is an older one."""
    text = replaced(r"// refer to cpp/tests/unit_tests.*?(?=TVM_FFI_DLL_EXPORT)", "", text, "trtllm_custom_all_reduce")
    return replaced(r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(trtllm_custom_all_reduce.*?;\n", "", text, "its export")


def write_sources(package, folder):
    data = os.path.join(package, "data")
    header = "flashinfer/comm/trtllm_allreduce_fusion.cuh"
    shutil.copytree(os.path.join(data, "include"), os.path.join(folder, "include"), dirs_exist_ok=True)
    write(os.path.join(folder, "include", header), fusion_header(read(os.path.join(data, "include", header))))
    csrc = os.path.join(data, "csrc")
    fusion = read(os.path.join(csrc, "trtllm_allreduce_fusion.cu"))
    write(os.path.join(folder, "trtllm_fusion.cu"), fusion_source(fusion))
    write(os.path.join(folder, "trtllm_lamport.cu"), lamport_source(read(os.path.join(csrc, "trtllm_allreduce.cu"))))
    shutil.copy(os.path.join(csrc, "vllm_custom_all_reduce.cu"), os.path.join(folder, "vllm.cu"))


def write_package(package, folder):
    for name, text in STAND_INS.items():
        write(os.path.join(folder, "flashinfer", name), text)
    for name in COPIED:
        shutil.copy(os.path.join(package, "comm", name), os.path.join(folder, "flashinfer/comm", name))


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("sources", "package"):
        sys.exit(__doc__)
    {"sources": write_sources, "package": write_package}[sys.argv[1]](sys.argv[2], sys.argv[3])


if __name__ == "__main__":
    main()
