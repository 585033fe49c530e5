"""Whether the objects of a file are those that storage/layout.py lists: presence, axes, dtypes. No number is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ringmpi.core.dtypes import SUPPORTED, accumulate_dtype
from ringmpi.storage.layout import GRADIENTS, LOG_SUM_EXP, OUTPUT, AttributeLayout, DatasetLayout
from ringmpi.storage.record_layout import RECORDED_ROWS, TOP_KEY
from ringmpi.storage.tree import DATASET, Entry

FIXED_DTYPES = ("int64", "float64", "string")
BATCH = "(batch)"


def departures(
    entries: Iterable[Entry], datasets: Sequence[DatasetLayout], attributes: Sequence[AttributeLayout]
) -> Iterator[str]:
    """Every way in which a file is not as it was written, one sentence each.

    Parameters
    ----------
    entries : iterable of Entry
        All objects of the file.
    datasets, attributes : sequence of layout
        What must be there.
    """
    found = {entry.path: entry for entry in entries}
    lengths: dict[str, tuple[int, str]] = {}
    for layout in datasets:
        entry = found.get(layout.path)
        if entry is None:
            yield f"{layout.path} is missing ({layout.meaning})"
        elif entry.kind != DATASET:
            yield f"{layout.path} is a {entry.kind}, not a dataset ({layout.meaning})"
        else:
            yield from _axes(entry, layout, lengths)
            yield from _fixed_dtype(entry, layout)
    yield from _float_dtypes(found)
    for attribute in attributes:
        if attribute.path in found:
            yield from _attribute(found[attribute.path].attributes, attribute)


def _axes(entry: Entry, layout: DatasetLayout, lengths: dict[str, tuple[int, str]]) -> Iterator[str]:
    """Compare each axis with the datasets before that have an axis of the same name; `lengths` collects them."""
    shape, axes = entry.shape or (), axes_of(entry, layout)
    if len(axes) != len(shape):
        yield f"{entry.path} has {len(shape)} axes {list(shape)}; expected {', '.join(layout.axes)}"
        return
    for axis, length in zip(axes, shape, strict=True):
        if " " in axis:  # columns, each with its name
            known, where = len(axis.split()), "its layout"
        else:
            known, where = lengths.setdefault(axis, (length, entry.path))
        if length != known:
            yield f"{entry.path} has {length} {axis}, {where} has {known}"


def axes_of(entry: Entry, layout: DatasetLayout) -> tuple[str, ...]:
    """The names of the axes that a dataset has: with the batch axis or without."""
    optional = BATCH in layout.axes and len(entry.shape or ()) < len(layout.axes)
    return tuple(axis for axis in layout.axes if not (optional and axis == BATCH))


def _fixed_dtype(entry: Entry, layout: DatasetLayout) -> Iterator[str]:
    if layout.dtype in FIXED_DTYPES and entry.dtype != layout.dtype:
        yield f"{entry.path} holds {entry.dtype}; expected {layout.dtype}"


def _float_dtypes(found: dict[str, Entry]) -> Iterator[str]:
    """/output has a dtype of inputs, gradients the same, and numbers of rows the one in which that is accumulated."""
    output = found.get(OUTPUT)
    if output is None or output.kind != DATASET:
        return
    dtype = next((dtype for dtype in SUPPORTED if dtype.name == output.dtype), None)
    if dtype is None:
        yield f"{OUTPUT} holds {output.dtype}; expected one of {', '.join(d.name for d in SUPPORTED)}"
        return
    for name in (LOG_SUM_EXP, *(name for name in RECORDED_ROWS if name != TOP_KEY)):
        if name in found and found[name].dtype not in ("", needed := accumulate_dtype(dtype).name):
            yield f"{name} holds {found[name].dtype}; expected {needed} for an output of {dtype.name}"
    for name in GRADIENTS:
        if name in found and found[name].dtype not in ("", dtype.name):
            yield f"{name} holds {found[name].dtype}; expected {dtype.name}, the dtype of {OUTPUT}"


def _attribute(attributes: dict[str, Any], layout: AttributeLayout) -> Iterator[str]:
    value, where = attributes.get(layout.name), f"attribute {layout.name} of {layout.path}"
    if value is None:
        yield f"{where} is missing ({layout.meaning})"
    elif not isinstance(value, str if layout.dtype == "string" else int):
        yield f"{where} is {value!r}; expected {layout.dtype} ({layout.meaning})"
