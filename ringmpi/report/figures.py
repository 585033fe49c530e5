"""Pictures as elements of the page: their colours are those of its theme, their text is text, their ids are unique."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.plotting import DARK, LIGHT, SVG_SALT, Style

# Colours that no picture has by chance, each in the place of a custom property of the page.
INK, MUTED, GRID, ACCENT, WARNING = (f"#01fe{n:02x}" for n in range(5))
SERIES = tuple(f"#01fe{n:02x}" for n in range(16, 16 + len(LIGHT.series)))
NAMED = {INK: "ink", MUTED: "quiet", GRID: "line", ACCENT: "accent", WARNING: "bad"} | {
    colour: f"series-{n}" for n, colour in enumerate(SERIES)
}
THEME = Style(ink=INK, muted=MUTED, grid=GRID, series=SERIES, accent=ACCENT, warning=WARNING)
COLOURS = 256  # of a map

_ID = re.compile(r'(?<=\bid=")([^"]+)(?=")|(?<=href="#)([^"]+)(?=")|(?<=url\(#)([^)]+)(?=\))')
_COLOUR = re.compile("#01fe[0-9a-f]{2}")
_PATH = re.compile(r'(?<= d=")[^"]*')
_DIGITS = re.compile(r"(\.\d)\d+")  # a tenth of a point is seen by nobody
_FAMILY = re.compile(r";? ?font-family: [^;\"]*")
_FONT = re.compile(r"font: ((?:normal |bold |italic |oblique |[0-9]+ )*)([\d.]+px)[^;\"]*")


def inline(figure: Any, name: str, description: str) -> str:
    """A matplotlib figure as an SVG element.

    Parameters
    ----------
    figure : matplotlib Figure
        Drawn with the style `THEME`.
    name : str
        In front of its ids.
    description : str
        For readers who do not see it.
    """
    buffer = BytesIO()
    with import_module("matplotlib").rc_context({"svg.hashsalt": SVG_SALT, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = _ID.sub(lambda found: f"{name}-{found[0]}", text)
    text = _COLOUR.sub(lambda found: f"var(--{NAMED[found[0]]})" if found[0] in NAMED else found[0], text)
    text = _FAMILY.sub("", _FONT.sub(r"font-size: \2", text))
    text = _PATH.sub(lambda found: _DIGITS.sub(r"\1", found[0]), text)
    box = re.search(r'viewBox="[^"]*"', text)
    opened = f'<svg {box[0] if box else ""} role="img" aria-label="{escape(description)}"'
    return re.sub(r"^<svg[^>]*", f'{opened} xmlns:xlink="http://www.w3.org/1999/xlink"', text, count=1)


def series_css() -> str:
    """The colours of series, of both themes, as custom properties: for a light page, then for a dark one."""
    light, dark = (
        " ".join(f"--series-{n}: {colour};" for n, colour in enumerate(style.series)) for style in (LIGHT, DARK)
    )
    return (
        f":root {{ {light} }}\n"
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f'@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}\n'
    )


def map_colours() -> NDArray[np.uint8]:
    """Colours of a map from the smallest to the largest weight, uint8 [256, 3]."""
    colormap = import_module("matplotlib").colormaps[LIGHT.colormap]
    return np.array([colormap(n / (COLOURS - 1), bytes=True)[:3] for n in range(COLOURS)], np.uint8)


def gradient(colours: NDArray[np.uint8], stops: int = 9) -> str:
    """Some of the colours, from the first to the last, as CSS writes them."""

    def chosen() -> Iterator[str]:
        for n in np.linspace(0, len(colours) - 1, stops).round().astype(int):
            yield f"#{bytes(colours[n]).hex()}"

    return ", ".join(chosen())
