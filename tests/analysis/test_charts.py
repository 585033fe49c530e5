"""Pictures of all results: one look, units on the axes, readable at the width of a phone, the same bytes each time."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ringmpi import analysis
from ringmpi.errors import ConfigError
from ringmpi.plotting import DARK, LIGHT, WIDTH, new_axes, png_bytes, svg_bytes
from tests.analysis.recorded_output import set_timeline, write_recorded
from tests.analysis.simulated_ring import simulate
from tests.analysis.written import Case

LABELS = {
    "entropy": ("position of the query", "entropy of the weights, nats"),
    "distance": ("position of the query", "mean distance, positions"),
    "sinks": ("position of the query", "weight on the first 4 keys"),
    "received": ("position of the key", "weight that a key receives"),
    "recorded_map": ("position of the key", "position of the query"),
    "top_keys": ("position of the query", "position of the key, head 0"),
    "timeline": ("seconds in the pass", "rank"),
    "overlap": ("seconds with messages under way", "rank"),
    "balance": ("seconds in the kernels", "rank"),
    "memory": ("largest memory, B", "rank"),
    "slow_rank": ("nanoseconds per pair", "rank"),
    "scaling": ("ranks", "efficiency"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One result of each kind."""
    folder = tmp_path_factory.mktemp("run")
    path = write_recorded(folder).path
    timeline = simulate(np.array([[1.0, 1, 1], [1, 1, 1], [2, 2, 2]]), np.full(3, 0.1))
    set_timeline(path, attend_seconds=timeline.attend_seconds, wait_seconds=timeline.wait_seconds)
    set_timeline(path, flight_seconds=timeline.wait_seconds + 0.1, pairs_attended=np.full((3, 3), 10**6))
    found = {name: getattr(analysis, name)(path) for name in LABELS if name != "scaling"}
    return found | {"scaling": analysis.scaling([path, _on_one_rank(tmp_path_factory.mktemp("one"))])}


def _on_one_rank(folder):
    path = write_recorded(folder, Case(ranks=1, sharding="contiguous")).path
    set_timeline(path, attend_seconds=[[9.0]])
    return path


@pytest.mark.parametrize("name", LABELS)
def test_axes_say_what_they_show_with_units(results, name):
    axes = results[name].plot()
    assert (axes.get_xlabel(), axes.get_ylabel()) == LABELS[name]
    assert axes.figure.get_size_inches()[0] == WIDTH
    assert results[name].caption.endswith(".")
    assert results[name].caption.isascii()


@pytest.mark.parametrize("name", LABELS)
def test_the_same_picture_has_the_same_bytes_in_the_colours_of_its_style(results, name):
    light, again, dark = (svg_bytes(results[name].plot(style=style).figure) for style in (LIGHT, LIGHT, DARK))
    assert light == again
    assert b"<dc:date>" not in light
    for style, own, other in ((LIGHT, light, dark), (DARK, dark, light)):
        assert style.ink.encode() in own
        assert style.ink.encode() not in other
        assert style.muted.encode() not in other
    assert b"fill: #ffffff" not in light + dark  # nothing is drawn behind


def test_the_same_pixels_have_the_same_bytes(results):
    first, second = (png_bytes(results["memory"].plot().figure, 40) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", LABELS)
def test_a_result_is_drawn_into_axes_that_are_given(results, name):
    axes = new_axes(8, 5)
    assert results[name].plot(axes) is axes
    assert axes.figure.get_size_inches().tolist() == [8, 5]


@pytest.mark.parametrize("name", LABELS)
def test_nothing_overlaps_at_the_width_of_a_phone(results, name):
    axes = results[name].plot()
    figure = axes.figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    whole = figure.bbox
    for texts in (axes.get_xticklabels(), axes.get_yticklabels()):
        boxes = [text.get_window_extent(renderer) for text in texts if text.get_text() and text.get_visible()]
        inside = [box for box in boxes if whole.x0 <= box.x0 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1]
        assert not any(a.overlaps(b) for n, a in enumerate(inside) for b in inside[:n])
    for text in (axes.xaxis.label, axes.yaxis.label):
        box = text.get_window_extent(renderer)
        assert whole.x0 - 1 <= box.x0
        assert box.x1 <= whole.x1 + 1
    if (legend := axes.get_legend()) is not None:
        box = legend.get_window_extent(renderer)
        assert box.x1 <= whole.x1 + 1
        assert box.y1 <= whole.y1 + 1


def test_one_head_has_a_band_of_quantiles(results):
    axes = results["entropy"].plot(slab=2)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["10 to 90 % of rows", "mean, head 2"]
    drawn = axes.lines[0].get_ydata()
    np.testing.assert_array_equal(drawn, results["entropy"].mean[2])


def test_of_many_heads_the_mean_stands_out(results):
    few = results["entropy"]
    many = replace(few, heads=few.heads * 4, mean=np.concatenate([few.mean] * 4))
    many.mean[0, 3] = np.nan
    axes = many.plot()
    assert len(axes.lines) == 17
    np.testing.assert_allclose(axes.lines[-1].get_ydata()[5], many.mean[:, 5].mean())
    np.testing.assert_allclose(axes.lines[-1].get_ydata()[3], many.mean[1:, 3].mean())


def test_a_map_leaves_cells_without_weight_empty(results):
    found = results["recorded_map"]
    shown = found.plot().collections[0].get_array()
    assert (np.ma.getmaskarray(shown).reshape(9, 9) == (found.weights[0] == 0)).all()


def test_the_bars_of_a_rank_are_its_seconds(results):
    axes, found = results["timeline"].plot(), results["timeline"]
    for rank in range(3):
        work, waits = axes.collections[2 * rank : 2 * rank + 2]
        widths = [np.ptp(path.vertices[:, 0]) for path in work.get_paths()]
        np.testing.assert_allclose(widths, found.attend[rank])
        assert max(path.vertices[:, 0].max() for path in (*work.get_paths(), *waits.get_paths())) == pytest.approx(
            found.seconds[rank]
        )


def test_many_ranks_are_a_map_of_waits(results):
    shape = (40, 40)
    wide = {name: np.ones(shape) for name in ("attend", "flight", "bytes_sent", "pairs")}
    found = replace(results["timeline"], ranks=("rank",) * 40, wait=np.full(shape, 3.0), **wide)
    axes = found.plot()
    assert (axes.images[0].get_array() == 0.75).all()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ring step", "rank")


def test_a_map_with_nan_can_be_drawn(results):
    weights = results["recorded_map"].weights.copy()
    weights[0, 3] = np.nan
    shown = replace(results["recorded_map"], weights=weights).plot().collections[0].get_array()
    assert np.ma.getmaskarray(shown).reshape(9, 9)[3].all()
    assert shown.max() == 1


def test_an_empty_map_can_be_drawn(results):
    found = replace(results["recorded_map"], weights=np.zeros_like(results["recorded_map"].weights))
    assert svg_bytes(found.plot().figure).startswith(b"<?xml")


def test_a_name_of_a_node_is_no_mathematics(results):
    found = replace(results["memory"], ranks=("rank 0 (node $x$)",) * 3)
    assert svg_bytes(found.plot().figure) == svg_bytes(results["memory"].plot().figure)


def test_without_matplotlib_a_plot_says_what_to_install(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="Run: python -m pip install matplotlib"):
        results["memory"].plot()
