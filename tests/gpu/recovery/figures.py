"""Measurements of the tests of recovery, and their goals."""

import unittest

from gpu_node import note

# The goal: from the end of the last process that keeps an engine from starting to its being ready.
BACK_WITHIN_SECONDS = 2.0
# From the kill of tandemd until a stream that waits in a launch stands no longer.
RELEASED_WITHIN_SECONDS = 1.0
ROUNDS_WITHIN_SECONDS = 150.0
FIGURES = []  # (what, seconds, goal), filled by the tests


def measured(what, seconds, goal=BACK_WITHIN_SECONDS):
    FIGURES.append((what, seconds, goal))
    note(f"{what}: {seconds:.2f} s (goal: {goal:g} s)")


class WhatItTook(unittest.TestCase):
    """The goals for what the tests above have measured."""

    def test_goals(self):
        if not FIGURES:
            self.skipTest("nothing was measured")
        missed = [f"{what}: {seconds:.2f} s, goal {goal:g} s" for what, seconds, goal in FIGURES if seconds > goal]
        self.assertEqual(missed, [])
