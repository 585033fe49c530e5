"""What a run with a map pass says of it: /timeline_map, as /timeline of the forward pass."""

from __future__ import annotations

from ringmpi.storage.layout_entries import AttributeLayout, pass_timeline

MAP_TIMELINE = "/timeline_map"

MAP_TIMELINE_DATASETS = pass_timeline(MAP_TIMELINE, "map_steps", "queries and log_sum_exp")
MAP_TIMELINE_ATTRIBUTES = (
    AttributeLayout(MAP_TIMELINE, "pairs_asked", "int64", "pairs of the mask x query_slabs"),
    AttributeLayout(MAP_TIMELINE, "pairs_attended", "int64", "pairs that all kernels counted in the map pass"),
)
