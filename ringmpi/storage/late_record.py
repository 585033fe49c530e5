"""The late record in the output: arrays of /record that one rank holds, and /timeline_map."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from ringmpi.storage.account import LateRecord, PassTimeline
from ringmpi.storage.digest import new_digest
from ringmpi.storage.layout import dataset_layout
from ringmpi.storage.layout_entries import DIGEST_ATTRIBUTE
from ringmpi.storage.map_layout import MAP_TIMELINE, MAP_TIMELINE_DATASETS
from ringmpi.storage.record_layout import BLOCK_ATTRIBUTE, KEY_LENGTH_ATTRIBUTE, RECORDED_MAP
from ringmpi.storage.table import write_table

_COUNTS = ("pairs_asked", "pairs_attended")


def write_late_record(file: Any, late: LateRecord) -> None:
    """Write the arrays of `late`, with their digests, and what the map pass says of itself."""
    for name, array in late.arrays.items():
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest = new_digest()
        digest.update(stored.data)
        dataset = file.create_dataset(name, data=stored)
        dataset.attrs[DIGEST_ATTRIBUTE] = digest.hexdigest()
        dataset_layout(name).describe(dataset)
    if RECORDED_MAP in late.arrays:
        file[RECORDED_MAP].attrs[BLOCK_ATTRIBUTE] = np.int64(late.block)
        file[RECORDED_MAP].attrs[KEY_LENGTH_ATTRIBUTE] = np.int64(late.key_length)
    if late.timeline is not None:
        group = file.create_group(MAP_TIMELINE)
        write_table(group, MAP_TIMELINE_DATASETS, late.timeline)
        for name in _COUNTS:
            group.attrs[name] = np.int64(getattr(late, name))


def read_late_record(file: Any) -> LateRecord | None:
    """What the map pass of an output says of itself; None where there was none."""
    if MAP_TIMELINE not in file:
        return None
    group = file[MAP_TIMELINE]
    timeline = PassTimeline(**{counter.name: group[counter.name][...] for counter in fields(PassTimeline)})
    asked, attended = (int(group.attrs[name]) for name in _COUNTS)
    return LateRecord(timeline, asked, attended)
