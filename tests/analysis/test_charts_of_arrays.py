"""What charts draw of arrays: bars, lines, scales and names."""

import numpy as np
import pytest

from ringmpi.analysis.map_chart import DECADES, LARGEST, SMALLEST, draw_map, draw_top_keys
from ringmpi.analysis.profile_chart import NAMED, Spread, draw_head, draw_heads
from ringmpi.analysis.rank_charts import (
    BARS,
    OUTLINE,
    RANKS_AS_BARS,
    STEPS_AS_BARS,
    draw_bars,
    draw_overlap,
    draw_scaling,
    draw_speeds,
    draw_timeline,
)
from ringmpi.plotting import LIGHT

LABELS = ("position of the query", "entropy of the weights, nats")


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def names(ticks):
    return [text.get_text() for text in ticks]


def test_a_timeline_has_two_rows_of_bars_a_rank_and_a_bar_a_step():
    axes = draw_timeline(np.ones((2, 3)), np.full((2, 3), 0.5), None, LIGHT)
    assert [len(bars.get_paths()) for bars in axes.collections] == [3, 3, 3, 3]
    starts = [[path.vertices[:, 0].min() for path in bars.get_paths()] for bars in axes.collections]
    assert starts == [[0, 1.5, 3], [1, 2.5, 4]] * 2
    assert legend(axes) == ["attending", "waiting"]
    assert axes.get_yticks().tolist() == [0, 1]


@pytest.mark.parametrize("shape", [(RANKS_AS_BARS + 1, 2), (2, STEPS_AS_BARS + 1)])
def test_a_long_timeline_is_a_map_of_parts_that_were_waited(shape):
    attend = np.full(shape, 0.75)
    attend[0, 0] = 0
    axes = draw_timeline(attend, attend / 3, None, LIGHT)
    assert not axes.collections
    (image,) = axes.images
    assert image.get_array()[0, 0] == 0  # nothing was done there
    assert image.get_array()[1, 1] == 0.25
    assert image.get_clim() == (0, 1)
    assert axes.figure.axes[1].get_ylabel() == "part of the step spent waiting"


def test_exposed_seconds_begin_where_hidden_ones_end():
    axes = draw_overlap(np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), None, LIGHT)
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6)]
    assert legend(axes) == ["hidden behind work", "exposed"]
    assert axes.get_ylim() == (2.5, -0.5)  # rank 0 on top


@pytest.mark.parametrize(
    ("ranks", "drawn", "label"),
    [(BARS, BARS, "rank"), (BARS + 1, 1, "rank"), (OUTLINE + 1, 1, "rank (longest of 2)")],
)
def test_bars_of_many_ranks_are_one_outline(ranks, drawn, label):
    axes = draw_bars(np.arange(1.0, ranks + 1), "seconds", None, LIGHT)
    assert len(axes.patches) == drawn
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("seconds", label)
    (mean,) = axes.lines
    assert set(mean.get_xdata()) == {(ranks + 1) / 2}


@pytest.mark.parametrize(("stands_out", "bars"), [(None, 4), (2, 5)])
def test_the_rank_that_stands_out_has_a_bar_of_another_colour(stands_out, bars):
    axes = draw_speeds(np.array([1e-9, np.nan, 7e-9, 3e-9]), stands_out, None, LIGHT)
    assert [bar.get_width() for bar in axes.patches[:4]] == pytest.approx([1, 0, 7, 3])
    assert len(axes.patches) == bars
    assert len({bar.get_facecolor() for bar in axes.patches}) == bars - 3
    assert axes.lines[0].get_xdata()[0] == pytest.approx(3)  # the median of those that have pairs
    assert legend(axes) == ["median"]


def test_scaling_is_drawn_over_powers_of_two_with_the_ideal():
    axes = draw_scaling(np.array([4, 4, 1024]), np.array([1.0, 0.9, 0.5]), "weak", "core", None, LIGHT)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert names(axes.get_xticklabels()) == ["4", "1,024"]
    assert legend(axes) == ["ideal", "weak scaling"]
    assert (axes.get_xlabel(), axes.get_ylim()) == ("cores", (0, 1.1))


def test_more_than_the_ideal_has_room():
    axes = draw_scaling(np.array([1, 2]), np.array([1.0, 2.0]), "strong", "rank", None, LIGHT)
    assert axes.get_ylim() == pytest.approx((0, 2.2))


def test_a_map_has_logarithmic_colours_and_key_0_at_the_left_and_query_0_on_top():
    weights = np.array([[0.5, 0.0, 0.25], [np.nan, 0.25, 0.5]])
    axes = draw_map(weights, np.array([0, 4, 8]), np.array([0, 2, 4, 6]), "head 3", None, LIGHT)
    (mesh,) = axes.collections
    assert type(mesh.norm).__name__ == "LogNorm"
    assert (mesh.norm.vmin, mesh.norm.vmax) == pytest.approx((0.5 * 10.0**-DECADES, 0.5))
    assert np.ma.getmaskarray(mesh.get_array()).ravel().tolist() == [False, True, False, True, False, False]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 6), (8, 0))
    assert axes.figure.axes[1].get_ylabel() == "weight, head 3"


def test_top_keys_are_marks_by_weight_and_none_where_a_row_has_fewer():
    keys, weights = np.array([[5, 2], [9, -1]]), np.array([[0.5, 0.25], [1.0, 0.0]])
    axes = draw_top_keys(np.array([6, 9]), keys, weights, "head 3", None, LIGHT)
    (marks,) = axes.collections
    assert marks.get_offsets().tolist() == [[6, 5], [6, 2], [9, 9]]
    assert marks.get_sizes() == pytest.approx(SMALLEST + (LARGEST - SMALLEST) * np.array([0.5, 0.25, 1]))
    assert axes.get_ylabel() == "position of the key, head 3"


def test_few_heads_have_a_line_with_a_name_each():
    heads = [f"head {head}" for head in range(NAMED)]
    axes = draw_heads(np.array([0, 4, 8]), heads, np.ones((NAMED, 2)), LABELS, None, LIGHT)
    assert len(axes.lines) == NAMED
    assert sorted(legend(axes)) == heads
    assert axes.lines[0].get_xdata().tolist() == [1.5, 5.5]  # the middle of the positions of a bin
    assert (axes.get_xlabel(), axes.get_ylabel()) == LABELS


def test_of_many_heads_the_mean_has_the_name():
    means = np.arange(2.0 * (NAMED + 1)).reshape(-1, 2)
    axes = draw_heads(np.array([0, 4, 8]), [""] * (NAMED + 1), means, LABELS, None, LIGHT)
    assert len(axes.lines) == NAMED + 2
    assert axes.lines[-1].get_ydata().tolist() == means.mean(axis=0).tolist()
    assert legend(axes) == ["each head", "mean of heads"]


def test_one_head_has_its_mean_in_a_band():
    rows = Spread(np.array([2.0, 3]), np.array([1.0, 1]), np.array([4.0, 5]), (0.05, 0.95))
    axes = draw_head(np.array([0, 4, 8]), "head 3", rows, LABELS, None, LIGHT)
    (band,), (mean,) = axes.collections, axes.lines
    assert band.get_paths()[0].get_extents().bounds == (1.5, 1, 4, 4)
    assert mean.get_ydata().tolist() == [2, 3]
    assert legend(axes) == ["5 to 95 % of rows", "mean, head 3"]
    assert axes.get_ylim()[0] == 0
