"""The files have the text that tables.py generates, and a table that lacks something is found."""

import os
import re
import shutil
import tempfile
import unittest

import tables


class Tables(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for path in (*tables.generated(), tables.OPS, tables.TORCH_OPS):
            os.makedirs(os.path.join(self.root, os.path.dirname(path)), exist_ok=True)
            shutil.copy(os.path.join(tables.ROOT, path), os.path.join(self.root, path))

    def change(self, path, pattern, new):
        text, count = re.subn(pattern, new, tables.read(path, self.root), count=1)
        self.assertEqual(count, 1, pattern)
        with open(os.path.join(self.root, path), "w") as file:
            file.write(text)

    def test_the_files_are_those_of_the_tables(self):
        self.assertEqual(tables.differing(), [], "run python3 tests/source/tables.py --write")

    def test_each_operation_has_its_operands_and_algorithms(self):
        text = tables.read(tables.OPS)
        (ops,) = (enum for enum in tables.parse_enums(text) if enum.cpp == "Op")
        self.assertGreater(len(ops.values), 10)
        for macro in ("TANDEM_OPERANDS", "TANDEM_ALGORITHMS"):
            rows = re.findall(rf"^{macro}\((k\w+)", text, re.M)
            self.assertEqual(rows, [value.constant for value in ops.values], macro)

    def test_a_new_constant_is_wanted_in_all_languages(self):
        self.change(tables.OPS, r"(TANDEM_OP\(kEmpty.*\n)", r"\1TANDEM_OP(kScan, scan, 14)  // see op.reduce\n")
        headers = {tables.CPP_HEADERS[1], tables.C_HEADER, tables.PYTHON_ENUMS}
        self.assertEqual(set(tables.differing(self.root)), headers)
        files = tables.generated(self.root)
        self.assertIn("  // see kReduce\n  kScan = 14,\n};", files[tables.CPP_HEADERS[1]])
        self.assertIn("  /* see TANDEM_OP_REDUCE */\n  TANDEM_OP_SCAN = 14\n};", files[tables.C_HEADER])
        self.assertIn("    empty = 13\n    scan = 14\n", files[tables.PYTHON_ENUMS])

    def test_a_constant_that_was_changed_by_hand_is_found(self):
        for path, pattern, new in (
            (tables.CPP_HEADERS[0], "kI64 = 6", "kI64 = 9"),
            (tables.CPP_HEADERS[1], "kAvg = 1", "kAvg = 2"),
            (tables.C_HEADER, "TANDEM_ROLE_BIAS = 9", "TANDEM_ROLE_BIASES = 9"),
            (tables.PYTHON_ENUMS, "    ring = 10\n", ""),
            (tables.TORCH_TABLE, "float epsilon", "int epsilon"),
        ):
            with self.subTest(path):
                self.change(path, pattern, new)
                self.assertIn(path, tables.differing(self.root))

    def test_a_row_in_another_enumeration_is_an_error(self):
        self.change(tables.OPS, r"(TANDEM_OP\(kReduce, .*\n)", r"\1TANDEM_ROLE(kOther, other, 15)\n")
        with self.assertRaisesRegex(ValueError, "TANDEM_ROLE stands in another enumeration"):
            tables.generated(self.root)

    def test_a_comment_that_names_no_constant_is_an_error(self):
        self.change(tables.OPS, "see role.norm_weight", "see role.norm_weights")
        with self.assertRaisesRegex(ValueError, "a comment names role.norm_weights"):
            tables.generated(self.root)

    def test_an_op_of_torch_with_a_text_too_few_is_an_error(self):
        self.change(tables.TORCH_OPS, r'int root, str group_name", "Tensor\(a!\) out"', 'int root"')
        with self.assertRaisesRegex(ValueError, "broadcast has 1 texts"):
            tables.generated(self.root)


if __name__ == "__main__":
    unittest.main()
