"""What the launcher says of this process. Read from the environment, so before and without MPI."""

from __future__ import annotations

from collections.abc import Mapping

# How many processes launchers say that they started, and which one this is: MPICH and Intel (hydra), Open MPI, srun.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def launched_size(environment: Mapping[str, str]) -> tuple[int, str]:
    """Processes of this job, and the variable that says so; 1 without a launcher."""
    found = [(int(environment[name]), name) for name in SIZES if environment.get(name, "").isdigit()]
    return max(found, default=(1, ""))


def launched_rank(environment: Mapping[str, str]) -> int:
    """Which of them this is; 0 without a launcher."""
    return next((int(environment[name]) for name in RANKS if environment.get(name, "").isdigit()), 0)


def end_job(environment: Mapping[str, str], code: int) -> None:
    """End all ranks of the job, if there are others: for a rank that fails where they cannot learn of it."""
    if launched_size(environment)[0] > 1:
        from mpi4py import MPI  # starts MPI if need be: the others may be waiting there

        MPI.COMM_WORLD.Abort(code)
