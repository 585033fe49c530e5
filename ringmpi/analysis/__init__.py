"""What a run has done and found, from its output file: arrays in frozen objects, tables and pictures.

Each function takes the path of an output (or an open `Results`) and reads no more of it than it must, in pieces: a
laptop without MPI is enough, also for outputs larger than its memory. What it gives has arrays with units, `table()`
for a CSV file and `plot()` for a picture (matplotlib: extra "analyze"). What a run was not asked to record is refused
with the option that records it.

    from ringmpi import analysis

    print(analysis.slow_rank("out.h5").words)
    analysis.entropy("out.h5").plot().figure.savefig("entropy.png")

The names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringmpi.analysis.block_maps import RecordedMap, recorded_map
    from ringmpi.analysis.opened import NotRecordedError
    from ringmpi.analysis.profiles import Profile, distance, entropy, received, sinks
    from ringmpi.analysis.run_summary import Summary, summary
    from ringmpi.analysis.scaling_study import Scaling, scaling
    from ringmpi.analysis.shares import Balance, Memory, balance, memory
    from ringmpi.analysis.slowness import SlowLink, SlowRank, slow_rank
    from ringmpi.analysis.tables import Table
    from ringmpi.analysis.timelines import Overlap, RunTimeline, overlap, timeline
    from ringmpi.analysis.top_keys_of_rows import TopKeys, top_keys

_NAMES = {
    "block_maps": ("RecordedMap", "recorded_map"),
    "opened": ("NotRecordedError",),
    "profiles": ("Profile", "distance", "entropy", "received", "sinks"),
    "run_summary": ("Summary", "summary"),
    "scaling_study": ("Scaling", "scaling"),
    "shares": ("Balance", "Memory", "balance", "memory"),
    "slowness": ("SlowLink", "SlowRank", "slow_rank"),
    "tables": ("Table",),
    "timelines": ("Overlap", "RunTimeline", "overlap", "timeline"),
    "top_keys_of_rows": ("TopKeys", "top_keys"),
}
_HOMES = {name: f"ringmpi.analysis.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "RecordedMap",
    "Balance",
    "Memory",
    "NotRecordedError",
    "Overlap",
    "Profile",
    "RunTimeline",
    "Scaling",
    "SlowLink",
    "SlowRank",
    "Summary",
    "Table",
    "TopKeys",
    "recorded_map",
    "balance",
    "distance",
    "entropy",
    "memory",
    "overlap",
    "received",
    "scaling",
    "sinks",
    "slow_rank",
    "summary",
    "timeline",
    "top_keys",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ringmpi.analysis' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
