"""A page with one of everything, to try the template without a run."""

from __future__ import annotations

import numpy as np

from ringmpi.report import page
from ringmpi.report.quantised import map_data

SVG = '<svg viewBox="0 0 10 5" role="img" aria-label="a line"><path d="M0 0 10 5" stroke="var(--accent)"/></svg>'


def picture(name="entropy", title="Entropy of rows", caption="Nats, by position. Low is focused."):
    return page.Picture(name, title, caption, SVG, SVG, [f"{name}.svg", f"{name}.png", f"{name}.csv"])


def map_of(weights, names):
    maps, rows, columns = weights.shape
    edges = np.arange(rows + 1) * 16, np.arange(columns + 1) * 16
    ramp = np.linspace(0, 255, 256).astype(np.uint8)
    data = map_data(names, weights, (edges[0].tolist(), edges[1].tolist()), np.stack([ramp] * 3, 1))
    return page.Map(
        "map", "Attention map", "A cell is 16 by 16.", data, "#000, #fff", "0.1 %", "80 %", SVG, ["map.csv"]
    )


def every_block(text="plain"):
    weights = np.tril(np.full((3, 8, 8), 0.125)) * np.array([1, 2, 4])[:, None, None]
    return [
        page.Text(text, "finding"),
        page.Missing(text, text),
        page.Details([(text, text)]),
        page.Checks([(False, text)]),
        page.Checks([(True, text)], text),
        page.Listing(text, text),
        picture(title=text, caption=text),
        page.Table("heads", text, (text, "n"), [(text, "1")], (1,), ["heads.csv"], text),
        map_of(weights, [text, "head 1", "head 2"]),
    ]


def whole_page(text="plain"):
    sections = [page.Section("one", text, every_block(text)), page.Section("two", text, [page.Text(text)])]
    return page.Page(text, text, [page.Fact(text, text, text, "good")], sections, text)
