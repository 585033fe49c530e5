"""The state of a pass as arrays whose rows have positions, and back: on the same ranks, or on any others.

    forward     row_max, row_sum, weighted_sum, record/SUM      of the rank's queries
    map         output, log_sum_exp, record/QUANTITY            of the rank's queries
    backward    output, log_sum_exp, record/QUANTITY            of the rank's queries
                staying/GRADIENT                                the sums of what stays
                load-N/GRADIENT                                 sums on their way, that lie on this rank alone
                earlier/GRADIENT                                of what travels: sums of runs of other layouts
                given/GRADIENT                                  what a backward pass before this one has given

A gradient is the sum of all that is saved of it, at each position; where the layout is the same, each sum goes back to
its place, and no bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.itinerary import AT_HOME
from ringmpi.core.partial import Array, Partial
from ringmpi.core.problem import Problem
from ringmpi.core.record import QUANTITIES
from ringmpi.core.stages import FORWARD, MAP
from ringmpi.errors import StorageError
from ringmpi.passes.backward_pass import BackwardPass
from ringmpi.passes.forward_pass import ForwardPass, ForwardResult, empty_result
from ringmpi.passes.map_pass import MapPass
from ringmpi.passes.visits import VisitLog
from ringmpi.storage.manifest import RankFile
from ringmpi.storage.rank_state import RankState, StateArray
from ringmpi.storage.slabs import shared_rows

PARTIAL = ("row_max", "row_sum", "weighted_sum")
RESULT = ("output", "log_sum_exp")
RECORD = "record"
CURSOR, STEP = "cursor", "step"


@dataclass(frozen=True)
class PassState:
    """What one rank has to save of a pass.

    Attributes
    ----------
    stage : str
    visits : VisitLog
    resident : sequence of range
        Positions of the side that stays.
    arrays : mapping
    step : int
        The last ring step that all ranks have done, where gradients travel.
    """

    stage: str
    visits: VisitLog
    resident: Sequence[range]
    arrays: Mapping[str, StateArray]
    step: int = AT_HOME


def forward_state(forward: ForwardPass) -> PassState:
    """Of a forward pass, between any two kernel calls."""
    ranges = forward.problem.queries.shards[forward.rank]
    arrays = {name: StateArray(ranges, array) for name, array in _sums_of(forward.host_partial()).items()}
    return PassState(FORWARD, forward.visits, ranges, arrays)


def restore_forward(forward: ForwardPass, saved: SavedState) -> None:
    """Fill the sums of a forward pass."""
    partial = forward.host_partial()
    saved.read(forward.problem.queries.shards[forward.rank], _sums_of(partial))
    forward.go_on_from(partial)


def _sums_of(partial: Partial) -> dict[str, NDArray[Any]]:
    """All arrays of a Partial, by the names that they have in a file."""
    record = {} if partial.record is None else partial.record.arrays
    return {name: getattr(partial, name) for name in PARTIAL} | {f"{RECORD}/{name}": record[name] for name in record}


def result_arrays(rows: ForwardResult) -> dict[str, NDArray[Any]]:
    """All that a forward pass that is over has given, by the names that it has in a file."""
    names = (*RESULT, *(f"{RECORD}/{name}" for name in QUANTITIES if rows.record))
    return dict(zip(names, rows.arrays, strict=True))


def restore_rows(problem: Problem, rank: int, saved: SavedState) -> ForwardResult:
    """The result of a forward pass that is over."""
    result = empty_result(problem, problem.queries.shard_length(rank))
    saved.read(problem.queries.shards[rank], result_arrays(result))
    return result


def restore_given(problem: Problem, rank: int, saved: SavedState) -> Array:
    """The gradient of queries, which the first of two backward passes has given."""
    heads, ranges = problem.heads, problem.queries.shards[rank]
    grad_query = np.empty((heads.batch, heads.query_heads, sum(map(len, ranges)), heads.head_dim), problem.dtype)
    saved.read(ranges, {"given/grad_query": grad_query})
    return grad_query


def backward_state(backward: BackwardPass, rows: ForwardResult, grad_query: Array | None) -> PassState:
    """Of a backward pass: between any two kernel calls, or where gradients travel at the end of a ring step.

    Parameters
    ----------
    rows : what the forward pass has given of the rank's queries
    grad_query : what the first of two passes has given, in the second one
    """
    travel, step = backward.travel, backward.timeline.step
    queries = backward.problem.queries.shards[backward.rank]
    resident, visiting = (side.shards[backward.rank] for side in (travel.resident, travel.visiting))
    groups = [("staying", resident, travel.staying_names, backward.staying)]
    if backward.earlier is not None:
        groups.append(("earlier", visiting, travel.travelling_names, backward.earlier))
    groups += [
        (f"load-{load}", travel.pieces[load // 2].ranges, travel.travelling_names, sums)
        for load, sums in backward.kept(step).items()
    ]
    arrays = {name: StateArray(queries, array) for name, array in result_arrays(rows).items()}
    if grad_query is not None:
        arrays["given/grad_query"] = StateArray(queries, grad_query)
    for group, ranges, names, sums in groups:
        host = map(backward.memory.get, sums)
        arrays |= {f"{group}/{name}": StateArray(ranges, array) for name, array in zip(names, host, strict=True)}
    return PassState(backward.stage, backward.visits, resident, arrays, step)


def map_state(one: MapPass, rows: ForwardResult) -> PassState:
    """Of a map pass: what it has found is not kept, and is found again; `rows`: what the forward pass has given."""
    problem, rank = one.problem, one.rank
    queries, keys = problem.queries.shards[rank], problem.keys.shards[rank]
    arrays = {name: StateArray(queries, array) for name, array in result_arrays(rows).items()}
    return PassState(MAP, one.new_visits(), keys, arrays)


def restore_backward(backward: BackwardPass, saved: SavedState, *, same: bool) -> None:
    """Fill the sums of a backward pass: from the file of its rank where the layout is the same, else from all."""
    travel = backward.travel
    if same:
        with saved.own(backward.rank) as own:
            _put_back(backward, own)
        return
    staying = tuple(map(backward.memory.get, backward.staying))
    saved.add_up(travel.resident.shards[backward.rank], dict(zip(travel.staying_names, staying, strict=True)))
    for there, sums in zip(backward.staying, staying, strict=True):
        backward.memory.write(there, sums)
    if backward.problem.schedule.gradients_travel:
        backward.earlier = backward.travelling_zeros()
        saved.add_up(
            travel.visiting.shards[backward.rank], dict(zip(travel.travelling_names, backward.earlier, strict=True))
        )


def _put_back(backward: BackwardPass, own: RankState) -> None:
    """Every sum to its place."""
    travel = backward.travel
    if f"earlier/{travel.travelling_names[0]}" in own.arrays:
        backward.earlier = backward.travelling_zeros()
    groups = {"staying": (travel.staying_names, backward.staying)}
    if backward.earlier is not None:
        groups["earlier"] = travel.travelling_names, backward.earlier
    for load, sums in backward.kept(int(own.tables[STEP])).items():
        groups[f"load-{load}"] = travel.travelling_names, sums
    for group, (names, sums) in groups.items():
        for name, array in zip(names, sums, strict=True):
            host = backward.memory.get(array)
            own.read(f"{group}/{name}", host)
            backward.memory.write(array, host)


class SavedState:
    """What all ranks of a run have saved together: rows are found by their positions, in whoever's file they are.

    Parameters
    ----------
    folder : Path
    files : sequence of RankFile
        Of a valid generation, by ring position.
    """

    def __init__(self, folder: Path, files: Sequence[RankFile]) -> None:
        self._folder, self._files = folder, files

    def own(self, rank: int) -> RankState:
        """The file of a rank, to be opened."""
        return RankState(self._folder / self._files[rank].name)

    def read(self, ranges: Sequence[range], out: Mapping[str, NDArray[Any]]) -> None:
        """Fill arrays [batch, heads, n(, dim)], by name, with their rows at n positions.

        Raises
        ------
        StorageError
            If not every row is found once.
        """
        found = dict.fromkeys(out, 0)
        for state, names in self._with(out.__contains__, ranges):
            for name in names:
                found[name] += state.read_rows(name, ranges, out[name])
        for name, array in out.items():
            if found[name] != array.shape[2]:
                raise StorageError(
                    f"the checkpoint {self._folder} holds {found[name]:,} of {array.shape[2]:,} rows of {name} that "
                    f"this rank needs: it was changed. Start over with --force."
                )

    def add_up(self, ranges: Sequence[range], out: Mapping[str, NDArray[Any]]) -> None:
        """Fill gradients, by name, zeros, with all sums of them that have been saved, each at its positions."""

        def wanted(name: str) -> bool:
            group, _, gradient = name.rpartition("/")
            return gradient in out and group != "given"

        for state, names in self._with(wanted, ranges):
            for name in names:
                state.read_rows(name, ranges, out[name.rpartition("/")[2]], add=True)

    def _with(self, wanted: Callable[[str], bool], ranges: Sequence[range]) -> Iterator[tuple[RankState, list[str]]]:
        """The files, open one after the other, with the wanted arrays in each that have rows at some positions."""
        for file in self._files:
            tables = {name: [range(*bounds) for bounds in table] for name, table in file.ranges.items() if wanted(name)}
            if names := [name for name, table in tables.items() if any(shared_rows(table, ranges))]:
                with RankState(self._folder / file.name) as state:
                    yield state, names


def tables_of(state: PassState) -> dict[str, NDArray[np.int64]]:
    """The small tables that go with the arrays."""
    return {CURSOR: state.visits.cursor, STEP: np.array(state.step, np.int64)}
