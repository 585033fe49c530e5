"""What a run says about itself: plain records, written by storage/provenance.py and read back into the same classes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import ShapeError
from ringmpi.storage.layout import TIMELINE, dataset_layout


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
        What `Inputs.identity` returned, and the checksums of query, key and value as they were read.
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
class Timeline:
    """What every rank did in every ring step, rows by ring position.

    Attributes
    ----------
    attend_seconds, wait_seconds : float64 [ranks, steps], seconds
    bytes_sent, bytes_received : int64 [ranks, steps], bytes
    pairs_attended : int64 [ranks, steps]
        (query, key) pairs that the kernels counted, over batch and query heads.
    peak_memory_bytes : int64 [ranks], bytes
    read_seconds, write_seconds : float64 [ranks], seconds
        Reading the shards of the inputs; writing the shard file, the merge not included.
    """

    attend_seconds: NDArray[np.float64]
    wait_seconds: NDArray[np.float64]
    bytes_sent: NDArray[np.int64]
    bytes_received: NDArray[np.int64]
    pairs_attended: NDArray[np.int64]
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
class RunRecord:
    """All that a run hands to storage besides its arrays; ShapeError where its parts disagree on the ranks."""

    provenance: Provenance
    timeline: Timeline
    counts: PairCounts

    def __post_init__(self) -> None:
        """Check that every array has one row a rank."""
        ranks = len(self.provenance.hosts)
        if len(self.provenance.ring_order) != ranks:
            raise ShapeError(
                f"provenance has {ranks} hosts and a ring order of {len(self.provenance.ring_order)} ranks; "
                f"both need one entry for each ring position."
            )
        lengths = {"ranks": ranks, "steps": self.timeline.attend_seconds.shape[-1]}
        for field in fields(self.timeline):
            shape = getattr(self.timeline, field.name).shape
            needed = tuple(lengths[axis] for axis in dataset_layout(f"{TIMELINE}/{field.name}").axes)
            if shape != needed:
                raise ShapeError(f"timeline.{field.name} has shape {shape}; needed is {needed} for {ranks} ranks.")
