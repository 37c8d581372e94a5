"""Rank, size and job key of this process, from the launcher's variables."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """This process's place in its job.

    rank, world_size: among all processes. local_rank, local_world_size: among those on this node, which is what a Tandem group
    spans. job_key: what the ranks' groups are found by. Groups are kept apart by user too, so that the key guards only against
    other jobs of the same user.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    job_key: str

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Job:
        """The job as torchrun, Slurm (srun), Open MPI or MPICH/Intel MPI (Hydra) describe it.

        $TANDEM_JOB_KEY goes before the key that is derived from the launcher's own name of the job. LookupError says which
        variables are missing, or have no number.
        """
        env = os.environ if environment is None else environment
        for read in (_torchrun, _slurm, _open_mpi, _hydra):
            job = read(env)
            if job is not None:
                return job
        raise LookupError(
            "no launcher is recognised: set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as "
            "torchrun does, or start the ranks by srun or mpirun"
        )


def _key(env: Mapping[str, str], launcher: str, *parts: str) -> str:
    named = env.get("TANDEM_JOB_KEY", "")
    if named:
        if len(named.encode()) < 16:
            raise LookupError("TANDEM_JOB_KEY has fewer than 16 bytes")
        return named
    if not all(parts):
        raise LookupError(f"{launcher} gives this job no name: set TANDEM_JOB_KEY to 16 bytes or more, equal on all ranks")
    return hashlib.sha256("\0".join((launcher, *parts)).encode()).hexdigest()[:32]


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The variable's number. One that is empty, or not there, has the default, if there is one."""
    text = env.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise LookupError(f"{name} is {text!r}, not a number")
    return int(text)


def _torchrun(env: Mapping[str, str]) -> Job | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= env.keys():
        return None
    rank, world = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    key = _key(
        env,
        "torchrun",
        env["MASTER_ADDR"],
        env["MASTER_PORT"],
        env.get("TORCHELASTIC_RUN_ID", "none"),
        env.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )
    return Job("torchrun", rank, world, _number(env, "LOCAL_RANK", rank), _number(env, "LOCAL_WORLD_SIZE", world), key)


def _slurm(env: Mapping[str, str]) -> Job | None:
    if not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"} <= env.keys():
        return None
    rank, world, local = (_number(env, "SLURM_" + name) for name in ("PROCID", "NTASKS", "LOCALID"))
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or env["SLURM_NTASKS"]
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID", 0)
    if node >= len(counts):
        raise LookupError(f"SLURM_NODEID is {node}, but the tasks a node are '{tasks}'")
    key = _key(env, "slurm", env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", "0"), env.get("SLURM_RESTART_COUNT", "0"))
    return Job("slurm", rank, world, local, counts[node], key)


def _open_mpi(env: Mapping[str, str]) -> Job | None:
    prefix = "OMPI_COMM_WORLD_"
    if not {prefix + "RANK", prefix + "SIZE", prefix + "LOCAL_RANK", prefix + "LOCAL_SIZE"} <= env.keys():
        return None
    name = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or env.get("OMPI_MCA_orte_hnp_uri") or ""
    key = _key(env, "open mpi", name)
    rank, size, local, there = (_number(env, prefix + part) for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    return Job("open mpi", rank, size, local, there, key)


def _hydra(env: Mapping[str, str]) -> Job | None:
    if not {"PMI_RANK", "PMI_SIZE"} <= env.keys():
        return None
    rank, size = _number(env, "PMI_RANK"), _number(env, "PMI_SIZE")
    key = _key(env, "hydra", env.get("PMI_JOBID") or env.get("PMI_KVSNAME") or "")
    return Job("hydra", rank, size, _number(env, "MPI_LOCALRANKID", rank), _number(env, "MPI_LOCALNRANKS", size), key)
