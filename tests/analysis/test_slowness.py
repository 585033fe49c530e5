"""Who slows the ring: rings that are simulated, and so known, and outputs of every kind."""

from dataclasses import fields, replace

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.errors import ConfigError
from ringmpi.storage.computed_by import write_computed_by
from tests.analysis.recorded_output import set_timeline
from tests.analysis.simulated_ring import seconds, simulate
from tests.analysis.written import Case, write_run
from tests.storage.test_computed_by import COMPUTED


def write(folder, timeline, *, sharding="contiguous", schedule=None):
    """An output with this timeline, on as many ranks as it has."""
    path = write_run(folder, Case(ranks=len(timeline.attend_seconds), sharding=sharding))
    set_timeline(path, **{field.name: getattr(timeline, field.name) for field in fields(timeline)})
    if schedule is not None:
        with h5py.File(path, "r+") as file:
            text = file["provenance"].attrs["configuration"]
            assert 'schedule = "auto"' in text
            file["provenance"].attrs["configuration"] = text.replace('schedule = "auto"', f'schedule = "{schedule}"')
    return path


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("slow", [0, 1, -1])
def test_a_rank_that_is_slower_is_named_with_what_it_costs(tmp_path, ranks, slow):
    rng, transfer = np.random.default_rng(ranks), np.full(ranks, 0.05)
    even = 1 + 0.02 * rng.random((ranks, ranks))
    attend = even.copy()
    attend[slow] /= 0.7
    found = analysis.slow_rank(write(tmp_path, simulate(attend, transfer)))
    assert found.rank == slow % ranks
    assert found.stands_out
    assert found.slowdown == pytest.approx(1 / 0.7, rel=0.03)
    truth = seconds(simulate(attend, transfer)) - seconds(simulate(even, transfer))
    assert found.cost_seconds == pytest.approx(truth, rel=0.1)
    assert found.pass_seconds == pytest.approx(seconds(simulate(attend, transfer)))
    assert f"rank {slow % ranks} (node node)" in found.words
    assert "s less" in found.words


def test_of_even_ranks_none_stands_out(tmp_path):
    attend = 1 + 0.01 * np.random.default_rng(1).random((4, 4))
    found = analysis.slow_rank(write(tmp_path, simulate(attend, np.zeros(4))))
    assert not found.stands_out
    assert "No rank stands out" in found.words


def test_noise_of_a_short_pass_is_no_finding(tmp_path):
    attend = np.full((2, 2), 0.1)
    attend[1] *= 2
    found = analysis.slow_rank(write(tmp_path, simulate(attend, np.zeros(2))))
    assert not found.stands_out
    assert "Ranks of passes under 1 s differ by chance." in found.words


def test_a_rank_that_costs_under_a_twentieth_is_no_finding(tmp_path):
    attend = np.ones((4, 4))
    attend[1, 0] = 1.3  # of 4 s: 7 % too long where it worked, 0.1 s of all
    attend[2, 1:] = 1.05
    found = analysis.slow_rank(write(tmp_path, simulate(attend, np.zeros(4))))
    assert found.slowdown > 1.03
    assert 0 < found.cost_seconds < 0.05 * found.pass_seconds
    assert not found.stands_out


@pytest.mark.parametrize(("cores", "text"), [(5, "Node node had 6 threads on 5 cores"), (6, "")])
def test_ranks_that_share_cores_are_told(tmp_path, cores, text):
    path = write(tmp_path, simulate(np.ones((3, 3)), np.zeros(3)))
    with h5py.File(path, "r+") as file:
        write_computed_by(file, replace(COMPUTED, threads=(1, 4, 1), node_cores=(cores,) * 3))
    found = analysis.slow_rank(path)
    assert found.crowded.startswith(text)
    assert bool(found.crowded) == bool(text)
    assert found.words.endswith(found.crowded)


def test_a_rank_with_more_pairs_is_not_a_slow_one(tmp_path):
    attend = np.ones((3, 3))
    attend[2] = 3.0
    pairs = np.full((3, 3), 10**6)
    pairs[2] *= 3
    found = analysis.slow_rank(write(tmp_path, simulate(attend, np.zeros(3), pairs)))
    assert not found.stands_out
    assert found.slowdown == pytest.approx(1)
    assert found.cost_seconds == 0


def test_a_rank_with_few_pairs_that_nobody_waits_for_costs_nothing(tmp_path):
    """Its pairs are the slower ones at the edge of a mask; the rank with most pairs decides."""
    attend, pairs = np.ones((3, 3)), np.full((3, 3), 10**6)
    attend[0], pairs[0] = 0.1, 50_000
    found = analysis.slow_rank(write(tmp_path, simulate(attend, np.zeros(3), pairs)))
    assert not found.stands_out


def test_of_two_slow_ranks_neither_alone_gives_all_back(tmp_path):
    attend = np.ones((4, 4))
    attend[1], attend[2] = 2.0, 1.9
    found = analysis.slow_rank(write(tmp_path, simulate(attend, np.zeros(4))))
    assert found.rank == 1
    one_less = attend.copy()
    one_less[1] = 1.0
    gain = seconds(simulate(attend, np.zeros(4))) - seconds(simulate(one_less, np.zeros(4)))
    assert found.cost_seconds == pytest.approx(gain, rel=0.25)  # the median of the others is above 1 here


def test_the_slowest_link_is_named_by_both_ends(tmp_path):
    transfer = np.array([0.1, 0.1, 2.5, 0.1])
    found = analysis.slow_rank(write(tmp_path, simulate(np.ones((4, 4)), transfer)))
    assert not found.stands_out
    assert (found.link.sender, found.link.receiver) == (1, 2)
    assert found.link.label == "rank 1 (node node) to rank 2 (node node)"
    assert found.link.exposed_seconds == pytest.approx(3 * 1.5)
    assert "The slowest link is rank 1" in found.words


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
def test_every_schedule_is_judged(tmp_path, schedule):
    attend = np.ones((3, 3))
    attend[1] = 2.0
    found = analysis.slow_rank(write(tmp_path, simulate(attend, np.zeros(3)), schedule=schedule))
    assert (found.rank, found.stands_out) == (1, True)
    assert found.cost_seconds == pytest.approx(3, rel=0.01)
    assert found.link is None


def test_gradients_count_too(tmp_path):
    case = Case(ranks=2, sharding="contiguous", backward='[backward]\ngrad_output = "do"\n')
    path, attend = write_run(tmp_path, case), np.ones((2, 3))
    set_timeline(path, attend_seconds=np.ones((2, 2)))
    attend[1] = 2.0
    counters = {"attend_seconds": attend, "pairs_attended": np.full((2, 3), 1000), "wait_seconds": np.zeros((2, 3))}
    set_timeline(path, "timeline_backward", **counters)
    set_timeline(path, pairs_attended=np.full((2, 2), 1000))
    found = analysis.slow_rank(path)
    assert (found.rank, found.cost_seconds, found.pass_seconds) == (1, pytest.approx(3), pytest.approx(8))


def test_one_rank_has_nobody_to_be_compared_with(tmp_path):
    with pytest.raises(ConfigError, match="nothing to compare with"):
        analysis.slow_rank(write(tmp_path, simulate(np.ones((1, 1)), np.zeros(1))))


def test_the_table_has_the_speed_of_each_rank(tmp_path):
    found = analysis.slow_rank(write(tmp_path, simulate(np.ones((3, 3)), np.zeros(3))))
    assert found.table() == (("rank", "seconds_per_pair"), [(r, pytest.approx(1e-6)) for r in range(3)])
