"""The measured cases: shapes of a 70B and an 8B model split over W ranks, and collectives by size. No GPU, no torch."""

import re
from dataclasses import dataclass

KIB = 1024
HIDDEN, FEED_FORWARD = 8192, 28672  # 70B; the 8B model's are half of these
SMALL_HIDDEN, SMALL_FEED_FORWARD = 4096, 14336
GRID = ((1024, 16384), (16384, 1024), (2048, 2048), (4096, 12288), (12288, 4096))


@dataclass(frozen=True)
class Case:
    kind: str  # ag, rs, ar, ag8, rs8, ring, all_reduce, all_gather, reduce_scatter, norm, empty
    m: int = 0  # rows of the whole product
    n: int = 0
    k: int = 0
    scales: str = ""  # fp8: tensor, row or block
    size: int = 0  # collectives: bytes of the whole message

    @property
    def name(self):
        if self.kind == "empty":
            return "empty plan"
        if self.size:
            text = f"{self.size // KIB} KiB" if self.size < 1 << 20 else f"{self.size >> 20} MiB"
            return f"{self.kind} bf16 {text}"
        names = {
            "ag": "AG+GEMM bf16",
            "rs": "GEMM+RS bf16",
            "ar": "GEMM+AR bf16",
            "ring": "GEMM+RS ring bf16",
            "ag8": f"AG+GEMM fp8 {self.scales}-wise",
            "rs8": f"GEMM+RS fp8 {self.scales}-wise",
        }
        if self.kind == "norm":
            return f"AR+norm bf16 M={self.m} N={self.n}"
        return f"{names[self.kind]} M={self.m} N={self.n} K={self.k}"

    def calls(self, stream=False):
        """How often it is done in one measurement: about 10 ms' worth, whole rounds of the operand sets."""
        flops = 2 * self.m * self.n * self.k
        moved = self.size or 2 * self.m * self.n * (self.kind == "norm")
        us = flops / (1.1e9 if self.scales else 0.6e9) + moved / 200e3
        return 20 if us < 400 else 8 if us < 1500 else 4


def cases(world, groups, small=False):
    """All cases of the named groups: GROUPS, MORE, or blocks (fp8 with scales by blocks), which is tuned only: no rival fuses
    it."""
    n_up, n_small = FEED_FORWARD // world, SMALL_FEED_FORWARD // world
    found = []
    if "empty" in groups:
        found.append(Case("empty"))
    rows = (2048, 8192) if small else (512, 2048, 4096, 8192, 16384)
    if "few" in groups:
        for m in (64, 512) if small else (64, 128, 256, 1024):  # 512 is among the others of matmul
            found += [Case("ag", m, n_up, HIDDEN), Case("rs", m, HIDDEN, n_up), Case("ar", m, HIDDEN, n_up)]
    if "narrow" in groups:  # of small models: the product takes tens of microseconds, and what goes with it as long
        for m in (16,) if small else (16, 154):
            m -= m % world
            for wide, narrow in ((5120, 4096), (2048, 1024)):
                found += [Case("ag", m, narrow, wide), Case("rs", m, wide, narrow), Case("ar", m, wide, narrow)]
    if "grid" in groups:  # of no model; each number of rows with three of the five widths and depths in turn
        for index, m in enumerate((32, 1024) if small else (8, 32, 160, 384, 1024)):
            for step in range(3):
                n, k = GRID[(index + step) % len(GRID)]
                found += [Case(kind, m, n, k) for kind in ("ag", "rs", "ar")]
    if "matmul" in groups:
        for m in rows:
            found += [Case("ag", m, n_up, HIDDEN), Case("rs", m, HIDDEN, n_up), Case("ar", m, HIDDEN, n_up)]
        if not small:
            found += [
                Case("ag", 8192, n_small, SMALL_HIDDEN),
                Case("rs", 8192, SMALL_HIDDEN, n_small),
                Case("ar", 8192, SMALL_HIDDEN, n_small),
            ]
            found.append(
                Case("rs", 8192, SMALL_HIDDEN, 1024)
            )  # takes as long on the links as on the tensor cores, or longer
    if "fp8" in groups:
        for m in rows:
            for scales in ("tensor", "row"):
                found += [Case("ag8", m, n_up, HIDDEN, scales), Case("rs8", m, HIDDEN, n_up, scales)]
    if "blocks" in groups:
        for m in rows:
            found += [Case("ag8", m, n_up, HIDDEN, "block"), Case("rs8", m, HIDDEN, n_up, "block")]
    if "ring" in groups:
        found += [Case("ring", size, size, size) for size in ((2048,) if small else (2048, 4096, 8192))]
    if "collectives" in groups:
        sizes = (
            (KIB, 64 * KIB, 1 << 20, 16 << 20)
            if small
            else (*(KIB << power for power in range(15)), 64 << 20, 256 << 20)
        )
        found += [Case(kind, size=size) for kind in ("all_reduce", "all_gather", "reduce_scatter") for size in sizes]
    if "norm" in groups:
        found += [Case("norm", m, HIDDEN) for m in ((16, 512) if small else (8, 16, 64, 128, 512, 2048))]
    return found


def chosen(world, groups, small=False, only=""):
    """Those whose names the regular expression `only` finds."""
    return [case for case in cases(world, groups, small) if re.search(only, case.name)]


# Cases that are measured beside rivals.
GROUPS = ("empty", "few", "narrow", "matmul", "fp8", "ring", "collectives")
MORE = ("norm", "grid")  # on request
