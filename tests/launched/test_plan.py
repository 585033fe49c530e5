"""`ringmpi plan` beside `ringmpi run`: the same bytes; rates measured with all ranks at work."""

import json

import pytest

from ringmpi.core.rank_work import RankWork
from ringmpi.core.work import COLUMNS, count_pairs


@pytest.fixture
def plan(mpirun, job):
    """Plan a job in a process of its own, by the launcher with one rank."""

    def planned(path, ranks, *arguments):
        done = mpirun(1, "plan", path, "--ranks", ranks, "--json", *arguments)
        assert done.code == 0, done.err
        return json.loads(done.out)["plans"][0]

    return planned


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_planned_bytes_are_those_of_the_run(mpirun, job, plan, ranks):
    path = job(698, options='[attention]\nmask = "causal"')
    done = mpirun(ranks, "run", path, "--json", "--force")
    assert done.code == 0, done.err
    report, planned = json.loads(done.out), plan(path, ranks)
    assert planned["bytes_sent"] == report["bytes_sent"]
    assert planned["memory"]["peak"] >= report["array_bytes"]
    assert sum(planned["pairs_by_rank"]) == report["pairs_attended"]


def test_rates_are_measured_on_ranks_that_plan_starts_itself(job):
    from ringmpi.asking.question import question_of
    from ringmpi.bench.measure import measure_rates
    from ringmpi.config import load_config
    from ringmpi.planner.balance import resharded
    from ringmpi.storage.inputs import Inputs

    config = load_config(job(698, options='[attention]\nmask = "causal"'))
    with Inputs(config.input.file) as inputs:
        problem = question_of(config, inputs).problem
    rates = measure_rates(resharded(problem, "zigzag", 2), "numpy")
    assert rates.source == "measured on 2 ranks, all at work"
    assert 1e6 < rates.flops < 1e14
    assert 1e5 < rates.bandwidth < 1e13


def test_a_launcher_that_fails_is_named_with_what_it_said(monkeypatch, job):
    from ringmpi.bench.measure import measure_rates
    from ringmpi.errors import RingError
    from tests.planner.problems import problem

    monkeypatch.setenv("MPIRUN", "sh -c 'echo no such partition >&2; exit 7' --")
    with pytest.raises(RingError, match=r"ended with 7: no such partition"):
        measure_rates(problem(10, 2), "numpy")


def test_a_call_on_arrays_of_its_own_holds_the_same_pairs():
    from ringmpi.bench.measure import rebased
    from ringmpi.core.work import cut
    from tests.planner.problems import problem

    asked = problem(500, 4, sharding="striped")
    for rank in range(4):
        for piece in range(4):
            for call in cut(RankWork(asked, rank).table(piece), 1000):
                near, rows, keys = rebased(call)
                assert near.shape[1] == COLUMNS
                assert (count_pairs(near) == count_pairs(call)).all()
                assert (near[:, 0].min(), near[:, 1].max(), near[:, 2].min(), near[:, 3].max()) == (0, rows, 0, keys)
