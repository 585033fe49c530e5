"""What a run finds in its directory of checkpoints: where to go on, or why not.

On the same layout (ranks, shardings, schedule, travel, kernels, version) a rank goes on where it was, call by call, and
the result has the bits of a run that was never stopped. On any other layout what is left of the mask is computed
(core/absorbed.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringmpi import __version__
from ringmpi.asking.question import Question
from ringmpi.backends.base import Backend
from ringmpi.checkpoint.saved_state import CURSOR, STEP, SavedState
from ringmpi.comm.agreement import LONG_WORK, AgreeingRing, together
from ringmpi.config import RunConfig
from ringmpi.core.absorbed import pairs_within
from ringmpi.core.problem import Problem
from ringmpi.core.slices import COLUMNS, Slices
from ringmpi.core.stages import FORWARD, MAP
from ringmpi.errors import StorageError
from ringmpi.passes.backward_pass import stage_name
from ringmpi.passes.travel import ways_by_name
from ringmpi.passes.visits import BEGINNING, Start
from ringmpi.storage.generations import Generation
from ringmpi.storage.manifest import Manifest, RankFile, differences
from ringmpi.storage.validity import newest_valid, problems

CHECKING = "checking the checkpoint"


def kernels_of(backend: Backend, problem: Problem) -> list[Any]:
    """What decides which bits the kernels of a rank give, and which work is one call: ranks may differ in it."""
    return [backend.name, backend.arithmetic, backend.call_budget(problem.heads, problem.dtype)]


def layout_of(problem: Problem, kernels: Sequence[list[Any]], travel: str | None) -> dict[str, Any]:
    """How the work is spread, and by what: where it is equal, a rank can go on call by call.

    Parameters
    ----------
    kernels : sequence of list
        `kernels_of` all ranks, by ring position.
    """
    return {
        "ringmpi": __version__,
        "ranks": problem.size,
        "queries": [problem.queries.name, problem.queries.fingerprint()],
        "keys": [problem.keys.name, problem.keys.fingerprint()],
        "schedule": problem.schedule.name,
        "travel": [way.name for way in ways_by_name(travel, problem, 0)] if travel else None,
        "kernels": kernels[:1] if all(rank == kernels[0] for rank in kernels) else list(kernels),
    }


def stages_of(problem: Problem, travel: str | None, *, has_map: bool = False) -> list[str]:
    """The passes of a run, in order."""
    return [
        FORWARD,
        *([MAP] if has_map else []),
        *(stage_name(way, problem) for way in (ways_by_name(travel, problem, 0) if travel else ())),
    ]


def newest_together(transport: AgreeingRing, found: Sequence[Generation]) -> tuple[Generation | None, list[str]]:
    """The newest valid one of generations, and why newer ones are not; every rank checks some of the files. Collective.

    Raises
    ------
    StorageError
        On all ranks, if one cannot look.
    """
    share = slice(transport.rank, None, transport.size)

    def check(generation: Generation) -> list[str]:
        if generation.manifest is None:  # all ranks know it
            return [generation.problem]
        mine = together(transport, CHECKING, lambda: problems(generation, share), patience=LONG_WORK)
        return [problem for theirs in transport.exchange(mine, CHECKING) for problem in theirs]

    return newest_valid(found, check)


@dataclass(frozen=True, eq=False)
class Past:
    """A valid generation, and what it means for this run.

    Attributes
    ----------
    same_layout : bool
    stages : sequence of str
        Of this run.
    """

    generation: Generation
    manifest: Manifest
    problem: Problem
    rank: int
    same_layout: bool
    stages: Sequence[str]

    @property
    def stage(self) -> str:
        """The pass in which the run was."""
        return str(self.manifest.progress["stage"])

    @property
    def saved(self) -> SavedState:
        """The files of all ranks."""
        return SavedState(self.generation.folder, self.manifest.files)

    def start(self, stage: str) -> Start | None:
        """Where a pass begins; None where it is over and nothing of it is needed. A map pass begins again."""
        if stage == MAP:
            return BEGINNING
        if stage == self.stage:
            return self._same() if self.same_layout else Start(absorbed=self.absorbed)
        if stage == FORWARD:
            return Start(absorbed=self.problem.whole_mask)
        return None if self.stages.index(stage) < self.stages.index(self.stage) else BEGINNING

    def _same(self) -> Start:
        with self.saved.own(self.rank) as own:
            cursor, step = own.tables[CURSOR], int(own.tables[STEP])
        return Start(self._before, cursor, self.manifest.files[self.rank].pairs, step)

    @property
    def _before(self) -> Slices | None:
        """What had been absorbed before the runs of this layout."""
        return _slices(self.manifest.absorbed) if self.manifest.absorbed else None

    @property
    def absorbed(self) -> Slices:
        """Everything that has been."""
        rows = [row for file in self.manifest.files for row in file.absorbed or ()]
        return _slices([*self.manifest.absorbed, *rows])

    def check(self, share: slice) -> None:
        """StorageError where the files, some of them looked at here, do not say of themselves what can be."""
        rest = self.problem.without(self._before).slices
        for file in self.manifest.files[share]:
            self._check_pairs(file, rest)

    def _check_pairs(self, file: RankFile, rest: Slices) -> None:
        if file.absorbed is None:
            if not self.same_layout:
                raise StorageError(
                    f"checkpoint {self.generation.folder} was made with shards of single positions, or of thousands of "
                    f"pieces ({self.manifest.layout['queries'][0]} on {self.manifest.layout['ranks']} ranks). It can "
                    f"be resumed only with the same ranks, sharding and schedule: use these, or start over with "
                    f"--force."
                )
            return
        counted = pairs_within(_slices(file.absorbed), rest) * self.problem.heads.query_slabs
        if counted != file.pairs:
            raise StorageError(
                f"{self.generation.folder / file.name}: the kernels counted {file.pairs:,} pairs, but its part of "
                f"the mask holds {counted:,}. Start over with --force, and please report this."
            )


@dataclass(frozen=True, eq=False)
class Present:
    """The run that is to go on, as far as it matters to what was saved."""

    problem: Problem
    rank: int
    identity: dict[str, Any]
    layout: dict[str, Any]
    stages: Sequence[str]


def present(config: RunConfig, question: Question, kernels: Sequence[list[Any]], rank: int) -> Present:
    """Of a configuration; `kernels`: as in `layout_of`."""
    travel = config.backward.travel if config.backward else None
    problem = question.problem
    layout, stages = layout_of(problem, kernels, travel), stages_of(problem, travel, has_map=question.has_map_pass)
    return Present(problem, rank, question.identity(), layout, stages)


def past_of(generation: Generation, now: Present) -> Past:
    """What a valid generation means for this run.

    Raises
    ------
    StorageError
        If it is of a run that computes something else, field by field; or is in a pass that this run does not have.
    """
    manifest = generation.manifest
    if manifest is None:
        raise StorageError(generation.problem)
    if wrong := differences(manifest.identity, now.identity):
        raise StorageError(
            f"checkpoint {generation.folder} belongs to another run: {'; '.join(wrong)}. Run with what it was made "
            f"with, name another directory in [checkpoint], or start over with --force."
        )
    if (stage := manifest.progress["stage"]) not in now.stages:
        raise StorageError(
            f"checkpoint {generation.folder} is in the {stage} pass of schedule {manifest.layout['schedule']!r}; "
            f"schedule {now.layout['schedule']!r} has {' and '.join(now.stages)}, which cannot take over its sums. Go "
            f"on with --set ring.schedule={manifest.layout['schedule']}, or start over with --force."
        )
    same = not differences(manifest.layout, now.layout)
    return Past(generation, manifest, now.problem, now.rank, same, now.stages)


def _slices(rows: Sequence[Sequence[int]]) -> Slices:
    return np.array(rows, np.int64).reshape(-1, COLUMNS)
