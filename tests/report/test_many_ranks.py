"""A page stays small on machines of thousands of ranks."""

import numpy as np
import pytest

from ringmpi.analysis import Balance, Memory, Overlap, RunTimeline
from ringmpi.plotting import new_axes
from ringmpi.report import ranks_section
from ringmpi.report.figures import THEME, inline
from ringmpi.report.ranks_section import timeline_table

RANKS = 4096
LARGEST = 150_000  # bytes of a picture


def names():
    return tuple(f"rank {rank} (node {rank // 4})" for rank in range(RANKS))


@pytest.fixture(params=["balance", "memory", "overlap"])
def result(request, rng):
    seconds = rng.uniform(1, 2, RANKS)
    if request.param == "overlap":
        return Overlap("out.h5", "forward", names(), seconds, seconds / 4)
    if request.param == "memory":
        return Memory("out.h5", names(), (seconds * 2**30).astype(np.int64))
    return Balance("out.h5", "forward", names(), (seconds * 1e9).astype(np.int64), seconds)


def test_a_picture_of_thousands_of_ranks_is_small(result):
    axes = new_axes(7.4, 5)
    with np.errstate(all="warn"):
        result.plot(axes, style=THEME)
        text = inline(axes.figure, "ranks", "by rank")
    assert len(text) < LARGEST
    assert "var(--accent)" in text


def timeline(ranks, steps):
    counts = np.arange(ranks * steps).reshape(ranks, steps)
    labels = tuple(f"rank {rank}" for rank in range(ranks))
    return RunTimeline("out.h5", "forward", labels, counts * 1.0, counts * 2.0, counts * 3.0, counts, counts)


def test_few_ranks_have_a_line_each_step():
    assert len(timeline_table(timeline(3, 4)).rows) == 12


def test_thousands_of_ranks_have_a_line_each(monkeypatch):
    monkeypatch.setattr(ranks_section, "MOST_LINES", 11)
    table = timeline_table(timeline(3, 4))
    assert table.columns == ("rank", "attend_s", "wait_s", "flight_s", "bytes_sent", "pairs")
    assert table.rows == [(0, 6.0, 12.0, 18.0, 6, 6), (1, 22.0, 44.0, 66.0, 22, 22), (2, 38.0, 76.0, 114.0, 38, 38)]
