"""The newer rivals: how they are set up, and what bench/gpu/rivals makes of their packages. Neither a GPU nor torch."""

import os
import re
import struct
import sys
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "../..")]

import flashinfer_subset
import rivals
import stand_ins
import stats
import trim_fatbin


class RivalsTest(unittest.TestCase):
    """What cannot be set up is left out on all ranks, and told."""

    def bench(self, others=()):
        bench = mock.Mock(skip=frozenset())
        bench.gather = lambda problem: [problem, *others]
        return bench

    def test_what_fails_anywhere_is_nowhere(self):
        absent = {}
        self.assertEqual(rivals.set_up(self.bench(), "a rival", lambda: 7, absent), 7)
        self.assertEqual(absent, {})
        self.assertIsNone(rivals.set_up(self.bench(["OSError: no file"]), "a rival", lambda: 7, absent))
        self.assertEqual(absent, {"a rival": "OSError: no file"})
        self.assertIsNone(rivals.set_up(self.bench(), "another", mock.Mock(side_effect=RuntimeError("why")), absent))
        self.assertEqual(absent["another"], "RuntimeError: why")

    def test_what_ended_an_earlier_run_is_not_tried_again(self):
        bench, absent, make = self.bench(), {}, mock.Mock()
        bench.skip = frozenset([(rivals.SET_UP, "a rival")])
        self.assertIsNone(rivals.set_up(bench, "a rival", make, absent))
        make.assert_not_called()
        self.assertEqual(absent, {"a rival": "ended an earlier run"})
        # As run.py reads it from the log.
        self.assertEqual(bench.log.call_args_list[0], mock.call("prepare set-up / a rival"))

    def test_the_folder_or_a_variable_names_the_newer_nccl(self):
        for environment, path in (
            ({}, None),
            ({"TANDEM_RIVALS": "/r"}, "/r/nccl/libnccl.so.2"),
            ({"TANDEM_RIVALS": "/r", "TANDEM_PEERS_NCCL": "/n.so"}, "/n.so"),
        ):
            with mock.patch.dict(os.environ, environment, clear=True):
                self.assertEqual(rivals.nccl_path(), path)

    def test_a_newer_nccl_is_not_tried_where_it_may_use_multicast(self):
        module = mock.Mock(Windows=mock.Mock(return_value=mock.Mock(version="2.32.3")))
        for enabled, made in ((None, 1), ("1", 1), ("0", 2)):
            environment, absent = {"TANDEM_PEERS_NCCL": "/n.so"}, {}
            environment.update({"NCCL_NVLS_ENABLE": enabled} if enabled else {})
            with (
                mock.patch.dict(os.environ, environment, clear=True),
                mock.patch.dict(sys.modules, nccl_windows=module),
            ):
                self.assertEqual(len(rivals.every_windows(self.bench(), 64, absent)), made)
                self.assertEqual(list(absent), ["newer NCCL"] if made == 1 else [])

    def test_the_page_names_the_versions_that_are_fetched(self):
        with open(os.path.join(HERE, "../../rivals")) as file:
            script = file.read()
        with open(os.path.join(HERE, "../../../README.md")) as file:
            page = file.read()
        for package, name in (("nvidia-nccl-cu13", "NCCL"), ("flashinfer-python", "FlashInfer")):
            version = re.search(rf"^{package}==(\S+)", script, re.M).group(1)
            self.assertIn(f"{name} {version}", page)

    def test_a_version_is_no_part_of_an_arms_family(self):
        self.assertEqual(
            [stats.family(name) for name in ("windows 2.32.3", "windows 2.32.3+torch norm", "tandem ring S=4 lanes=2")],
            ["windows", "windows+torch norm", "tandem ring S=4 lanes=2"],
        )
        windows = stand_ins.with_torch("nccl_windows")
        self.assertEqual([windows.version_text(number) for number in (23203, 22809)], ["2.32.3", "2.28.9"])


