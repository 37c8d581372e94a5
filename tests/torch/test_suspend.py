"""Process groups that give up their memory and get it back (rank_suspend.py)."""

import unittest

from check_programs import Checks, add_tests


class Suspended(Checks, unittest.TestCase):
    program = "rank_suspend.py"


add_tests(Suspended)

if __name__ == "__main__":
    unittest.main()
