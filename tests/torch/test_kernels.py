"""libtandem_torch.so: it needs nothing of torch but the stable ABI, and has a kernel for every overload."""

import ctypes
import os
import re
import subprocess
import sys
import unittest

import tandem.torch  # noqa: F401  (it registers)
import torch
from node import HERE
from tandem import _c
from tandem.torch import _native, _op_table

LIBRARY = os.path.join(os.path.dirname(_c.library_path()), "libtandem_torch.so")
# Functions in C that torch keeps: torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h.
STABLE = re.compile(
    r"aoti_torch_(?:abi_version|call_dispatcher|copy_|create_tensor_from_blob|delete_\w+|device_type_\w+|dtype_\w+|empty_strided"
    r"|get_\w+|library_\w+)"
    r"|torch_(?:call_dispatcher|library_impl|new_\w+|delete_\w+|list_\w+|string_\w+)"
)
SYSTEM = re.compile(r"\w+@+(?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")
NEEDED = {"libtorch_cpu.so", "libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}


def lines_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def unstable(lines):
    """The undefined symbols of `nm -D` that neither torch's stable ABI nor the system's libraries have."""
    symbols = [line.split()[-1] for line in lines if re.match(r"\s+U ", line)]
    return [symbol for symbol in symbols if not STABLE.fullmatch(symbol) and not SYSTEM.fullmatch(symbol)]


class StableAbi(unittest.TestCase):
    def test_symbols(self):
        lines = lines_of("nm", "-D", "--undefined-only", LIBRARY)
        self.assertTrue(any("torch_call_dispatcher" in line for line in lines))
        self.assertEqual(unstable(lines), [])

    def test_unstable_symbols_would_be_found(self):
        planted = ["   U _ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcEE", "   U THPVariable_Wrap"]
        self.assertEqual(len(unstable(planted)), 2)
        self.assertEqual(unstable(["   U memcpy@GLIBC_2.14", "   w __gmon_start__"]), [])

    def test_libraries(self):
        needed = {
            match[1]
            for line in lines_of("objdump", "-p", LIBRARY)
            if (match := re.match(r"\s*NEEDED\s+(\S+)", line)) is not None
        }
        self.assertIn("libtorch_cpu.so", needed)
        self.assertEqual(needed - NEEDED, set())

    def test_exports(self):
        exported = [line.split()[-1] for line in lines_of("nm", "-D", "--defined-only", LIBRARY)]
        self.assertTrue(exported)
        self.assertEqual([name for name in exported if not name.startswith("tandem_torch_")], [])


class Registered(unittest.TestCase):
    def test_every_overload_has_a_kernel_and_one_of_python_behind_it(self):
        self.assertIsNotNone(_native.kernels)
        for name in _op_table.OPS:
            for overload in getattr(torch.ops.tandem, name).overloads():
                full = name + ("" if overload == "default" else f".{overload}")
                for device in ("CPU", "CUDA"):
                    for one in (f"tandem::{full}", f"tandem::_{full}"):
                        self.assertTrue(torch._C._dispatch_has_kernel_for_dispatch_key(one, device), one)

    def test_declarations_are_the_headers(self):
        with open(os.path.join(HERE, "../../client/torch/torch_ops.h")) as file:
            text = file.read()
        declared = set(re.findall(r"\btandem_torch_(\w+)\(", text))
        self.assertEqual(declared, set(_native._PROTOTYPES))
        self.assertEqual(int(re.search(r"TANDEM_TORCH_VERSION (\d+)", text)[1]), _native.VERSION)
        for name, struct in (("slot", _native._Slot), ("result", _native._Result), ("plan", _native._Plan)):
            body = re.search(rf"typedef struct tandem_torch_{name} {{(.*?)}} tandem_torch_{name};", text, re.S)[1]
            fields = re.findall(r"(\w+);", re.sub(r"/\*.*?\*/", "", body, flags=re.S))
            self.assertEqual(fields, [field[0] for field in struct._fields_])
        self.assertEqual(ctypes.sizeof(_native._Slot), 32)

    def test_python_alone_serves_too(self):
        code = "import tandem.torch; from tandem.torch import _native; assert _native.kernels is None; import torch; "
        code += "print(torch._C._dispatch_has_kernel_for_dispatch_key('tandem::all_reduce', 'CPU'))"
        (line,) = lines_of("env", "TANDEM_TORCH_KERNELS=python", sys.executable, "-B", "-c", code)
        self.assertEqual(line, "True")


if __name__ == "__main__":
    unittest.main()
