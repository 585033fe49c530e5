"""`ringmpi bench hop` and `ring`: alone they start mpirun, under mpirun they use its ranks. No time is judged."""

import pytest

from ringmpi.bench.questions import Case
from ringmpi.bench.report import read_report
from ringmpi.bench.ring_report import problem_of
from ringmpi.planner.plan import make_plan


@pytest.fixture
def benched(mpirun, tmp_path):
    """Run a benchmark on so many ranks -> its report."""

    def run(ranks, *arguments):
        path = tmp_path / "report.json"
        done = mpirun(ranks, "bench", *arguments, "--rounds", "2", "--json", path)
        assert done.code == 0, done.err
        return read_report(path), done.out

    return run


@pytest.mark.parametrize("ranks", [1, 2], ids=["alone", "under mpirun"])
def test_hops_are_timed_alone_and_beside_a_kernel(benched, ranks):
    report, shown = benched(ranks, "hop", "--sizes", "8,1048576")
    assert report.settings["ranks"] == 2
    rows = [(row.subject["message"], row.subject["beside"]) for row in report.rows]
    beside = [("1,048,576 B", "a kernel, polling"), ("1,048,576 B", "a kernel, not polling")]
    assert rows == [("8 B", "nothing"), ("1,048,576 B", "nothing"), *beside]
    assert all(0 <= row.figures["hidden"].median <= 1 for row in report.rows[2:])
    assert shown.count("bench hop") == 1


def test_rings_are_timed_beside_each_other_the_plan_and_a_peer(benched):
    report, _ = benched(1, "ring", "--shapes", "4/2x64x8", "--mask", "causal", "--ranks", "1,2", "--peer", "naive")
    rows = {(row.subject["pass"], row.subject["on"]): row for row in report.rows}
    for name in ("forward", "backward", "forward + backward"):
        assert (name, "1 rank") in rows
        assert rows[name, "2 ranks"].figures["efficiency"].median > 0
    planned = make_plan(problem_of(Case(4, 2, 64, 8, "causal"), 2, "zigzag"))
    assert rows["forward", "2 ranks"].figures["sent"].samples == [planned.bytes_sent / 1e6] * 2
    assert rows["backward", "2 ranks"].figures["bytes of forward"].median > 1
    assert rows["forward", "1 rank"].figures["plan / wall"].median > 0
    assert rows["forward", "1 rank"].figures["peer / ring"].median > 0
    assert "backward pass" in report.absent["naive, 4/2x64x8 causal backward"]


def test_rings_under_mpirun_are_those_of_the_job(benched):
    report, shown = benched(3, "ring", "--shapes", "1x48x8", "--mask", "full", "--dtype", "bfloat16", "--forward")
    assert [row.subject["on"] for row in report.rows] == ["3 ranks"]
    assert len(report.rows[0].figures["wall"].samples) == 2
    assert shown.count("bench ring") == 1


def test_a_backend_that_is_not_there_ends_the_job_with_its_message(mpirun):
    done = mpirun(2, "bench", "ring", "--shapes", "1x8x8", "--backend", "abacus", "--rounds", "1")
    assert done.code == 3
    assert 'backend "abacus" is unknown' in done.err
