"""What a rank learns of another rank's graphs: client/python/src/tandem/torch/_outlines.py."""

import unittest

from tandem.torch._outlines import Difference, Step, _judge, _Told

FUSED = (Step("all_reduce", "float32 4", "matmul_all_reduce", ""),)
LEFT = (Step("all_reduce", "float32 4", "", "each rank adds a bias of its own before the sum"),)


class Judged(unittest.TestCase):
    def test_equal_graphs_agree(self):
        self.assertEqual(_judge(FUSED, 7, [FUSED], _Told([(1, FUSED)], {}), 0, None), (True, None))

    def test_a_difference_has_both_ranks_steps(self):
        agrees, other = _judge(FUSED, 7, [FUSED], _Told([(3, LEFT)], {}), 0, None)
        self.assertFalse(agrees)
        self.assertEqual(other, Difference(0, LEFT[0], FUSED[0], 7, 3))

    def test_what_the_other_rank_has_found_counts_when_it_has_gone_on(self):
        """Its outline has another number by now, or is forgotten."""
        found = Difference(0, FUSED[0], LEFT[0], 3, 7)  # by the other rank, of this one's outline 7
        for outlines in ([], [(4, LEFT)]):
            agrees, other = _judge(FUSED, 7, [FUSED], _Told(outlines, {0: found}), 0, None)
            self.assertFalse(agrees)
            self.assertEqual(other, Difference(0, LEFT[0], FUSED[0], 7, 3))


if __name__ == "__main__":
    unittest.main()
