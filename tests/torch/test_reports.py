"""Reports of the doors: their counts, their tables, and the line that each process writes at its end."""

import os
import subprocess
import sys
import threading
import unittest

from node import SOURCE
from tandem._call_report import CallReport, GroupRow, OpRow, Tally


class Traced(CallReport[OpRow]):
    counted = "calls of a test"


class Counts(unittest.TestCase):
    def test_rows_have_names_figures_and_reason(self):
        sized, grouped = Tally(Traced, OpRow, sized=True), Tally(CallReport, GroupRow)
        self.assertEqual([sized.count("sum", "", size=8) for _ in range(2)], [True, False])
        self.assertTrue(sized.count("sum", "no plan", size=4))
        self.assertEqual(sized.report().rows, [OpRow("sum", 2, 16, ""), OpRow("sum", 1, 4, "no plan")])
        self.assertEqual((sized.report().seen, sized.report().taken), (3, 2))
        self.assertEqual(str(sized.report()).splitlines()[0], "Tandem has run 2 of 3 calls of a test")
        self.assertEqual(sized.report().line(), "ran 2 of 3 calls of a test; 1 not, since no plan")
        grouped.count("tp:0", "sum", "")
        self.assertEqual(grouped.report().rows, [GroupRow("tp:0", "sum", 1, "")])

    def test_threads_count_together(self):
        tally = Tally(Traced, OpRow, sized=True)
        threads = [
            threading.Thread(target=lambda: [tally.count("sum", "", size=2) for _ in range(5000)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(tally.report().rows, [OpRow("sum", 20000, 40000, "")])


class AtTheEnd(unittest.TestCase):
    def written(self, program, **variables):
        ran = subprocess.run(
            [sys.executable, "-B", "-c", program],
            env={**os.environ, "PYTHONPATH": SOURCE, "RANK": "1", **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return [line for line in ran.stderr.splitlines() if line.startswith("tandem: ")]

    def test_each_door_writes_its_line(self):
        counted = {
            "vllm._counts": ("'tp:0', 'all_reduce', ''", "collectives of vLLM's tensor-parallel groups"),
            "sglang._counts": ("'tp:0', 'all_reduce', ''", "collectives of SGLang's tensor-parallel groups"),
            "megatron._report": ("'row parallel', ''", "calls of Megatron's linear layers"),
        }
        program = "".join(
            f"from tandem.{module} import count\ncount({arguments})\n" for module, (arguments, _) in counted.items()
        )
        expected = {f"tandem: rank 1 ran 1 of 1 {what}" for _, what in counted.values()}
        found = self.written(program, TANDEM_REPORT="1")
        self.assertLessEqual(expected, set(found))
        self.assertEqual(self.written(program, TANDEM_REPORT="0"), [])

    def test_none_without_calls(self):
        self.assertEqual(self.written("import tandem.vllm._counts", TANDEM_REPORT="1"), [])


if __name__ == "__main__":
    unittest.main()
