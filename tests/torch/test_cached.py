"""A graph that comes from Inductor's cache runs fused, and has its records, though the pass does not run."""

import tempfile
import unittest

from node import Daemon, Ranks


class Cached(unittest.TestCase):
    def test_the_second_process_has_the_records(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        told = []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                env = {"TORCHINDUCTOR_CACHE_DIR": folder, "TANDEM_TEST_PATIENCE": "60"}
                told.append(Ranks(daemon, 2, "rank_cached.py", env=env).results(120))
        for results, cached in zip(told, (False, True)):
            self.assertEqual(
                all(result["hits"] for result in results), cached, results
            )  # a rank may hit what another made
            for result in results:
                self.assertTrue(result["right"])
                records = {fused: reason for _, fused, reason, _ in result["records"]}
                self.assertEqual(set(records), {"all_gather_matmul", ""}, result)
                self.assertIn("no matrix product", records[""])
                if cached:
                    self.assertEqual({record[3] for record in result["records"]}, {True})


if __name__ == "__main__":
    unittest.main()
