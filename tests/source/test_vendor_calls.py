"""Vendor calls (CUDA's, NCCL's, NVML's, cuBLASLt's) stand in their wrappers and in kernels only: elsewhere no error would be
checked, and no mock could take their place."""

import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TOPS = (
    "bench",
    "client",
    "common",
    "daemon",
    "drivers",
    "engine",
    "examples",
    "ipc",
    "kernels",
    "program",
    "proto",
    "tests",
)
SOURCES = (".c", ".cc", ".cu", ".cuh", ".h")
# Wrappers; kernels and what launches them; the library that has the functions of NCCL; tests and benchmarks that compare with the bare calls, or stand in for a library.
ALLOWED = (
    "bench/gpu",
    "client/nccl",
    "drivers/cublaslt",
    "drivers/nvml/tests",
    "kernels/cuda/collectives",
    "kernels/cuda/device",
    "kernels/cuda/fused",
    "kernels/cuda/skinny",
    "tests/gpu",
    "tests/integration/nccl",
)

# Comments, and the insides of strings: calls are named there, not made. A quote in a character begins no string.
PROSE = re.compile(r"//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])'|\"(?:\\.|[^\"\\\n])*\"", re.S)
NAME = r"(?:(?:cu|cuda|nccl|nvml)[A-Z]\w*|cublas(?:Lt)?[A-Z]\w*)"
# A call, a kernel's launch, a function's address. A wrapper's pointer or method is called through an object.
CALL = re.compile(rf"(?<![\w.>])({NAME})\s*\(|(\w+)\s*<<<|&\s*(?:::)?({NAME})\b(?!\s*::)")


def calls(text):
    """The vendor functions that C++ text calls or takes the address of, and the kernels that it launches, with their lines."""
    text = PROSE.sub(lambda match: "\n" * match.group().count("\n") or " ", text)
    return [
        (text.count("\n", 0, match.start()) + 1, next(filter(None, match.groups()))) for match in CALL.finditer(text)
    ]


def found_in(root):
    """[path, line, call] of all sources below `root`."""
    found = []
    for top in TOPS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if not name.endswith(SOURCES):
                    continue
                path = os.path.join(folder, name)
                with open(path, errors="replace") as file:
                    found += [(os.path.relpath(path, root), line, call) for line, call in calls(file.read())]
    return found


def outside(found):
    return [entry for entry in found if not entry[0].startswith(tuple(folder + "/" for folder in ALLOWED))]


class VendorCalls(unittest.TestCase):
    def test_they_are_in_wrappers_and_kernels_only(self):
        found = found_in(ROOT)
        self.assertEqual(outside(found), [])
        for folder in ALLOWED:  # a folder that needs no leave has none
            self.assertTrue(any(path.startswith(folder + "/") for path, _, _ in found), folder)

    def test_each_wrapper_has_a_mock_beside_it(self):
        folder = os.path.join(ROOT, "drivers")
        vendors = [name for name in sorted(os.listdir(folder)) if os.path.isdir(os.path.join(folder, name))]
        self.assertGreaterEqual(set(vendors), {"cublaslt", "cuda", "nccl", "nvml"})
        for vendor in vendors:
            files = os.listdir(os.path.join(folder, vendor))
            mocks = [name for name in files if name.startswith("mock_") and name.endswith(".h")]
            wrapped = [name.removeprefix("mock_") for name in mocks]
            self.assertEqual([name for name in wrapped if name in files], wrapped, vendor)
            self.assertEqual(len(mocks), 1, vendor)

    def test_a_planted_one_is_found(self):
        planted = {
            "engine/a.cc": "int a() { return cuInit(0); }",
            "client/lib/b.cc": "/* one\n two */\nauto b = ::cudaMalloc(&p, 1);",
            "kernels/cuda/c.cc": "ncclCommAbort\n (c);",
            "kernels/host/d.h": "nvmlInit_v2();",
            "daemon/topology/e.cc": "if (cublasLtCreate(&h) != 0) {}",
            "common/f.cc": "Kernel<<<1, 2>>>(x);",
            "common/g.cc": "auto g = &cudaFree;",
            "kernels/cuda/h.cc": "char q = '\"'; cuMemFree(p); char r = '\"';",
        }
        innocent = {
            "engine/i.cc": '// cuInit(0)\n/* cudaFree(p) */ Check("cuInit", f_.cuInit_(0)); driver->cuInit(0);',
            "common/j.cc": "std::cout << 1 << 2; cuda::Load(); cudaStream_t s; cudart(1); const auto* t = &cudaError::text;",
            "kernels/cuda/device/k.cc": "cuInit(0);",
        }
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**planted, **innocent}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            found = outside(found_in(root))
        self.assertEqual(sorted(path for path, _, _ in found), sorted(planted))
        self.assertIn(("client/lib/b.cc", 3, "cudaMalloc"), found)


if __name__ == "__main__":
    unittest.main()
