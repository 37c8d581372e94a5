"""A graph that comes from Inductor's cache runs as it was compiled, and has its records, though the pass does not run."""

import json
import pathlib
import tempfile
import unittest

from node import Daemon, Ranks

# Pairs: a collective, and the op that it is fused into.
COLLECTIVES = [
    ("all_gather", ""),  # a whole graph
    ("all_gather", ""),
    ("all_gather", "all_gather_matmul"),
    ("reduce_scatter", ""),  # another one, the backward of the first
]


class Cached(unittest.TestCase):
    def test_the_second_process_has_the_records(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        told = []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                env = {"TORCHINDUCTOR_CACHE_DIR": folder, "TANDEM_TEST_PATIENCE": "60"}
                # Graphs of other programs under the same settings are not this one's, also of a program in which
                # nothing is fused.
                for at, records in enumerate(sorted(pathlib.Path(folder).glob("tandem/*/*.json"))):
                    other = [one | {"reason": "of another program"} for one in json.loads(records.read_text())]
                    records.with_name(f"0123456789a{at}.json").write_text(json.dumps(other))
                told.append(Ranks(daemon, 2, "rank_cached.py", env=env).results(120))
        for results, cached in zip(told, (False, True)):
            self.assertEqual(
                all(result["hits"] for result in results), cached, results
            )  # a rank may hit what another made
            for result in results:
                self.assertTrue(result["right"])
                self.assertEqual(sorted(tuple(record[:2]) for record in result["records"]), COLLECTIVES, result)
                reasons = [reason for _, fused, reason, _ in result["records"] if not fused]
                self.assertTrue(all("no matrix product" in reason for reason in reasons), result)
                if cached:
                    self.assertEqual({record[3] for record in result["records"]}, {True})
                # Each once; two of the records are one text.
                self.assertEqual(sorted(result["logged"]), [1, 1, 2, 2], result)


if __name__ == "__main__":
    unittest.main()
