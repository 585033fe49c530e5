"""The attention map of all heads: on the page to be looked into, and as files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ringmpi import analysis
from ringmpi.analysis import NotRecordedError, RecordedMap
from ringmpi.analysis.block_maps import COLUMNS
from ringmpi.numbers import percent
from ringmpi.report.beside import Beside
from ringmpi.report.figures import gradient, map_colours
from ringmpi.report.page import Block, Map, Missing, Section, Text
from ringmpi.report.quantised import cells_a_side, map_data
from ringmpi.storage.results import Results

MOST_HEADS = 256  # on the page
MEAN = "mean of heads"
TITLE = "Attention map"


def map_section(results: Results, slabs: int, beside: Beside) -> Section:
    """The map, or how to record it."""
    try:
        return Section("attention", TITLE, list(_blocks(results, slabs, beside)))
    except NotRecordedError as error:
        return Section(
            "attention", TITLE, [Missing("The attention map was not recorded. Record it with", error.option)]
        )


def _blocks(results: Results, slabs: int, beside: Beside) -> Iterator[Block]:
    shown = min(slabs, MOST_HEADS)
    cells = cells_a_side(shown + 1)
    mean = analysis.recorded_map(results, "mean", cells=cells)
    maps = [mean] * (slabs > 1) + [analysis.recorded_map(results, slab, cells=cells) for slab in range(shown)]
    names = [MEAN] * (slabs > 1) + [name for found in maps[slabs > 1 :] for name in found.heads]
    csv = beside.table("map", COLUMNS, _lines(maps, names))
    still = beside.picture("map", TITLE, mean, files=[csv], shape=1.9)
    weights = np.concatenate([found.weights for found in maps])
    edges = mean.query_edges.tolist(), mean.key_edges.tolist()
    colours = map_colours()
    data = map_data(names, weights, edges, colours)
    yield Map(
        name="map",
        title=TITLE,
        caption=f"{mean.caption}{_recorded(mean)}",
        data=data,
        gradient=gradient(colours),
        lowest=f"{percent(data['darkest'])} or less",
        highest=percent(data["high"]),
        still=still.wide,
        files=still.files,
    )
    if shown < slabs:
        yield Text(f"The first {shown:,} of {slabs:,} heads are shown; the mean is over all.", "quiet")


def _recorded(found: RecordedMap) -> str:
    """What was recorded, where the cells of the page are larger."""
    if int(np.diff(found.query_edges).max(initial=0)) <= found.block:
        return ""
    return f" Recorded were blocks of {found.block:,} positions, of which the page has exact means and sums."


def _lines(maps: list[RecordedMap], names: list[str]) -> Iterator[tuple[Any, ...]]:
    """Head by head, weights above 0 alone."""
    for found, name in zip(maps, names, strict=True):
        for _, *cells in found.table().rows:
            yield (name, *cells)
