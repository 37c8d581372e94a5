"""A changed format of what a tandemd takes over from an earlier build is looked at: ipc/handover_versions.cc has its version. So
are the sources from which ranks make a family's programs by themselves: daemon/planner/members/member.h has their version.

The digests of handover_versions.json leave out comments and spaces. Where one differs, decide: would a side of the last version
misunderstand what the other writes, or a rank of the last version make another program? Then raise that version. Record the digests
either way: test_handover_versions.py --record.
"""

import hashlib
import json
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "../.."))
RECORDED = os.path.join(HERE, "handover_versions.json")
FILES = {
    "state": ("proto/tandem/state/v1/state.proto", "daemon/control/restart/journal.cc"),
    "commands": ("proto/tandem/engine/v1/engine.proto",),
    "program": (
        "proto/tandem/program/v1/program.proto",
        "program/kernel_phases.h",
        "program/norm_layout.h",
        "program/packet_layout.h",
        "program/program.h",
        "program/skinny_layout.h",
        "program/steps.h",
    ),
    "records": (
        "ipc/arrival_table.h",
        "ipc/order_log.h",
        "ipc/stats_area.h",
        "ipc/status_record.h",
        "ipc/verdict_page.h",
    ),
}
MEMBERS = "daemon/planner/members/member.h"


def sources(folder):
    names = sorted(os.listdir(os.path.join(ROOT, folder)))
    return tuple(f"{folder}/{name}" for name in names if name.endswith((".cc", ".h")))


# A member's programs, from the table and the request on. CollectiveSteps are expanded by program/kernel_phases.cc.
FILES["members"] = (
    *sources("daemon/planner/problem"),
    *sources("daemon/planner/forms"),
    *sources("daemon/planner/families"),
    "daemon/planner/cost/norm_cost.cc",
    *sources("daemon/planner/members"),
    "daemon/planner/types/row_table.cc",
    "common/row_requests.cc",
    "program/kernel_phases.cc",
    *FILES["program"],
)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def digest(text):
    return hashlib.sha256(re.sub(r"//[^\n]*|\s+", "", text).encode()).hexdigest()[:16]


def versions():
    text = re.search(r'"tandem-handover ([^"]*)"', read("ipc/handover_versions.cc")).group(1)
    found = {name: int(number) for name, number in (word.split("=") for word in text.split())}
    found["members"] = int(re.search(r"kMembersVersion = (\d+);", read(MEMBERS)).group(1))
    return found


def place(name):
    """Where this version stands."""
    return MEMBERS if name == "members" else "ipc/handover_versions.cc"


def current():
    numbers = versions()
    return {
        name: {"version": numbers[name], "files": {path: digest(read(path)) for path in paths}}
        for name, paths in FILES.items()
    }


class HandoverVersions(unittest.TestCase):
    def test_changed_formats_are_recorded_with_their_version(self):
        with open(RECORDED, encoding="utf-8") as file:
            recorded = json.load(file)
        now = current()
        self.assertEqual(set(versions()), set(recorded))
        for name, found in now.items():
            changed = set(found["files"].items()) ^ set(recorded[name]["files"].items())
            changed = sorted({path for path, _ in changed})
            with self.subTest(version=name):
                self.assertEqual(changed, [], f"raise {name} in {place(name)} if need be, then --record")
                self.assertEqual(found["version"], recorded[name]["version"], f"{name} has been raised: --record")

    def test_comments_and_spaces_do_not_count(self):
        self.assertEqual(digest("int a;  // one\nint b;"), digest("int a;\n\nint   b;"))
        self.assertNotEqual(digest("int a;"), digest("int b;"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        with open(RECORDED, "w", encoding="utf-8") as out:
            json.dump(current(), out, indent=1, sort_keys=True)
            out.write("\n")
    else:
        unittest.main()