class RowsTest(unittest.TestCase):
    def length(self, count, world, shots):
        return stand_ins.with_torch("flashinfer_side").row_length(count, world, shots)

    def test_a_message_is_rows_that_the_kernels_can_do(self):
        for world in (2, 4, 8):
            for shots in (1, 2):
                for size in (1 << power for power in range(10, 29)):
                    try:
                        length = self.length(size // 2, world, shots)
                    except ValueError:
                        continue
                    rows = size // 2 // length
                    self.assertEqual((rows * length, length % 8), (size // 2, 0))
                    self.assertTrue(shots == 1 or rows > world)
        self.assertEqual([self.length(count, 4, 1) for count in (512, 8192, 32768)], [512, 8192, 8192])
        self.assertEqual([self.length(count, 4, 2) for count in (8192, 32768, 1 << 20)], [1024, 4096, 8192])

    def test_what_they_cannot_do_is_said(self):
        for count, world, shots in ((512, 2, 2), (4, 2, 1), (1 << 27, 2, 1)):
            with self.assertRaises(ValueError):
                self.length(count, world, shots)


class TogetherTest(unittest.TestCase):
    def test_a_step_that_fails_on_one_rank_fails_on_all(self):
        together = stand_ins.with_torch("measure").together
        self.assertEqual(together(lambda good: good, lambda x: x + 1, 6), 7)
        with self.assertRaisesRegex(RuntimeError, "another rank"):
            together(lambda good: False, lambda: None)
        with self.assertRaisesRegex(OSError, "mine"):
            together(lambda good: good, mock.Mock(side_effect=OSError("mine")))


def fat_binary(*entries):
    """Of (kind, architecture, code)."""
    packed = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(code), 0, 0, 0, 0, architecture) + bytes(32) + code
        for kind, architecture, code in entries
    )
    return struct.pack("<IHHQ", trim_fatbin.FATBIN_MAGIC, 1, 16, len(packed)) + packed


def library(**sections):
    """An ELF file with these sections, "_" for "." in their names."""
    names = [""] + [name.replace("_", ".", 1) if name[1] != "_" else name for name in sections] + [".shstrtab"]
    table, offsets = b"", []
    for name in names:
        offsets.append(len(table))
        table += name.encode() + b"\0"
    body, headers = b"", [(0, 0, 0)]
    for name, content in zip(offsets[1:], [*sections.values(), table]):
        headers.append((name, 64 + len(body), len(content)))
        body += content + bytes(-len(content) % 8)
    elf = trim_fatbin.ELF_HEADER.pack(
        b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(headers), len(headers) - 1
    )
    return (
        elf
        + body
        + b"".join(trim_fatbin.SECTION_HEADER.pack(name, 1, 0, 0, at, size, 0, 0, 8, 0) for name, at, size in headers)
    )


class TrimTest(unittest.TestCase):
    def setUp(self):
        self.first = fat_binary((2, 80, b"a" * 8), (2, 90, b"b" * 16), (1, 120, b"c" * 8))
        self.other = fat_binary((2, 100, b"e" * 24))
        self.linked = fat_binary((2, 90, b"f" * 8), (2, 100, b"g" * 8))
        # Padding stands between the two, to align the second.
        self.data = library(
            _text=b"host code", _nv_fatbin=self.first + bytes(8) + self.other, __nv_relfatbin=self.linked
        )

    def test_a_fat_binary_ends_behind_what_is_kept(self):
        data = bytearray(self.data)
        kept, gone = trim_fatbin.trim(data, 90)
        self.assertEqual((kept, gone), (80 + 88 + 72, 72 + 72 + 72))
        expected = self.data
        for binary, entry in ((self.first, (2, 90, b"b" * 16)), (self.linked, (2, 90, b"f" * 8))):
            short = fat_binary(entry)
            expected = expected.replace(binary, short + bytes(len(binary) - len(short)))
        self.assertEqual(bytes(data), expected)
        found = [
            (one.section, [(e.kind, e.architecture) for e in one.entries]) for one in trim_fatbin.fat_binaries(data)
        ]
        self.assertEqual(
            found, [(".nv_fatbin", [("elf", 90)]), (".nv_fatbin", [("elf", 100)]), ("__nv_relfatbin", [("elf", 90)])]
        )

    def test_what_is_no_library_and_what_is_cut_off_are_errors(self):
        for data in (b"no library", library(_nv_fatbin=self.first[:-8])):
            with self.assertRaises(ValueError):
                trim_fatbin.trim(bytearray(data), 90)


class SubsetTest(unittest.TestCase):
    SWITCH = (
        "  switch (kind) {\n    case Kind::kOne:\n      first();\n      break;\n    case Kind::kTwo:\n      two();\n"
        "      break;\n    default:\n      fall_back();\n  }\n"
    )

    def test_cases_that_are_not_named_go(self):
        text = flashinfer_subset.without_cases(self.SWITCH, ("kTwo",))
        self.assertNotIn("first()", text)
        self.assertTrue(
            all(part in text for part in ("switch (kind) {", "kTwo:", "two();", "default:", "fall_back();"))
        )

    def test_a_case_that_is_not_there_is_an_error(self):
        with self.assertRaises(SystemExit):
            flashinfer_subset.without_cases(self.SWITCH, ("kThree",))


if __name__ == "__main__":
    unittest.main()
