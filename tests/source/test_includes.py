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
    "runtime": ["common"],
    "runtime/executor": ["common", "program", "kernels"],
    "engine/memory": ["common", "ipc", "kernels", "runtime/executor"],
    "engine/launch": ["common", "ipc", "program", "kernels", "engine/memory", "runtime/executor"],
    "engine": [
        "common",
        "proto",
        "ipc",
        "program",
        "drivers",
        "kernels",
        "kernels/host",
        "kernels/cuda",
        "engine/memory",
        "engine/launch",
    ],
    "daemon/topology": ["common", "drivers"],
    "daemon/config": ["common"],
    "daemon/planner": ["common", "program", "program/verifier", "daemon/topology"],
    "daemon/supervisor": ["common", "proto"],
    "daemon/control": [
        "common",
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
        "daemon/planner",  # members of families
        "drivers",
        "kernels",
        "kernels/host",
        "kernels/cuda",
        "runtime",
        "runtime/executor",
    ],
    "client/grpc_plugin": ["common", "proto", "program", "client/lib"],
    "client/ranks": ["common"],
    "client/torch": ["common", "client/include"],
    "client/jax": ["client/include"],
    "client/nccl": ["common", "client/include", "drivers"],
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
# The folders inside a room, from the ground up; "." has the files that lie in the room itself. A folder may include what stands
# before it in its list.
INNER = {
    "client/lib": ["base", "cuda", "host", "client_launch", "devices", ".", "c_api"],
    "daemon/control": [
        "base",
        "records",
        "memory",
        "groups",
        "client_groups",
        "channels",
        "tensors",
        "plans",
        "engines",
        "joins",
        "sessions",
        "restart",
        ".",
    ],
    "daemon/planner": ["types", "problem", "tuning", "forms", "cost", "choice", "families", "members", "."],
    "engine": ["memory", "launch", ".", "backends", "main"],
    "kernels/cuda": ["device", "collectives", "fused", "skinny", "matmul", "lane", "client_launch", "."],
}


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


def folder_in(room, path):
    """The folder of `room` that `path` lies in; "." for a file of the room itself, None for a path outside of it."""
    if not path.startswith(room + "/"):
        return None
    rest = path[len(room) + 1 :]
    return rest.split("/")[0] if "/" in rest else "."


def runs_upward_inside(including, included):
    """Whether an include runs upward between two folders of one room."""
    for room, order in INNER.items():
        lower, upper = folder_in(room, included), folder_in(room, including)
        if lower is not None and upper is not None and order.index(lower) > order.index(upper):
            return True
    return False


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
                allowed = other == room or other == "common/include" or other in ROOMS[room]
                if not allowed or runs_upward_inside(path, target):
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
                self.assertLess(
                    order.index(other), order.index(room), f"{room} includes {other}, which stands above it"
                )

    def test_every_folder_of_a_room_has_its_place(self):
        for room, order in INNER.items():
            found = {
                folder_in(room, os.path.relpath(os.path.join(folder, name), ROOT))
                for folder, _, names in os.walk(os.path.join(ROOT, room))
                for name in names
                if name.endswith(SOURCES) and "/tests" not in folder
            }
            self.assertEqual(found, set(order), room)

    def test_a_planted_one_is_found_inside_each_room(self):
        for room, order in INNER.items():
            for lower, upper in zip(order, order[1:], strict=False):
                below, above = (os.path.normpath(os.path.join(room, folder, "x.h")) for folder in (lower, upper))
                with tempfile.TemporaryDirectory() as root:
                    for path, text in ((below, f'#include "{above}"'), (above, f'#include "{below}"')):
                        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                        with open(os.path.join(root, path), "w") as file:
                            file.write(text)
                    self.assertEqual(violations(root), [(below, above)])

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
