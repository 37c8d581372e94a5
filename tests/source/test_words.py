"""One thing, one word: the field's own words, and none of those that they took the place of."""

import os
import re
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SKIPPED = re.compile(r"\.(?!ci$)|build|dist$|shared$|__pycache__$|corpus$|results$")

# The pattern that must not occur: what is written in its place.
WORDS = {
    r"[Ff]ew_?[Rr]ows(?=[A-Z_(])|few_rows": "skinny",
    r"\b[Cc]ouriers?\b|\b[Pp]arcels?\b": "store warp, tile handoff",
    r"\b[Pp]re-?launch\w*": "speculative launch",
    r"\bcall(?:ed|ing)[ _]off\b|[cC]alledOff": "cancel",
    r"\b[Gg]raveyard\b": "deferred release",
    r"\b[Ss]hared?[ -]?[Ff]ates?\b|SharedFate": "loss of the GPU's context",
    r"\b[Uu]nfuse\b": "reset",
    r"\btwin lanes?\b|TwinLane": "dual-stream lane",
    r"\bkMost[A-Z]\w*": "kMax…",
    r"\bcontrol half\b|ControlHalf": "gRPC plugin",
    r"\bLaunchDirect\b|\blaunch_direct\b": "LaunchWithoutStream",
    r"\bWeightier\b|\bEngineSeats?\b|\b\w*Graveyard\b": "MoreSevere, EngineSlot, DeferredRelease",
    r"\b\w*Placed[A-Z]\w*|\b(?:\w*_)?placed_\w*|\w/placed\b": "Client…, client_…, in_client",
    r"\bLaunchFrame\b|\bDenseFit\b|\bGaveUp\b": "GroupDeviceState, Alignment, AbortReason",
    r"\bLetNextBegin\b|\bAwaitEarlierWork\b": "TriggerDependents, WaitForPrimary",
    r"\babort_from\b|\bAbortFrom\b": "first_aborted_launch",
    r"\bkMeetingThreads\b|\bHasCome\b": "kHandshakeThreads, HasArrived",
    r"\bNo(?:Fused)?Probe\b": "NoTestHooks, NoFusedTestHooks",
    r"\b\w*Patience(?:Ms|Ns|Turns)?\b": "WaitBudget",
    r"\bparked\b|\b[Pp]arking\b|\bheld arrivals?\b": "nothing: it has been taken out",
}
# Where a name of an earlier version is read, reserved, or named to those who used it.
ALLOWED = {
    "CHANGELOG.md": {"prelaunch", "prelaunched", "called_off", "unfuse"},
    "client/tandemctl/command_line.cc": {"unfuse"},
    "client/tandemctl/tests/usage_test.cc": {"unfuse"},
    "daemon/config/config_keys.cc": {"prelaunch"},
    "daemon/config/tests/command_line_test.cc": {"prelaunch"},
    "docs/operations.md": {"prelaunch"},
    "proto/tandem/admin/v1/admin.proto": {"parking"},
    "proto/tandem/v1/types.proto": {"parking"},
    "tests/fixtures/protocol-1/tandem/v1/types.proto": {"parking"},
}


def found_in(root):
    """(file, line, word) of each such word below `root`, where it is not allowed."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not SKIPPED.match(name)]
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if path == "tests/source/test_words.py" or name.endswith((".csv", ".jsonl", ".png")):
                continue
            with open(os.path.join(root, path), errors="replace") as file:
                for number, line in enumerate(file, 1):
                    for pattern in WORDS:
                        for match in re.finditer(pattern, line):
                            if match[0] not in ALLOWED.get(path, ()):
                                found.append((path, number, match[0]))
    return found


class Words(unittest.TestCase):
    maxDiff = None

    def test_no_old_word_is_left(self):
        self.assertEqual(found_in(ROOT), [], WORDS)

    def test_planted_ones_are_found(self):
        planted = {
            "engine/a.cc": ("prelaunched", "// A kernel that was prelaunched."),
            "README.md": ("called off", "The launch is called off."),
            "client/c.h": ("kMostSlots", "constexpr int kMostSlots = 3;"),
            "kernels/d.cuh": ("courier", "// The courier warp."),
            "daemon/e.py": ("shared fate", "# the shared fate of all contexts"),
            "bench/f.cc": ("few_rows", 'Run("few_rows");'),
            "tests/g.py": ("launch_direct", 'call("launch_direct")'),
            "client/j.h": ("CudaPlacedQueue", "class CudaPlacedQueue;"),
            "client/k.cc": ("placed_plan", '#include "client/lib/placed_plan.h"'),
        }
        innocent = {
            "h.md": "Products of few rows. A fused kernel is launched ahead. Ranks share a GPU. The store warp carries tiles.",
            "l.cc": "// A plan that is placed in the client. Status IsReplaced();",
            "proto/tandem/v1/types.proto": 'reserved "parking";',
            "build/i.cc": "// parked",
        }
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**{path: text for path, (_, text) in planted.items()}, **innocent}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)) or root, exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
            self.assertEqual(
                {(path, word) for path, _, word in found_in(root)}, {(p, w) for p, (w, _) in planted.items()}
            )


if __name__ == "__main__":
    unittest.main()
