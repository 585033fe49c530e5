"""Variables of the environment that matter to a run. A list of what is told: nothing else is, so nothing leaks."""

from __future__ import annotations

from collections.abc import Mapping

SLURM = (
    "SLURM_CPU_BIND",
    "SLURM_CPUS_ON_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_GPU_BIND",
    "SLURM_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_HINT",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_NUM_NODES",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_MPI_TYPE",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_THREADS_PER_CORE",
)
THREADS = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
)
OTHERS = ("CUDA_VISIBLE_DEVICES", "HDF5_USE_FILE_LOCKING", "MPI4PY_MPIABI", "RINGMPI_DEVICE_MESSAGES", "RINGMPI_NATIVE")


def slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """What Slurm gave this job; empty outside of one."""
    return _told(environment, SLURM)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What the user set about threads, GPUs, kernels and files."""
    return _told(environment, THREADS + OTHERS)


def _told(environment: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: environment[name] for name in names if name in environment}
