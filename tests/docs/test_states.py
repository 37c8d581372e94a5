"""The tables of states in docs/architecture.md and docs/client-placement.md are those of the headers."""

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


def transitions(text, head):
    """(state, event, next state) of each way in the table with this head."""
    return {
        (start, event, end)
        for starts, events, end in rows(text, head)
        for start in starts.split(", ")
        for event in events.split(", ")
    }


# Header, head of its table in docs/client-placement.md, and how many transitions there are at least.
CLIENT_TABLES = (
    ("runtime/client_launch_state.h", "| a rank's launches | event | then |", 25),
    ("daemon/control/records/stall_lifecycle.h", "| a group's launches | event | then |", 6),
    ("daemon/control/records/renewal.h", "| a renewal | event | then |", 6),
)
TABLED = ("engine/launch/launch_state.h", "engine/launch/group_breaker.h", "engine/launch/speculative_launch.h")


def header_table(text):
    """(state, next state) of each way in the table `state | meaning | left by` of a header's comment; None: to no other."""
    lines = [line[2:].strip() for line in text.splitlines() if line.startswith("//")]
    begin = next(i for i, line in enumerate(lines) if re.match(r"state +\| meaning +\| left by$", line))
    left_by, current = {}, ""
    for line in lines[begin + 2 :]:
        if line.count("|") != 2:
            break
        state, _, ways = (cell.strip() for cell in line.split("|"))
        current = state or current
        left_by[current] = left_by.get(current, "") + " " + ways
    return {
        (words(state[1:]), words(to))
        for state, ways in left_by.items()
        for to in re.findall(r"\bk([A-Z]\w+)", ways) or [""]
    }


def shown_tables(text):
    """The same of each such table of a document."""
    found = []
    for table in re.findall(r"^\| state[^|]*\| meaning \| left by \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M):
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        found.append({(state, to) for state, _, ways in cells for to in re.findall(r"→ (\w+)", ways) or [""]})
    return found


class States(unittest.TestCase):
    maxDiff = None

    def test_tables_of_headers(self):
        wanted = [header_table(read(path)) for path in TABLED]
        shown = shown_tables(read("docs/architecture.md"))
        self.assertEqual(sorted(map(sorted, shown)), sorted(map(sorted, wanted)))

    def test_a_planted_difference_is_found(self):
        header = (
            "//   state | meaning | left by\n//   ---|---|---\n//   kOne | a | go: kTwo,\n//        | b | stop: kOne\n"
        )
        header += "//   kTwo | c | the end\n//\n"
        page = "| state | meaning | left by |\n|---|---|---|\n| one | a | go → two%s |\n| two | c | the end |\n"
        self.assertEqual(header_table(header), {("one", "two"), ("one", "one"), ("two", "")})
        self.assertEqual(shown_tables(page % ", stop → one"), [header_table(header)])
        self.assertNotEqual(shown_tables(page % ""), [header_table(header)])

    def test_groups(self):
        header = read("daemon/control/records/group_lifecycle.h")
        wanted = {
            (words(start), words(event), words(end))
            for start, event, end in re.findall(
                r"GroupTransition\{GroupState::k(\w+), GroupEvent::k(\w+), GroupState::k(\w+)\}", header
            )
        }
        self.assertGreater(len(wanted), 15)
        self.assertEqual(transitions(read("docs/architecture.md"), "| from | event | to |"), wanted)

    def test_launches_in_clients(self):
        page = read("docs/client-placement.md")
        for path, head, least in CLIENT_TABLES:
            wanted = {
                (words(start), words(event), words(end))
                for start, event, end in re.findall(r"\{S::k(\w+), E::k(\w+), S::k(\w+)\}", read(path))
            }
            self.assertGreaterEqual(len(wanted), least, path)
            self.assertEqual(transitions(page, head), wanted, path)

    def test_a_planted_transition_is_found(self):
        page = "| from | event | to |\n|---|---|---|\n| one, two | go | two |\n| two | stop, end | one |\n"
        self.assertEqual(
            transitions(page, "| from | event | to |"),
            {("one", "go", "two"), ("two", "go", "two"), ("two", "stop", "one"), ("two", "end", "one")},
        )

    def test_launches(self):
        header = read("engine/launch/launch_state.h")
        wanted = {
            (words(start), words(event), words(end))
            for start, ways in re.findall(r"case S::k(\w+):\s*return (.*);", header)
            for event, end in re.findall(r"leads\(E::k(\w+), S::k(\w+)\)", ways)
        }
        self.assertEqual(len(wanted), 9)
        shown = {
            (start, *way.split(" → "))
            for start, _, ways in rows(read("docs/architecture.md"), "| state | meaning | left by |")
            for way in ways.split(", ")
        }
        self.assertEqual(shown, wanted)


if __name__ == "__main__":
    unittest.main()
