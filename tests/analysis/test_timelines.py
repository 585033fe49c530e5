"""Timelines, overlap, balance and memory are what the file holds."""

import math
from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.errors import ConfigError, StorageError
from tests.analysis.recorded_output import set_timeline
from tests.analysis.written import Case, write_run

GRADIENTS = '[backward]\ngrad_output = "do"\n'


@pytest.fixture
def output(tmp_path, rng):
    """Two passes of three ranks with numbers of their own."""
    path = write_run(tmp_path, Case(backward=GRADIENTS))
    for group, steps in (("timeline", 3), ("timeline_backward", 4)):
        attend, wait, more = rng.random((3, 3, steps))
        moved = rng.integers(1, 9, (2, 3, steps))
        counters = {"attend_seconds": attend, "wait_seconds": wait, "flight_seconds": wait + more}
        set_timeline(path, group, **counters, bytes_sent=moved[0], bytes_received=moved[1])
    set_timeline(path, peak_memory_bytes=[1 << 30, 3 << 30, 2 << 30])
    with h5py.File(path, "r+") as file:
        file["provenance/ring_order"][...] = [2, 1, 0]
    return path


def stored(path, name):
    with h5py.File(path) as file:
        return file[name][...]


@pytest.mark.parametrize(("which", "group"), [("forward", "timeline"), ("backward", "timeline_backward")])
def test_a_timeline_is_that_of_the_pass(output, which, group):
    found = analysis.timeline(output, which)
    names = ("attend_seconds", "wait_seconds", "flight_seconds", "bytes_sent", "pairs_attended")
    arrays = (found.attend, found.wait, found.flight, found.bytes_sent, found.pairs)
    for name, array in zip(names, arrays, strict=True):
        np.testing.assert_array_equal(array, stored(output, f"{group}/{name}"))
    assert found.ranks == (
        "rank 0 (launch rank 2, node node)",
        "rank 1 (node node)",
        "rank 2 (launch rank 0, node node)",
    )
    np.testing.assert_allclose(found.seconds, (found.attend + found.wait).sum(axis=1))
    columns, rows = found.table()
    assert columns[:3] == ("rank", "step", "attend_s")
    assert len(rows) == found.attend.size
    assert rows[found.attend.shape[1] + 2] == (1, 2, *(array[1, 2] for array in arrays))


def test_overlap_is_what_work_hid(output):
    found = analysis.overlap(output)
    flight, wait = (stored(output, f"timeline/{name}_seconds") for name in ("flight", "wait"))
    assert found.share == pytest.approx(1 - wait.sum() / flight.sum())
    np.testing.assert_allclose(found.by_rank, 1 - wait.sum(axis=1) / flight.sum(axis=1))
    assert found.table().rows[2] == (2, found.flight[2], found.wait[2], found.hidden[2], found.by_rank[2])


def test_where_nothing_moved_there_is_no_overlap(tmp_path):
    found = analysis.overlap(write_run(tmp_path, Case()))
    assert found.share is None
    assert np.isnan(found.by_rank).all()


def test_balance_is_longest_over_mean(output):
    found = analysis.balance(output)
    pairs, attend = (stored(output, f"timeline/{name}").sum(axis=1) for name in ("pairs_attended", "attend_seconds"))
    assert found.pairs.tolist() == pairs.tolist()
    assert found.pairs_ratio == pytest.approx(pairs.max() / pairs.mean())
    assert found.attend_ratio == pytest.approx(attend.max() / attend.mean())
    assert found.table().rows[1] == (1, pairs[1], pytest.approx(attend[1]))


def test_without_seconds_there_is_no_ratio(tmp_path):
    assert math.isnan(analysis.balance(write_run(tmp_path, Case())).attend_ratio)


def test_memory_is_by_rank(output):
    found = analysis.memory(output)
    assert (found.largest, found.ratio) == (3 << 30, 1.5)
    assert found.table() == (("rank", "peak_bytes"), [(0, 1 << 30), (1, 3 << 30), (2, 2 << 30)])


def test_refusals_are_by_name(tmp_path):
    path = write_run(tmp_path, Case())
    with pytest.raises(ConfigError, match=r"no backward pass: run with \[backward\]"):
        analysis.timeline(path, "backward")
    with pytest.raises(ConfigError, match='which = "sideways"'):
        analysis.balance(path, "sideways")
    with h5py.File(path, "r+") as file:
        del file["timeline/wait_seconds"]
    with pytest.raises(StorageError, match="lacks /timeline/wait_seconds"):
        analysis.timeline(path)


@pytest.mark.parametrize(
    ("which", "text"),
    [("forward", "waiting for keys and values that"), ("map", "waiting for queries that"), ("backward", "gradients")],
)
def test_a_caption_says_what_the_ranks_of_this_pass_wait_for(tmp_path, which, text):
    assert text in replace(analysis.timeline(write_run(tmp_path, Case())), which=which).caption
