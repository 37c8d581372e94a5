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
    gpus: int = 0  # reserved for the job
    kind: str = "plain"  # how verdict.py reads the log
    mps: bool = False  # runs under a private MPS server
    alone: bool = False  # a measurement: nothing runs beside it
    folder: str = "."  # working folder, in the bundle
    stdout: str = ""  # the results' file for standard output alone
    needs: str = ""  # the job is left out without this file
    environment: dict = field(default_factory=dict, compare=False)
