"""Threads of a process: the user's word, else a fair share of cores and of CPU time."""

import pytest

from ringmpi.process.cores import threads_for

EIGHT = tuple(range(8))


@pytest.mark.parametrize(
    ("neighbours", "environment", "quota", "threads"),
    [
        ([EIGHT], {}, None, 8),
        ([EIGHT] * 3, {}, None, 2),
        ([EIGHT, (8, 9)], {}, None, 8),
        ([EIGHT] * 16, {}, None, 1),
        ([EIGHT] * 4, {"OMP_NUM_THREADS": "6,1"}, 2.0, 6),
        ([EIGHT] * 4, {"OMP_NUM_THREADS": "many"}, None, 2),
        ([EIGHT] * 4, {"SLURM_CPUS_PER_TASK": "4"}, None, 4),
        ([EIGHT], {"SLURM_CPUS_PER_TASK": "64"}, None, 8),
        ([EIGHT] * 4, {"SLURM_CPUS_PER_TASK": "4", "OMP_NUM_THREADS": "3"}, None, 3),
        ([EIGHT], {}, 2.5, 2),
        ([EIGHT] * 2, {}, 6.0, 3),
        ([EIGHT] * 4, {}, 0.5, 1),
    ],
)
def test_threads_of_a_process_on_eight_cores(neighbours, environment, quota, threads):
    assert threads_for(EIGHT, neighbours, environment, quota) == threads
