"""What a run with a map pass says of it: /timeline_map, as /timeline of the forward pass."""

from __future__ import annotations

from ringmpi.storage.layout_entries import AttributeLayout, DatasetLayout

MAP_TIMELINE = "/timeline_map"

_PER_STEP = ("ranks", "map_steps")
_QUERIES = "queries and log_sum_exp"

MAP_TIMELINE_DATASETS = (
    DatasetLayout(f"{MAP_TIMELINE}/attend_seconds", _PER_STEP, "float64", "s", "time in the kernel"),
    DatasetLayout(
        f"{MAP_TIMELINE}/flight_seconds",
        _PER_STEP,
        "float64",
        "s",
        "time while messages were under way, as far as the rank could see",
    ),
    DatasetLayout(
        f"{MAP_TIMELINE}/wait_seconds",
        _PER_STEP,
        "float64",
        "s",
        "of flight_seconds, those without work: a hop that was due had not landed",
    ),
    DatasetLayout(f"{MAP_TIMELINE}/bytes_sent", _PER_STEP, "int64", "bytes", f"{_QUERIES} sent in this ring step"),
    DatasetLayout(
        f"{MAP_TIMELINE}/bytes_received", _PER_STEP, "int64", "bytes", f"{_QUERIES} received in this ring step"
    ),
    DatasetLayout(
        f"{MAP_TIMELINE}/pairs_attended",
        _PER_STEP,
        "int64",
        "(query, key) pairs",
        "pairs that the kernel counted, over batch and query heads",
    ),
)
MAP_TIMELINE_ATTRIBUTES = (
    AttributeLayout(MAP_TIMELINE, "pairs_asked", "int64", "pairs of the mask x query_slabs"),
    AttributeLayout(MAP_TIMELINE, "pairs_attended", "int64", "pairs that all kernels counted in the map pass"),
)
