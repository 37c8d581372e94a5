"""A job of a bundle, and the parts that jobs are of."""

from dataclasses import dataclass, field

PARTS = (
    "tests",
    "integration",
    "conformance",
    "shared",
    "recovery",
    "sanitizer",
    "handover",
    "bench",
    "fused",
    "peers",
    "tune",
)
ALIASES = {"native": "fused"}  # the name of the version before


@dataclass(frozen=True)
class Job:
    name: str
    part: str
    command: tuple
    expect: float  # seconds
    limit: float  # seconds
    gpus: int = 0  # that it has for itself
    kind: str = "plain"  # how its log is read: see verdict.py
    mps: bool = False  # under an MPS server of its own
    alone: bool = False  # it measures: nothing runs beside it
    folder: str = "."  # where it runs, in the bundle
    stdout: str = ""  # its standard output by itself: a file of the results
    needs: str = ""  # a file without which it is left out
    environment: dict = field(default_factory=dict, compare=False)
