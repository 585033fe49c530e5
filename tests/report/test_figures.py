"""Pictures on the page: colours of its theme, its fonts, ids of their own."""

import re

import numpy as np
import pytest

from ringmpi.plotting import DARK, LIGHT, add_legend, dress, new_axes
from ringmpi.report.figures import NAMED, THEME, gradient, inline, map_colours, series_css
from tests.report.parsed import Parsed, faults


@pytest.fixture(scope="module")
def drawn():
    axes = new_axes(3, 2)
    with np.errstate(all="warn"):
        axes.plot([1e-8, 2e-8, 3e-8], color=THEME.series[0], label='<b> & "quotes"')
        axes.set_yscale("log")
        dress(axes, THEME, x="x", y="y", grid="y")
        add_legend(axes, THEME)
        return [inline(axes.figure, name, 'said <b> & "so"') for name in ("one", "two")]


def test_two_of_them_fit_on_a_page(drawn):
    assert faults("".join(drawn)) == []
    assert [svg["aria-label"] for svg in Parsed(drawn[0]).named("svg")] == ['said <b> & "so"']


def test_fonts_and_colours_are_those_of_the_page(drawn):
    assert "font-family" not in drawn[0]
    assert "DejaVu" not in drawn[0]
    assert {"var(--ink)", "var(--quiet)", "var(--line)", "var(--series-0)"} <= set(
        re.findall(r"var\([\w-]+\)", drawn[0])
    )
    assert not any(colour in drawn[0] for colour in NAMED)


def test_there_is_no_date_and_no_size_but_the_proportions(drawn):
    head = drawn[0][: drawn[0].index(">")]
    assert "viewBox" in head
    assert "width" not in head
    assert "metadata" not in drawn[0]


def test_series_have_colours_in_both_themes():
    css = series_css()
    for style in (LIGHT, DARK):
        for n, colour in enumerate(style.series):
            assert f"--series-{n}: {colour};" in css


def test_colours_of_maps_rise_in_brightness():
    colours = map_colours()
    brightness = colours.astype(float) @ [0.2126, 0.7152, 0.0722]
    assert colours.shape == (256, 3)
    assert (np.diff(brightness) >= -1).all()
    assert gradient(colours, 2) == ", ".join(f"#{bytes(colours[n]).hex()}" for n in (0, -1))
