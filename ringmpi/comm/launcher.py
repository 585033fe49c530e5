"""What the launcher says of this process. Read from the environment, so before and without MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# How many processes launchers say that they started, and which one this is: MPICH and Intel (hydra), Open MPI, srun;
# torchrun starts processes that no MPI knows.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "ROLE_WORLD_SIZE")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
# Which one of its node: Open MPI, MPICH and Intel (hydra), PALS, and srun last: an mpirun in a batch job hands on what
# srun has said of the batch script.
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")


def launched_size(environment: Mapping[str, str]) -> tuple[int, str]:
    """Processes of this job, and the variable that says so; 1 without a launcher."""
    found = [(int(environment[name]), name) for name in SIZES if environment.get(name, "").isdigit()]
    return max(found, default=(1, ""))


def launched_rank(environment: Mapping[str, str]) -> int:
    """Which of them this is; 0 without a launcher."""
    return next((int(environment[name]) for name in RANKS if environment.get(name, "").isdigit()), 0)


def launched_local_rank(environment: Mapping[str, str]) -> int | None:
    """Which of the processes of this job on its node this is; None: the launcher does not say."""
    return next((int(environment[name]) for name in LOCAL_RANKS if environment.get(name, "").isdigit()), None)


def local_rank_of(told: Sequence[int | None], position: int) -> int:
    """Which of the processes of the job on its node the one at `position` is.

    Parameters
    ----------
    told : sequence of int or None
        What launchers have told those ranks of a ring that are on this node. A ring may be a part of a job, and others
        of the job be on the node too; so what they were told comes first, where it tells them apart.
    position : int
        Among these.
    """
    mine = told[position]
    return position if mine is None or None in told or len(set(told)) < len(told) else mine


def end_job(environment: Mapping[str, str], code: int) -> None:
    """End all ranks of the job, if there are others: for a rank that fails where they cannot learn of it."""
    if launched_size(environment)[0] > 1:
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init()  # the others may be waiting there
        if not MPI.Is_finalized():
            MPI.COMM_WORLD.Abort(code)
