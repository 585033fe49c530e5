"""What rows attend to along the sequence: entropy, distance, sinks, what keys receive, the top keys of chosen rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ringmpi import analysis
from ringmpi.analysis import NotRecordedError, Profile, TopKeys
from ringmpi.numbers import decimal, listed, percent, ratio
from ringmpi.report.beside import Beside
from ringmpi.report.page import Block, Missing, Section, Table, Text
from ringmpi.report.profile_shown import shown
from ringmpi.storage.results import Results

BINS = 96  # of positions: as many as a phone can show
HEADS_SHOWN, ROWS_SHOWN, KEYS_SHOWN = 64, 12, 8
PROFILES: tuple[tuple[str, str, Callable[..., Profile]], ...] = (
    ("entropy", "Entropy of rows", analysis.entropy),
    ("distance", "Distance of attention", analysis.distance),
    ("sinks", "Weight on the first keys", analysis.sinks),
    ("received", "Weight that keys receive", analysis.received),
)
KEY = "rows"


def rows_section(results: Results, beside: Beside) -> Section:
    """All that was recorded along the sequence; what was not in a line each, with the option."""
    profiles, blocks, missing = dict[str, Profile](), list[Block](), dict[str, list[str]]()
    for name, title, function in PROFILES:
        try:
            profiles[name] = profile = function(results, bins=BINS)
        except NotRecordedError as error:
            missing.setdefault(error.option, []).append(title)
            continue
        table = profile.table()
        csv = beside.table(name, table.columns, table.rows)
        blocks.append(beside.picture(name, title, shown(profile), files=[csv]))
    blocks = [*_by_head(profiles, beside), *blocks]
    try:
        blocks.extend(_top_keys(analysis.top_keys(results), beside))
    except NotRecordedError as error:
        missing.setdefault(error.option, []).append("Top keys of chosen rows")
    for option, titles in missing.items():
        names = listed([titles[0], *(title[0].lower() + title[1:] for title in titles[1:])])
        blocks.append(Missing(f"{names}: not recorded. Record with", option))
    return Section(KEY, "Along the sequence", blocks)


_COLUMNS = {
    "entropy": ("entropy, nats", ratio),
    "distance": ("distance, positions", decimal),
    "sinks": ("on the first keys", percent),
}


def _by_head(profiles: dict[str, Profile], beside: Beside) -> Iterator[Block]:
    """The mean over all rows, a line per head."""
    columns = {name: column for name, column in _COLUMNS.items() if name in profiles}
    if not columns:
        return
    heads = next(iter(profiles.values())).heads
    means = np.array([profiles[name].overall for name in columns])
    csv = beside.table("heads", ("head", *columns), ((head, *means[:, n].tolist()) for n, head in enumerate(heads)))
    if len(heads) > 1:
        yield Text(_extremes(profiles, heads), "finding")
    rows = [
        (head, *(text(float(means[m, n])) for m, (_, text) in enumerate(columns.values())))
        for n, head in enumerate(heads[:HEADS_SHOWN])
    ]
    left = f"{len(heads) - HEADS_SHOWN:,} more heads are in the file:" if len(heads) > HEADS_SHOWN else ""
    names = ("head", *(_name(profiles[name], column) for name, (column, _) in columns.items()))
    yield Table("heads", "Means over all rows, by head", names, rows, range(1, len(names)), [csv], left)


def _name(profile: Profile, column: str) -> str:
    return column if profile.keys is None else f"on the first {profile.keys:,} keys"


def _extremes(profiles: dict[str, Profile], heads: tuple[str, ...]) -> str:
    """The most and the least spread head, the nearest and the farthest, in sentences."""
    said = []
    if "entropy" in profiles:
        low, high = _ends(profiles["entropy"])
        said.append(
            f"The most focused head is {heads[low]} ({ratio(profiles['entropy'].overall[low])} nats), the most "
            f"spread one {heads[high]} ({ratio(profiles['entropy'].overall[high])} nats)."
        )
    if "distance" in profiles:
        low, high = _ends(profiles["distance"])
        said.append(
            f"The nearest looks back {decimal(profiles['distance'].overall[low])} positions on average ({heads[low]}), "
            f"the farthest {decimal(profiles['distance'].overall[high])} ({heads[high]})."
        )
    return " ".join(said)


def _ends(profile: Profile) -> tuple[int, int]:
    known = np.nan_to_num(profile.overall, nan=float(np.nanmean(profile.overall)) if profile.rows.any() else 0.0)
    return int(known.argmin()), int(known.argmax())


def _top_keys(found: TopKeys, beside: Beside) -> Iterator[Block]:
    """Chosen rows and their top keys."""
    table = found.table()
    csv = beside.table("top-keys", table.columns, table.rows)
    yield beside.picture("top-keys", f"Top keys of chosen rows, {found.heads[0]}", found, files=[csv], slab=0)
    lines = []
    for n, row in enumerate(found.rows[:ROWS_SHOWN].tolist()):
        keys, weights = found.keys[0, n, :KEYS_SHOWN].tolist(), found.weights[0, n, :KEYS_SHOWN].tolist()
        cells = [f"{key:,} ({percent(weight)})" for key, weight in zip(keys, weights, strict=True) if key >= 0]
        lines.append((f"{row:,}", ", ".join(cells) or ("meets NaN" if np.isnan(weights).any() else "sees no key")))
    left = f"All {len(found.rows):,} rows and {len(found.heads):,} heads are in the file:"
    columns = ("row", "keys by weight")
    count = found.keys.shape[2]
    which = "top keys" if count <= KEYS_SHOWN else f"the first {KEYS_SHOWN} of {count:,} top keys"
    yield Table("top-keys", f"{found.heads[0]}: {which}, with their weights", columns, lines, (0,), [csv], left)
