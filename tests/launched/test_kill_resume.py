"""Some kills of `python -m tests.campaigns.kill_resume`, as many as go into a few seconds."""

import pytest

from tests.campaigns.kill_resume import campaign

KILLS = 10
SECONDS = 40


@pytest.mark.timeout(180)
def test_a_run_that_is_killed_goes_on_and_nothing_is_lost(mpirun):
    tally = campaign(mpirun.command, KILLS, seed=0, most_seconds=SECONDS)
    assert not tally.faults, tally.faults[0]
    assert tally.kills
    assert tally.runs
