"""What a run says about itself: plain data, written by storage/provenance.py and read back into the same classes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import ShapeError
from ringmpi.storage.attempts import Attempts
from ringmpi.storage.computed_by import ComputedBy
from ringmpi.storage.layout import BACKWARD_TIMELINE, TIMELINE, dataset_layout
from ringmpi.storage.map_layout import MAP_TIMELINE


@dataclass(frozen=True)
class PlacementAccount:
    """What a ring follows from, and what it costs by that.

    Attributes
    ----------
    source : str
        In words.
    cost, launch_cost, lower_bound : dict
        "congestion", "dilation" and "hops" (topology/cost.py) of this ring, of the order of the launcher, and what no
        ring can do without.
    proved_optimal : bool
        Whether no ring is better.
    unplaced : tuple of str
        Hosts that the source does not know; they are left out of the costs.
    """

    source: str
    cost: dict[str, float]
    launch_cost: dict[str, float]
    lower_bound: dict[str, float]
    proved_optimal: bool
    unplaced: tuple[str, ...]

    @property
    def words(self) -> str:
        """The source, the costs, and whether there is a better ring."""
        launch, here, least = (
            f"{cost['congestion']:.3g}, {cost['dilation']}, {cost['hops']}"
            for cost in (self.launch_cost, self.cost, self.lower_bound)
        )
        better = "no ring is better" if self.proved_optimal else f"the least possible {least}"
        unplaced = (
            f"; {len(self.unplaced):,} {'host is' if len(self.unplaced) == 1 else 'hosts are'} not in it"
            if self.unplaced
            else ""
        )
        return f"by {self.source}: congestion, dilation, hops {here} (launch order {launch}), {better}{unplaced}"


@dataclass(frozen=True)
class Provenance:
    """Where an output comes from.

    Attributes
    ----------
    versions : dict
        Name of a program or library -> version.
    hosts : tuple of str [ranks]
        By ring position.
    ring_order : tuple of int [ranks]
        Launch rank at each ring position.
    configuration : str
        The resolved configuration, TOML.
    command_line : str
    started, finished : str
        ISO 8601 with zone.
    input_identity : dict
        What `Inputs.identity` returned, and the checksums of the arrays of the input as they were read.
    """

    versions: dict[str, str]
    hosts: tuple[str, ...]
    ring_order: tuple[int, ...]
    configuration: str
    command_line: str
    started: str
    finished: str
    input_identity: dict[str, str | int]


@dataclass(frozen=True, eq=False)
class PassTimeline:
    """What every rank did in every ring step of one pass, rows by ring position.

    Attributes
    ----------
    attend_seconds, flight_seconds, wait_seconds : float64 [ranks, steps], seconds
    bytes_sent, bytes_received : int64 [ranks, steps], bytes
    pairs_attended : int64 [ranks, steps]
        (query, key) pairs that the kernels counted, over batch and query heads.
    """

    attend_seconds: NDArray[np.float64]
    flight_seconds: NDArray[np.float64]
    wait_seconds: NDArray[np.float64]
    bytes_sent: NDArray[np.int64]
    bytes_received: NDArray[np.int64]
    pairs_attended: NDArray[np.int64]

    def overlap(self, steps: int | slice = slice(None)) -> float | None:
        """Of the seconds while messages were under way, the part in which ranks worked; None where none were.

        To wait for a late rank counts as not working: what one rank sees does not tell a slow link from a late sender.
        """
        return hidden_share(self.flight_seconds[:, steps], self.wait_seconds[:, steps])


def hidden_share(flight: NDArray[np.float64], wait: NDArray[np.float64]) -> float | None:
    """Of the seconds of flight together, the part without waiting; None where there are none."""
    under_way, exposed = float(flight.sum()), float(wait.sum())
    return max(1 - exposed / under_way, 0.0) if under_way else None


@dataclass(frozen=True, eq=False)
class Timeline(PassTimeline):
    """The forward pass, and what is of a rank as a whole.

    Attributes
    ----------
    peak_memory_bytes : int64 [ranks], bytes
    read_seconds, write_seconds : float64 [ranks], seconds
        Reading the shards of the inputs; writing the shard file, the merge not included.
    """

    peak_memory_bytes: NDArray[np.int64]
    read_seconds: NDArray[np.float64]
    write_seconds: NDArray[np.float64]


@dataclass(frozen=True)
class PairCounts:
    """Exactness as integers: pairs_attended must equal pairs_asked. Both are over batch and query heads.

    Attributes
    ----------
    pairs_asked : int
        Pairs of the mask x query_slabs.
    pairs_attended : int
        Pairs that the kernels counted, summed over ranks and ring steps.
    query_slabs : int
        batch x query heads.
    """

    pairs_asked: int
    pairs_attended: int
    query_slabs: int


@dataclass(frozen=True, eq=False)
class BackwardAccount:
    """What the backward pass says of itself.

    Attributes
    ----------
    timeline : PassTimeline
        One step more than that of the forward pass, in which gradients come home; where both sides travelled, the steps
        of one pass and then those of the other.
    pairs_asked, pairs_attended : int
        As in `PairCounts`: the pairs of the mask are met once more, or twice where both sides travelled.
    travel : str
        "keys" or "queries": what visited the other side; "both": one, then the other (schedule broadcast).
    """

    timeline: PassTimeline
    pairs_asked: int
    pairs_attended: int
    travel: str


@dataclass(frozen=True, eq=False)
class LateRecord:
    """What was recorded after the forward pass, with the final log_sum_exp; on one rank.

    Attributes
    ----------
    timeline : PassTimeline or None
        Of the map pass; None where there was none.
    pairs_asked, pairs_attended : int
        As in `PairCounts`: the pairs of the mask are met once more; 0 where there was no map pass.
    arrays : dict
        As they are to be stored, by name; empty in a record that was read back: `Results` gives them.
    block, key_length : int
        Positions of a block of the map, and keys of all blocks together; 0 where there is no map.
    """

    timeline: PassTimeline | None
    pairs_asked: int = 0
    pairs_attended: int = 0
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    block: int = 0
    key_length: int = 0


@dataclass(frozen=True, eq=False)
class Account:
    """All that a run hands to storage besides its arrays; ShapeError where its parts disagree on the ranks.

    backward : None where no gradients were asked for
    placement : None where the ring is that of the launcher, and nothing else was looked at
    attempts : None where no state was kept, so that one run has done all
    late : None where nothing was recorded after the forward pass
    first_keys : how many keys /record/sinks is about; None where rows are not recorded
    computed_by : None in outputs that were written before it was recorded
    """

    provenance: Provenance
    timeline: Timeline
    counts: PairCounts
    backward: BackwardAccount | None = None
    placement: PlacementAccount | None = None
    attempts: Attempts | None = None
    late: LateRecord | None = None
    first_keys: int | None = None
    computed_by: ComputedBy | None = None

    @property
    def earlier_pairs(self) -> tuple[int, int]:
        """Pairs, forward and backward, of the runs before the one that the timelines are of."""
        if self.attempts is None:
            return 0, 0
        return sum(self.attempts.pairs[:-1]), sum(self.attempts.pairs_backward[:-1])

    def __post_init__(self) -> None:
        """Check that every array has one row per rank."""
        ranks = len(self.provenance.hosts)
        if len(self.provenance.ring_order) != ranks:
            raise ShapeError(
                f"provenance has {ranks} hosts and a ring order of {len(self.provenance.ring_order)} ranks; "
                f"both need one entry for each ring position."
            )
        if self.computed_by is not None and (found := self.computed_by.ranks) != {ranks}:
            raise ShapeError(f"computed_by has {found} ranks; expected {ranks} for each of its entries.")
        _check_timeline(self.timeline, TIMELINE, ranks)
        if self.backward is not None:
            _check_timeline(self.backward.timeline, BACKWARD_TIMELINE, ranks)
        if self.late is not None and self.late.timeline is not None:
            _check_timeline(self.late.timeline, MAP_TIMELINE, ranks)


def _check_timeline(timeline: PassTimeline, group: str, ranks: int) -> None:
    """Refuse counters that have not one row per rank, and as many steps as the others."""
    steps = timeline.attend_seconds.shape[-1]
    for counter in fields(timeline):
        shape = getattr(timeline, counter.name).shape
        needed = (ranks, steps)[: len(dataset_layout(f"{group}/{counter.name}").axes)]
        if shape != needed:
            raise ShapeError(f"{group[1:]}.{counter.name} has shape {shape}; expected {needed} for {ranks} ranks.")
