"""The account of a run as groups, datasets and attributes (layout.py), and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from ringmpi.storage.account import (
    Account,
    BackwardAccount,
    PairCounts,
    PassTimeline,
    PlacementAccount,
    Provenance,
    Timeline,
)
from ringmpi.storage.attempts import read_attempts, write_attempts
from ringmpi.storage.computed_by import COMPUTED_BY, read_computed_by, write_computed_by
from ringmpi.storage.late_record import read_late_record, write_late_record
from ringmpi.storage.layout import (
    ATTEMPTS,
    BACKWARD_TIMELINE,
    PLACEMENT,
    PLACEMENT_DATASETS,
    PROVENANCE,
    TIMELINE,
    TRAVEL_ATTRIBUTE,
    UNPLACED,
    DatasetLayout,
    dataset_layout,
)
from ringmpi.storage.record_layout import KEYS_ATTRIBUTE, SINKS
from ringmpi.storage.table import write_table

_JSON_FIELDS = ("versions", "input_identity")
_RANK_FIELDS = ("hosts", "ring_order")
_COST_FIELDS = ("cost", "launch_cost", "lower_bound")


def write_account(file: Any, account: Account) -> None:
    """Write /provenance, /timeline and, where there is something to tell, what other passes and runs say."""
    group = file.create_group(PROVENANCE)
    write_table(group, _layouts(PROVENANCE, _RANK_FIELDS), account.provenance)
    for field in fields(account.provenance):
        if field.name not in _RANK_FIELDS:
            value = getattr(account.provenance, field.name)
            group.attrs[field.name] = json.dumps(value) if field.name in _JSON_FIELDS else _writable(value)
    _write_timeline(file.create_group(TIMELINE), account.timeline, asdict(account.counts))
    if (backward := account.backward) is not None:
        group = file.create_group(BACKWARD_TIMELINE)
        counts = {"pairs_asked": backward.pairs_asked, "pairs_attended": backward.pairs_attended}
        _write_timeline(group, backward.timeline, counts)
        group.attrs[TRAVEL_ATTRIBUTE] = backward.travel
    if account.placement is not None:
        _write_placement(file.create_group(PLACEMENT), account.placement)
    if account.attempts is not None:
        write_attempts(file, account.attempts)
    if account.computed_by is not None:
        write_computed_by(file, account.computed_by)
    if account.late is not None:
        write_late_record(file, account.late)
    if account.first_keys is not None:
        file[SINKS].attrs[KEYS_ATTRIBUTE] = np.int64(account.first_keys)


def _write_placement(group: Any, placement: PlacementAccount) -> None:
    group.attrs["source"] = _writable(placement.source)
    for name in _COST_FIELDS:
        group.attrs[name] = json.dumps(getattr(placement, name))
    group.attrs["proved_optimal"] = np.int64(placement.proved_optimal)
    write_table(group, PLACEMENT_DATASETS, placement)


def _write_timeline(group: Any, timeline: PassTimeline, counts: dict[str, int]) -> None:
    write_table(group, _layouts(group.name, [field.name for field in fields(timeline)]), timeline)
    for name, count in counts.items():
        group.attrs[name] = np.int64(count)


def _layouts(group: str, names: Iterable[str]) -> Iterator[DatasetLayout]:
    return (dataset_layout(f"{group}/{name}") for name in names)


def _writable(text: str) -> str:
    """`text` without what UTF-8 cannot hold: a command line may have bytes of another encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def read_account(file: Any) -> Account:
    """Read what `write_account` wrote."""
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
    backward = _read_backward(file[BACKWARD_TIMELINE]) if BACKWARD_TIMELINE in file else None
    placement = _read_placement(file[PLACEMENT]) if PLACEMENT in file else None
    attempts = read_attempts(file[ATTEMPTS]) if ATTEMPTS in file else None
    provenance = Provenance(hosts=hosts, ring_order=ring_order, **texts)
    first_keys = int(file[SINKS].attrs[KEYS_ATTRIBUTE]) if SINKS in file else None
    late = read_late_record(file)
    account = Account(provenance, timeline, counts, backward, placement, attempts, late, first_keys)
    return replace(account, computed_by=read_computed_by(file[COMPUTED_BY])) if COMPUTED_BY in file else account


def _read_placement(group: Any) -> PlacementAccount:
    costs = {name: json.loads(group.attrs[name]) for name in _COST_FIELDS}
    proved, unplaced = bool(group.attrs["proved_optimal"]), tuple(group.file[UNPLACED].asstr()[...].tolist())
    return PlacementAccount(str(group.attrs["source"]), **costs, proved_optimal=proved, unplaced=unplaced)


def _read_backward(group: Any) -> BackwardAccount:
    timeline = PassTimeline(**{f.name: group[f.name][...] for f in fields(PassTimeline)})
    asked, attended = (int(group.attrs[name]) for name in ("pairs_asked", "pairs_attended"))
    return BackwardAccount(timeline, asked, attended, str(group.attrs[TRAVEL_ATTRIBUTE]))


def write_shards(file: Any, table: str, shards: Sequence[Sequence[range]]) -> None:
    """Write /shards or /key_shards: the positions of each ring position."""
    rows = [(rank, r.start, r.stop, r.step) for rank, ranges in enumerate(shards) for r in ranges]
    dataset_layout(table).describe(file.create_dataset(table, data=np.array(rows, "<i8").reshape(-1, 4)))


def read_shards(file: Any, table: str, ranks: int) -> tuple[tuple[range, ...], ...]:
    """Read what `write_shards` wrote, for `ranks` ring positions."""
    rows = file[table][...].tolist()
    return tuple(tuple(range(*bounds) for at, *bounds in rows if at == rank) for rank in range(ranks))
