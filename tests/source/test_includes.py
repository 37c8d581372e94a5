"""Includes run downward only: each room may include the rooms that it names here, and no circle is possible between rooms."""

import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SOURCES = (".c", ".cc", ".cu", ".cuh", ".h", ".inc")
PUBLIC = ("client/include", "common/include")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)

# Rooms from the ground up. A room may include what stands above it in this list and is named beside it.
ROOMS = {
    "common/include": [],
    "client/include": ["common/include"],
    "common": ["common/include"],
    "proto": [],
    "ipc": ["common"],
    "program": ["common", "proto"],
    "program/verifier": ["common", "program"],
    "drivers": ["common"],
    "kernels": ["common", "program"],
    "kernels/host": ["common", "program", "kernels"],
    "kernels/cuda": ["common", "program", "kernels", "kernels/host", "drivers"],
    "runtime/executor": ["common", "program", "kernels"],
    "engine/launch": ["common", "ipc", "program", "kernels", "engine", "runtime/executor"],
    "engine": [
        "common",
        "proto",
        "ipc",
        "program",
        "drivers",
        "kernels",
        "kernels/host",
        "kernels/cuda",
        "engine/launch",
        "runtime/executor",
    ],
    "daemon/topology": ["common", "drivers"],
    "daemon/config": ["common"],
    "daemon/planner": ["common", "program", "program/verifier", "daemon/topology"],
    "daemon/supervisor": ["common", "proto"],
    "daemon/control": [
        "common",
        "client/include",  # the default deadlines
        "proto",
        "ipc",
        "program",
        "program/verifier",
        "daemon/topology",
        "daemon/planner",
        "daemon/supervisor",
    ],
    "daemon/service": ["common", "proto", "daemon/control"],
    "daemon/observe": ["common", "ipc", "drivers", "daemon/topology", "daemon/supervisor", "daemon/control"],
    "daemon/admin": [
        "common",
        "proto",
        "ipc",
        "daemon/topology",
        "daemon/config",
        "daemon/planner",
        "daemon/supervisor",
        "daemon/control",
        "daemon/observe",
    ],
    "daemon/main": [
        "common",
        "proto",
        "ipc",
        "drivers",
        "daemon/topology",
        "daemon/config",
        "daemon/planner",
        "daemon/supervisor",
        "daemon/control",
        "daemon/service",
        "daemon/observe",
        "daemon/admin",
    ],
    "client/device": ["common", "client/include", "drivers"],
    "client/lib": [
        "client/device",  # a rank's own streams and memory, for measurements
        "common",
        "client/include",
        "ipc",
        "program",
        "drivers",
        "kernels",
        "kernels/host",
        "kernels/cuda",
        "runtime/executor",
    ],
    "client/grpc_plugin": ["common", "proto", "program", "client/lib"],
    "client/ranks": ["common"],
    "client/torch": ["common", "client/include"],
    "client/tune": ["common", "client/include", "client/device", "client/ranks"],
    "client/tandemctl": [
        "common",
        "proto",
        "program/verifier",
        "client/ranks",
        "daemon/topology",
        "daemon/planner",
        "daemon/control",
    ],
    "examples": ["common", "client/include", "client/device", "client/ranks"],
}
# Both ways between these two: the engine's own parts, linked as one library.
TOGETHER = {("engine", "engine/launch")}


def room_of(path):
    """The longest room that `path` lies in; None for a file outside the rooms."""
    return max((room for room in ROOMS if path.startswith(room + "/")), key=len, default=None)


def target_of(root, including, name):
    """The repository's file that `#include "name"` in `including` means; None for a system's or a library's header."""
    if re.search(r"\.pb\.h$", name):
        return "proto/" + name
    for folder in ("", *PUBLIC, os.path.dirname(including)):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, path)):
            return path
    return None


def violations(root):
    """[including file, included file] of all includes that no rule allows; tests may include anything."""
    found = []
    for folder, _, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        if re.match(r"\.|build|tests|bench", inside) or "/tests" in inside:
            continue
        for name in sorted(names):
            path = os.path.normpath(os.path.join(inside, name))
            room = room_of(path)
            if not name.endswith(SOURCES) or room is None:
                continue
            with open(os.path.join(root, path), errors="replace") as file:
                included = [target_of(root, path, header) for header in INCLUDE.findall(file.read())]
            for target in filter(None, included):
                other = room_of(target)
                allowed = (
                    other == room or other == "common/include" or other in ROOMS[room] or (other, room) in TOGETHER
                )
                if not allowed:
                    found.append((path, target))
    return found


class Includes(unittest.TestCase):
    def test_all_run_downward(self):
        self.assertEqual(violations(ROOT), [])

    def test_the_rules_allow_no_circle(self):
        order = list(ROOMS)
        for room, lower in ROOMS.items():
            for other in lower:
                self.assertIn(other, ROOMS)
                if (room, other) not in TOGETHER and (other, room) not in TOGETHER:
                    self.assertLess(
                        order.index(other), order.index(room), f"{room} includes {other}, which stands above it"
                    )

    def test_each_rule_is_needed(self):
        used = set()
        for folder, _, names in os.walk(ROOT):
            inside = os.path.relpath(folder, ROOT)
            if re.match(r"\.|build|tests|bench", inside) or "/tests" in inside:
                continue
            for name in names:
                path = os.path.normpath(os.path.join(inside, name))
                if name.endswith(SOURCES) and room_of(path):
                    with open(os.path.join(ROOT, path), errors="replace") as file:
                        for header in INCLUDE.findall(file.read()):
                            target = target_of(ROOT, path, header)
                            used.add((room_of(path), room_of(target) if target else None))
        unused = [
            (room, other)
            for room, lower in ROOMS.items()
            for other in lower
            if (room, other) not in used and not (other == "common" and (room, "common/include") in used)
        ]
        self.assertEqual(unused, [])

    def test_a_planted_one_is_found(self):
        planted = {
            "common/a.h": '#include "daemon/control/b.h"',
            "program/c.cc": '#include "kernels/d.h"',
            "runtime/executor/e.cc": '#include "engine/f.h"',
            "kernels/host/g.cc": '#include "client/lib/h.h"',
            "daemon/planner/i.cc": '#include "daemon/control/b.h"',
        }
        innocent = {
            "daemon/control/b.h": '#include "common/j.h"\n#include "tandem/k.h"',
            "kernels/d.h": "#include <vector>",
            "engine/f.h": "",
            "client/lib/h.h": "",
            "common/j.h": "",
            "common/include/tandem/k.h": "",
            "common/tests/l.cc": '#include "daemon/control/b.h"',
        }
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**planted, **innocent}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            self.assertEqual(sorted(path for path, _ in violations(root)), sorted(planted))


if __name__ == "__main__":
    unittest.main()
