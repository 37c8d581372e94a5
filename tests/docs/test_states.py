"""The tables of states in docs/architecture.md are those of the headers."""

import os
import re
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))


def read(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def words(name):
    """ "engine ended" of EngineEnded."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def rows(text, head):
    """The cells of the rows of the table with this head."""
    table = re.search(rf"^{re.escape(head)}\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


class States(unittest.TestCase):
    maxDiff = None

    def test_groups(self):
        header = read("daemon/control/groups/group_lifecycle.h")
        wanted = {
            (words(start), words(event), words(end))
            for start, event, end in re.findall(
                r"GroupTransition\{GroupState::k(\w+), GroupEvent::k(\w+), GroupState::k(\w+)\}", header
            )
        }
        self.assertGreater(len(wanted), 15)
        shown = {
            (start, event, end)
            for starts, events, end in rows(read("docs/architecture.md"), "| from | event | to |")
            for start in starts.split(", ")
            for event in events.split(", ")
        }
        self.assertEqual(shown, wanted)

    def test_launches(self):
        header = read("engine/launch/launch_state.h")
        wanted = {
            (words(start), words(event), words(end))
            for start, ways in re.findall(r"case S::k(\w+): return (.*);", header)
            for event, end in re.findall(r"leads\(E::k(\w+), S::k(\w+)\)", ways)
        }
        self.assertEqual(len(wanted), 6)
        shown = {
            (start, *way.split(" → "))
            for start, _, ways in rows(read("docs/architecture.md"), "| state | meaning | left by |")
            for way in ways.split(", ")
        }
        self.assertEqual(shown, wanted)


if __name__ == "__main__":
    unittest.main()
