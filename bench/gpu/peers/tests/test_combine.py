"""Tuning tables of several sittings become one, and a table that ships has what it needs."""

import glob
import os
import sys
import unittest

import tomllib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import combine


class CombinedTablesTest(unittest.TestCase):
    def table(self, candidates, shape="[64, 8, 8]", when="2026-01-31T12:00:00Z"):
        lines = [
            f'  {{ algorithm = "{name}", median_us = {us:.3f}, p10_us = {us - 1:.3f}, p90_us = {us + 1:.3f}, samples = 9 }},\n'
            for name, us in candidates.items()
        ]
        return (
            combine.HEAD
            + 'format = 1\n\n[[entry]]\ngpu = "a GPU"\ntopology_class = "nvswitch"\nworld_size = 2\nop = "all_gather"\n'
            f'types = "f32 -> f32"\nshape = {shape}\nmeasured_at = "{when}"\ntandem = "0.1.0"\ncandidates = [\n'
            + "".join(lines)
            + '  { algorithm = "nccl", refused = "is \\"not\\" there" },\n]\n'
        )

    def test_one_table_stays_as_it_is(self):
        self.assertEqual(
            combine.combine([self.table({"sm": 10.0, "copy_engine": 12.5})]),
            self.table({"sm": 10.0, "copy_engine": 12.5}),
        )

    def test_a_table_that_ships_stays_as_it_is(self):
        tables = glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../deploy/tuning/*.toml"))
        self.assertTrue(tables)
        for path in tables:
            with open(path) as file:
                text = file.read()
            self.assertEqual(combine.combine([text], ship=True), text, path)

    def test_a_table_that_ships_has_the_fastest_of_three_kinds(self):
        measured = {"ring": 9.0, "low_latency": 10.0, "unfused": 11.0, "fused": 12.0, "pipeline": 13.0, "sm": 14.0}
        for op, kept in (
            ("matmul_reduce_scatter", ["low_latency", "fused", "pipeline"]),
            ("all_gather", ["low_latency", "unfused", "fused"]),
        ):
            text = self.table(measured).replace('"all_gather"', f'"{op}"')
            (entry,) = tomllib.loads(combine.combine([text], ship=True))["entry"]
            self.assertEqual([one["algorithm"] for one in entry["candidates"]], kept)

    def test_an_entry_has_the_means_of_what_all_its_tables_measured(self):
        later = self.table({"sm": 16.0, "copy_engine": 11.0}, when="2026-02-01T12:00:00Z")
        (entry,) = tomllib.loads(
            combine.combine([self.table({"sm": 9.0, "copy_engine": 12.0, "low_latency": 1.0}), later])
        )["entry"]
        self.assertEqual(
            [
                (one["algorithm"], one.get("median_us"), one.get("p90_us"), one.get("samples"))
                for one in entry["candidates"]
            ],
            [("copy_engine", 11.5, 12.5, 18), ("sm", 12.5, 13.5, 18), ("nccl", None, None, None)],
        )
        self.assertEqual(entry["measured_at"], "2026-02-01T12:00:00Z")

    def test_other_shapes_stay_apart(self):
        tables = [self.table({"sm": 9.0}), self.table({"sm": 16.0}, shape="[128, 8, 8]")]
        self.assertEqual(
            [entry["candidates"][0]["median_us"] for entry in tomllib.loads(combine.combine(tables))["entry"]],
            [9.0, 16.0],
        )


if __name__ == "__main__":
    unittest.main()
