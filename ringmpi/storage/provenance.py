"""The records of a run as groups, datasets and attributes (layout.py), and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import h5py
import numpy as np

from ringmpi.storage.layout import PROVENANCE, SHARDS, TIMELINE, dataset_layout
from ringmpi.storage.records import PairCounts, Provenance, RunRecord, Timeline

_JSON_FIELDS = ("versions", "input_identity")
_RANK_FIELDS = ("hosts", "ring_order")


def describe(dataset: Any) -> None:
    """Attach axes, unit and meaning to a dataset, as texts that any tool shows."""
    layout = dataset_layout(dataset.name)
    dataset.attrs.update({"axes": ", ".join(layout.axes), "unit": layout.unit, "meaning": layout.meaning})


def write_record(file: Any, record: RunRecord) -> None:
    """Write the groups /provenance and /timeline."""
    group = file.create_group(PROVENANCE)
    for field in fields(record.provenance):
        value = getattr(record.provenance, field.name)
        if field.name in _RANK_FIELDS:
            _write_dataset(group, field.name, value)
        else:
            group.attrs[field.name] = json.dumps(value) if field.name in _JSON_FIELDS else _writable(value)
    group = file.create_group(TIMELINE)
    for field in fields(record.timeline):
        _write_dataset(group, field.name, getattr(record.timeline, field.name))
    for field in fields(record.counts):
        group.attrs[field.name] = np.int64(getattr(record.counts, field.name))


def _writable(text: str) -> str:
    """`text` without what UTF-8 cannot hold: a command line may have bytes of another encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def _write_dataset(group: Any, name: str, value: Any) -> None:
    dtype = dataset_layout(f"{group.name}/{name}").dtype
    dataset = group.create_dataset(
        name, data=value, dtype=h5py.string_dtype() if dtype == "string" else f"<{dtype[0]}8"
    )
    describe(dataset)


def read_record(file: Any) -> RunRecord:
    """Read what `write_record` wrote."""
    group = file[PROVENANCE]
    texts = {f.name: group.attrs[f.name] for f in fields(Provenance) if f.name not in _RANK_FIELDS}
    texts |= {name: json.loads(texts[name]) for name in _JSON_FIELDS}
    if not isinstance(texts["configuration"], str) or not {"path", "size_bytes", "mtime_ns"} <= set(
        texts["input_identity"]
    ):
        raise ValueError("the configuration or the identity of the input is not what a run writes")
    hosts = tuple(group["hosts"].asstr()[...].tolist())
    ring_order = tuple(group["ring_order"][...].tolist())
    timeline = Timeline(**{f.name: file[TIMELINE][f.name][...] for f in fields(Timeline)})
    counts = PairCounts(**{f.name: int(file[TIMELINE].attrs[f.name]) for f in fields(PairCounts)})
    return RunRecord(Provenance(hosts=hosts, ring_order=ring_order, **texts), timeline, counts)


def write_shards(file: Any, shards: Sequence[Sequence[range]]) -> None:
    """Write /shards: the query positions of each ring position."""
    rows = [(rank, r.start, r.stop, r.step) for rank, ranges in enumerate(shards) for r in ranges]
    describe(file.create_dataset(SHARDS, data=np.array(rows, "<i8").reshape(-1, 4)))


def read_shards(file: Any, ranks: int) -> tuple[tuple[range, ...], ...]:
    """Read what `write_shards` wrote, for `ranks` ring positions."""
    rows = file[SHARDS][...].tolist()
    return tuple(tuple(range(*bounds) for at, *bounds in rows if at == rank) for rank in range(ranks))
