"""A rank that is stopped again and again is found from the output alone."""

from pathlib import Path

import pytest

from ringmpi import analysis

HALTING = str(Path(__file__).with_name("halting.py"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_most_of_its_time_is_named(mpirun, job, tmp_path, rank):
    """Most, so that it stands out also where other work takes a half of the cores."""
    path = job(8192, heads=(16, 4), head_dim=64, options="[attention]\nmask = 'causal'\n")
    done = mpirun(2, rank, 0.8, "run", path, "--set", "output.verify_rows=0", program=(HALTING,))
    assert done.code == 0, done.err
    found = analysis.slow_rank(tmp_path / "out.h5")
    assert (found.rank, found.stands_out) == (rank, True), found.words
    assert 0.1 * found.pass_seconds < found.cost_seconds < found.pass_seconds
