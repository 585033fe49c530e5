"""The page of `ringmpi analyze` in a real browser: on a phone and a desktop, by keyboard, light and dark."""

import os

import numpy as np
import pytest

from ringmpi.report.rendering import rendered
from tests.lab.browser import Browser, why_not
from tests.report.pages import map_of, whole_page

HEADS = 5


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if reason := why_not():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"the browser {reason}")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with one of everything, long words included, and a map in which every head differs."""
    page = whole_page("a/long/path/" + "x" * 120)
    weights = np.stack([np.eye(16) * 0.5 ** (head + 1) for head in range(HEADS)])
    names = [f"head {head}" for head in range(HEADS)]
    blocks = [block for block in page.sections[0].blocks if block.kind != "map"] + [map_of(weights, names)]
    object.__setattr__(page.sections[0], "blocks", blocks)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(rendered(page), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "height"), [(320, 640), (390, 844), (768, 1024), (1440, 900)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_and_says_no_errors(browser, report, width, height, dark):
    page = browser.open(report, width=width, height=height, dark=dark)
    root = "document.documentElement"
    assert page.value(f"{root}.scrollWidth <= {root}.clientWidth")
    assert page.errors() == []


def test_an_error_of_the_script_is_seen(browser, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<!doctype html><script>nothing()</script><img src=nothing.png>", encoding="utf-8")
    assert len(browser.open(broken).errors()) == 2


def test_another_script_does_not_run(browser, report, tmp_path):
    changed = tmp_path / "changed.html"
    text = report.read_text(encoding="utf-8").replace("</main>", "<script>document.title = 'changed'</script></main>")
    changed.write_text(text, encoding="utf-8")
    page = browser.open(changed)
    assert page.value("document.title") != "changed"
    assert len(page.errors()) == 1


def test_heads_are_chosen_by_keyboard(browser, report):
    page = browser.open(report)
    page.value("document.getElementById('map').focus()")
    page.press("ArrowDown")
    page.press("ArrowRight")
    assert "an average query of 16 to 31 gives 50.0 % of its weight to keys 16 to 31" in readout(page)
    page.value("document.getElementById('map-head').focus()")
    page.press("ArrowDown", times=2)
    assert page.value("document.getElementById('map-head').value") == "2"
    assert readout(page).startswith("head 2: an average query of 16 to 31 gives 12.5 %")
    page.value("document.getElementById('map-after').focus()")
    page.press("Enter")
    assert readout(page).startswith("head 3:")
    assert page.value("document.querySelectorAll('#map-heads [aria-pressed=true]').length") == 1


def test_every_control_is_reached_by_tab(browser, report):
    page = browser.open(report)
    reached = set()
    for _ in range(60):
        page.press("Tab")
        reached.add(page.value("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "map-head", "map-after", "map-in", "map", "A", "SUMMARY", "BUTTON"} <= reached


def test_the_map_zooms_by_keyboard(browser, report):
    page = browser.open(report)
    before = pixels(page)
    page.value("document.getElementById('map').focus()")
    page.press("+")
    assert pixels(page) != before
    assert not page.value("document.getElementById('map-out').disabled")
    page.press("-")
    assert pixels(page) == before


def test_dark_and_light(browser, report):
    page = browser.open(report)
    light, map_light = background(page), pixels(page)
    page.prefer("dark")
    dark = background(page)
    assert light != dark
    assert pixels(page) != map_light
    button = "document.getElementById('theme')"
    seen = []
    for _ in range(3):
        page.value(f"{button}.click()")
        seen.append((page.value(f"{button}.textContent"), background(page)))
    assert seen == [("Theme: light", light), ("Theme: dark", dark), ("Theme: system", dark)]


def test_text_is_readable_on_its_background(browser, report):
    """WCAG 2.1 AA: a contrast of 4.5 or more."""
    for dark in (False, True):
        page = browser.open(report, dark=dark)
        paper = background(page)
        for selector in ("p", "figcaption", "nav a", "dt", "th", ".good", ".bad", "a"):
            ink = page.value(f"getComputedStyle(document.querySelector('{selector}')).color")
            assert contrast(ink, paper) >= 4.5, (selector, dark)


def test_lines_are_short(browser, report):
    page = browser.open(report)
    widest = page.value(
        "Math.max(...[...document.querySelectorAll('main p, figcaption')].map((p) => p.getBoundingClientRect().width /"
        " parseFloat(getComputedStyle(p).fontSize)))"
    )
    assert widest < 45  # em; a character is about 0.55 em


def readout(page):
    return page.value("document.getElementById('map-readout').textContent")


def background(page):
    return page.value("getComputedStyle(document.body).backgroundColor")


def pixels(page):
    page.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.value("document.getElementById('map').toDataURL()")


def contrast(one, other):
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    """https://www.w3.org/TR/WCAG21/#dfn-relative-luminance of a colour as `rgb(1, 2, 3)`."""
    parts = np.array([float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])
