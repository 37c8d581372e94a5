"""The factor at which torch.distributed's calls are left to NCCL, beside the measurements in bench/results. The cost model's formulas
are those of docs/algorithms.md."""

import glob
import json
import os
import unittest

from node import HERE
from tandem.torch._families import FASTER

LINK, MEMORY, WAIT = 330e3, 4000e3, 2.0  # bytes a microsecond, and microseconds, behind NVSwitches


def predicted(op, size, world):
    """{algorithm: microseconds} of `size` bytes."""
    moved = size * (world - 1) / world
    local, more = 2 * size / MEMORY, world - 2
    dense = (world - 1) * size if op == "all_reduce" else moved
    return {
        "nccl": 3 + 0.75 * WAIT * world + (2 * moved if op == "all_reduce" else moved) / LINK,
        "one_shot": 3 + WAIT + (world - 1) * size / LINK + local,
        "two_shot": 4 + 2.5 * WAIT + 1.25 * more + 2 * moved / LINK + local,
        "sm": 3 + WAIT + 0.75 * more + moved / (0.9 * LINK) + local,
        "low_latency": 1.6 + WAIT / 2 + 0.2 * more + dense / (0.9 * LINK) + local,
    }


class Predictions(unittest.TestCase):
    def test_nothing_that_tandem_does_faster_is_left_to_nccl(self):
        seen, most = 0, 0.0
        for path in sorted(glob.glob(os.path.join(HERE, "../../bench/results/gpu-[24]x*.jsonl"))):
            world = int(os.path.basename(path)[len("gpu-")])
            with open(path) as file:
                rows = [json.loads(line) for line in file]
            for row in rows:
                measured = row["us"] if row.get("part") == "collective kernels" else {}
                times = predicted(row.get("op"), row.get("bytes", 0), world)
                ours = [name for name in measured if name in times and name != "nccl"]
                if "nccl" not in measured or not ours:
                    continue
                seen += 1
                chosen = min(ours, key=times.__getitem__)
                ratio = times[chosen] / times["nccl"]
                if measured[chosen] < measured["nccl"]:
                    most = max(most, ratio)
                    self.assertLess(ratio, FASTER, (path, row, chosen))
        self.assertGreater(seen, 40)
        self.assertGreater(most, 1.25, "the model errs by so much, and a smaller factor would be wrong")


if __name__ == "__main__":
    unittest.main()
