"""The map of the tree in CONTRIBUTING.md is the rooms of test_includes.py, and has every folder that holds files."""

import os
import subprocess
import unittest

import tree_map
from test_includes import INNER, ROOMS, ROOT


def page():
    with open(os.path.join(ROOT, tree_map.PAGE)) as file:
        return file.read()


class TreeMap(unittest.TestCase):
    maxDiff = None

    def test_the_map_is_that_of_the_rooms(self):
        self.assertEqual(page(), tree_map.with_map(page()), "stale: run tests/source/tree_map.py --write")

    def test_a_stale_map_is_found(self):
        stale = page().replace("| `daemon/service/` |", "| `daemon/servants/` |")
        self.assertNotEqual(stale, page())
        self.assertNotEqual(stale, tree_map.with_map(stale))
        with self.assertRaises(ValueError):
            tree_map.with_map(page().replace(tree_map.END, ""))

    def test_purposes_are_of_rooms_that_exist(self):
        self.assertEqual(set(tree_map.PURPOSE), set(ROOMS), "describe each room in PURPOSE of tree_map.py")
        self.assertEqual(
            {room: set(inside) for room, inside in tree_map.INSIDE.items()},
            {room: set(order) for room, order in INNER.items()},
        )

    def test_every_folder_is_on_the_map(self):
        found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
        if found.returncode != 0:
            self.skipTest("no git work tree")
        shown = {*ROOMS, *tree_map.OTHERS}
        folders = {os.path.dirname(path) for path in found.stdout.decode().split("\0")}
        missing = {
            folder
            for folder in folders
            if folder
            and not folder.startswith(".")
            and not any((folder + "/").startswith(room + "/") for room in shown)
        }
        # Folders that only hold rooms.
        self.assertEqual(missing - {"client", "daemon", "runtime"}, set())


if __name__ == "__main__":
    unittest.main()
