"""Jobs that check and measure the fused kernels."""

import os

from job import Job

# A 70B model's: hidden size, and the feed-forward width that the ranks share.
HIDDEN, FEED_FORWARD = 8192, 28672
FUSED_ROWS = (2048, 8192)
SKINNY = (64, 256, 512)  # by the skinny kernel
# How fused_collective measures gathers and scatters of fp8, by the end of a job's name.
FLOAT8 = {"fp8": ("fp8",), "fp8_exact": ("fp8-exact",), "fp8_exact_rows": ("fp8-exact", "rows")}


def fused_case(mode, world, rows):
    """A fused case's name, and what the command that measures it takes."""
    width = FEED_FORWARD // world
    n, k = (width, HIDDEN) if mode == "gather" else (HIDDEN, width)
    return f"fused_{mode}_{rows}_w{world}", (mode, str(world), "10", str(rows), str(n), str(k))


def fused_jobs(bundle):
    program = os.path.join(bundle, "bin/fused_gemm")
    yield Job("fused_checks", "fused", (program, "check", "all"), 90, 240, gpus=1)
    yield Job("fused_exact", "fused", (program, "time", "15", "exact"), 30, 90, gpus=1, alone=True)
    few = os.path.join(bundle, "bin/fused_skinny")
    for world in (2, 4):
        yield Job(f"skinny_check_w{world}", "fused", (few, "check", str(world)), 20, 60, gpus=world)
        for rows in (*SKINNY, *FUSED_ROWS):
            for mode in ("gather", "scatter", "reduce"):
                name, words = fused_case(mode, world, rows)
                program = few if rows in SKINNY else os.path.join(bundle, "bin/fused_collective")
                yield Job(name, "fused", (program, *words), 4 if rows in SKINNY else 12, 60, gpus=world, alone=True)


def float8_jobs(bundle):
    """The fused fp8 kernels by themselves. They come late: whole plans of fp8 are among the peers."""
    for world in (2, 4):
        for rows in FUSED_ROWS:
            for mode in ("gather", "scatter"):
                name, words = fused_case(mode, world, rows)
                for end, types in FLOAT8.items():
                    yield Job(
                        f"{name}_{end}",
                        "fused",
                        (os.path.join(bundle, "bin/fused_collective"), *words, *types),
                        10,
                        60,
                        gpus=world,
                        alone=True,
                    )
