"""The ctypes declarations against client/abi/tandem_c.abi, which lists the C interface: constants, functions and layouts."""

import ctypes
import os
import re
import unittest

from node import HERE
from tandem import _c, _dlpack, enums

with open(os.path.join(HERE, "../../client/abi/tandem_c.abi")) as file:
    LINES = file.read().splitlines()

ENUMS = {
    "tandem_code": (enums.Code, "TANDEM_"),
    "tandem_dtype": (enums.DType, "TANDEM_DTYPE_"),
    "tandem_op": (enums.Op, "TANDEM_OP_"),
    "tandem_role": (enums.Role, "TANDEM_ROLE_"),
    "tandem_reduce_op": (enums.ReduceOp, "TANDEM_REDUCE_"),
    "tandem_wire": (enums.WireType, "TANDEM_WIRE_"),
    "tandem_algorithm": (enums.Algorithm, "TANDEM_ALGORITHM_"),
    "tandem_on_unfused": (enums.OnUnfused, "TANDEM_ON_UNFUSED_"),
    "tandem_placement": (enums.Placement, "TANDEM_PLACEMENT_"),
    "tandem_determinism": (enums.Determinism, "TANDEM_DETERMINISM_"),
    "tandem_rounding": (enums.Rounding, "TANDEM_ROUNDING_"),
    "tandem_event_kind": (enums.EventKind, "TANDEM_EVENT_"),
}
STRUCTS = {
    "tandem_join_options": _c.JoinOptions,
    "tandem_operand": _c.Operand,
    "tandem_request": _c.Request,
    "tandem_launch_options": _c.LaunchOptions,
    "tandem_transfer": _c.Transfer,
    "tandem_binding": _c.Binding,
    "tandem_memory_usage": _c.MemoryUsage,
    "tandem_dlpack_owner": _dlpack._Owner,
}
# Python's own collectives are plans.
OF_C_ALONE = frozenset(("tandem_collective",))
VALUES = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
    "size_t": ctypes.c_size_t,
    "void": None,
}


def matches(declared, c_type):
    """Whether a ctypes type stands for the C type."""
    if c_type in VALUES:
        return declared is VALUES[c_type]
    return (
        declared is not None
        and ctypes.sizeof(declared) == ctypes.sizeof(ctypes.c_void_p)
        and declared not in (ctypes.c_int64, ctypes.c_uint64, ctypes.c_size_t)
    )


class Abi(unittest.TestCase):
    def test_version(self):
        self.assertIn(f"version {_c.ABI_VERSION}", LINES)

    def test_an_older_library_is_refused(self):
        with self.assertRaisesRegex(ImportError, r"^libc\.so\.6 has no tandem_\w+: it is older than this package$"):
            _c.Library("libc.so.6")

    def test_constants(self):
        listed = {}
        for line in LINES:
            found = re.fullmatch(r"constant (\w+) (\w+) = (-?\d+)", line)
            if found and found[1] in ENUMS:
                kind, prefix = ENUMS[found[1]]
                listed.setdefault(kind, {})[found[2].removeprefix(prefix)] = int(found[3])
        for kind, _ in ENUMS.values():
            ours = {name.upper(): int(value) for name, value in kind.__members__.items()}
            self.assertTrue(
                listed[kind].items() <= ours.items(), f"{kind.__name__}: {listed[kind].items() - ours.items()}"
            )

    def test_functions(self):
        listed = {}
        for line in LINES:
            found = re.fullmatch(r"function (.*?)\b(tandem_\w+)\((.*)\)", line)
            if found:
                arguments = (
                    []
                    if found[3] in ("", "void")
                    else [re.sub(r"\w+$", "", one).strip() for one in found[3].split(",")]
                )
                listed[found[2].removeprefix("tandem_")] = (found[1].strip(), arguments)
        for name, (result, arguments) in _c._PROTOTYPES.items():
            wanted, types = listed[name]
            self.assertTrue(matches(result, wanted), f"{name} returns {wanted}")
            self.assertEqual(len(arguments), len(types), name)
            for declared, c_type in zip(arguments, types, strict=True):
                self.assertTrue(matches(declared, c_type), f"{name}: {c_type}, not {declared}")

    def test_layouts(self):
        seen = {name: set() for name in STRUCTS}
        for line in LINES:
            found = re.fullmatch(r"layout (\w+)\.(\w+) at (\d+), (\d+) bytes", line)
            if found and found[1] not in OF_C_ALONE:
                field = getattr(STRUCTS[found[1]], found[2])
                self.assertEqual((field.offset, field.size), (int(found[3]), int(found[4])), line)
                seen[found[1]].add(found[2])
        for name, struct in STRUCTS.items():
            self.assertEqual(seen[name], {field[0] for field in struct._fields_}, name)


if __name__ == "__main__":
    unittest.main()
