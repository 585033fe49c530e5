"""Runs that stop anywhere and go on, all ranks in one process and files in memory: what tests of checkpoints share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ringmpi.checkpoint import saved_state
from ringmpi.checkpoint.past import Past, kernels_of, layout_of, stages_of
from ringmpi.checkpoint.saved_state import (
    backward_state,
    forward_state,
    restore_backward,
    restore_forward,
    restore_given,
    restore_rows,
    tables_of,
)
from ringmpi.comm.local import LocalRing
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Saved, delta_of
from ringmpi.core.rank_work import RankWork
from ringmpi.core.stages import FORWARD, SECOND_BACKWARD
from ringmpi.passes.backward_pass import BackwardPass, query_key_value_of
from ringmpi.passes.forward_pass import ForwardPass
from ringmpi.passes.guard import Unguarded
from ringmpi.passes.travel import Operands, ways_by_name
from ringmpi.passes.visits import BEGINNING
from ringmpi.storage.generations import Generation
from ringmpi.storage.manifest import Manifest, RankFile, differences


class HeldState:
    """A RankState in memory, found by its words: rows by positions, one at a time."""

    def __init__(self, state):
        self.arrays = {name: held.array.copy() for name, held in state.arrays.items()}
        self.positions = {
            name: [position for r in held.ranges for position in r] for name, held in state.arrays.items()
        }
        self.tables = {name: table.copy() for name, table in tables_of(state).items()}

    def __enter__(self):
        return self

    def __exit__(self, *what):
        pass

    def read(self, name, out):
        assert out.dtype == self.arrays[name].dtype
        out[...] = self.arrays[name]

    def read_rows(self, name, ranges, out, *, add=False):
        wanted = {position: n for n, position in enumerate(position for r in ranges for position in r)}
        found = [(n, wanted[position]) for n, position in enumerate(self.positions[name]) if position in wanted]
        for source, target in found:
            rows = self.arrays[name][:, :, source]
            out[:, :, target] = out[:, :, target] + rows if add else rows
        return len(found)


class StopsAfterCalls(Unguarded):
    """One rank makes so many kernel calls; hops go on."""

    def __init__(self, calls):
        self.left = calls

    def attends(self):
        self.left -= 1
        return self.left >= 0


class StopsAfterStep(Unguarded):
    """All ranks stop at the end of a ring step, and look at the state there."""

    def __init__(self, step, look):
        self.step, self.now, self.state, self._look = step, -1, None, look

    def goes_on(self, step):
        self.now = step
        return step <= self.step

    def settles(self):
        return self.now == self.step

    def settled(self):
        self.state = HeldState(self._look()), self._look()


@dataclass
class Stop:
    """Where an attempt ends: in a stage; after so many kernel calls of each rank, or after a ring step."""

    stage: str
    calls: tuple[int, ...]
    step: int


@dataclass
class Run:
    """Whole arrays, and what the attempts so far have left.

    arrays: grad_output, query, key, value, all with a batch axis
    """

    arrays: tuple[np.ndarray, ...]
    backend: object
    travel: str | None
    files: dict[Path, HeldState] = field(default_factory=dict)
    manifest: Manifest | None = None
    pairs: dict[str, int] = field(default_factory=dict)

    def attempt(self, problem, stop=None):
        """One run with this problem, which says ranks and shardings. The whole results, or None if it was stopped."""
        with_files = saved_state.RankState
        saved_state.RankState = lambda path: self.files[path]
        try:
            return _Attempt(self, problem, stop).go()
        finally:
            saved_state.RankState = with_files


class _Attempt:
    def __init__(self, run, problem, stop):
        self.run, self.problem, self.stop = run, problem, stop
        self.layout = layout_of(problem, [kernels_of(run.backend, problem)] * problem.size, run.travel)
        self.pasts = [self.past(rank) for rank in range(problem.size)]
        self.finite = np.ones(problem.size, bool)
        for past in filter(None, self.pasts):
            past.check(slice(None))

    def past(self, rank):
        manifest = self.run.manifest
        if manifest is None:
            return None
        same = not differences(manifest.layout, self.layout)
        return Past(
            Generation(1, Path("g"), manifest, ""),
            manifest,
            self.problem,
            rank,
            same,
            stages_of(self.problem, self.run.travel),
        )

    def starts(self, stage):
        return [past.start(stage) if past else BEGINNING for past in self.pasts]

    def go(self):
        rows = self.forward()
        if rows is None or self.run.travel is None:
            return rows and self.rows(rows)
        grads = self.backward(rows)
        if grads is None:
            return None
        sides = (self.problem.queries, self.problem.keys, self.problem.keys)
        gradients = [self.whole(side, parts) for side, parts in zip(sides, zip(*grads, strict=True), strict=True)]
        return (*self.rows(rows), *gradients)

    def rows(self, results):
        """Output, log_sum_exp and the record, whole."""
        parts = zip(*(result.arrays for result in results), strict=True)
        return tuple(self.whole(self.problem.queries, shards) for shards in parts)

    def whole(self, sharding, shards):
        whole = np.empty((*shards[0].shape[:2], sharding.length, *shards[0].shape[3:]), shards[0].dtype)
        for rank, shard in enumerate(shards):
            sharding.put(whole, shard, rank)
        return whole

    def forward(self):
        starts = self.starts(FORWARD)
        problem = self.problem.without(starts[0].absorbed)
        pairs = [RankWork(problem, rank).pairs() for rank in range(problem.size)]
        needed = np.stack([start.left(counts) for start, counts in zip(starts, pairs, strict=True)])
        passes, loops, ring = [], [], LocalRing(problem.size)
        stopped = self.stop is not None and self.stop.stage == FORWARD
        for rank, comm in enumerate(ring.ranks):
            one = ForwardPass(problem, rank, self.run.backend, pairs[rank], needed)
            one.visits.begin(starts[rank])
            past = self.pasts[rank]
            if past and past.stage != FORWARD:
                passes.append(restore_rows(problem, rank, past.saved))
                continue
            if past:
                restore_forward(one, past.saved)
            q, k, v = self.shards(rank)[1:]
            one.adopt(k, v)
            guard = StopsAfterCalls(self.stop.calls[rank]) if stopped else Unguarded()
            loops.append(one.loop(comm, q, self.finite, guard))
            passes.append(one)
        if not loops:
            return passes
        ring.drive(loops)
        if stopped:
            return self.save([(HeldState(state), state) for state in map(forward_state, passes)], starts)
        self.run.pairs[FORWARD] = sum(one.pairs_attended for one in passes) + self.pairs_before(FORWARD, starts)
        return [one.finish() for one in passes]

    def shards(self, rank):
        sides = (self.problem.queries, self.problem.queries, self.problem.keys, self.problem.keys)
        return [side.select(array, rank) for side, array in zip(sides, self.run.arrays, strict=True)]

    def operands(self, rank, rows):
        grad_output, q, k, v = self.shards(rank)
        delta = delta_of(grad_output, rows[0], None, accumulate_dtype(self.problem.dtype))
        return Operands(q, k, v, Saved(grad_output, rows[1], delta))

    def backward(self, rows):
        given = [[] for _ in rows]
        if self.pasts[0] and self.pasts[0].stage == SECOND_BACKWARD:
            for rank, past in enumerate(self.pasts):
                given[rank].append((restore_given(self.problem, rank, past.saved), None, None))
        for nth in range(self.problem.schedule.backward_passes):
            ways = [ways_by_name(self.run.travel, self.problem, rank)[nth] for rank in range(self.problem.size)]
            found = self.round(ways, rows, given)
            if found is None:
                return None
            for mine, grads in zip(given, found, strict=True):
                mine += [grads] if grads else []
        return [tuple(query_key_value_of(mine)) for mine in given]

    def round(self, ways, rows, given):
        problem = self.problem
        stage = (
            stages_of(problem, ways[0].name)[-1] if problem.schedule.gradients_travel else f"backward-{ways[0].name}"
        )
        starts = self.starts(stage)
        if starts[0] is None:
            return [None] * problem.size
        problem = problem.without(starts[0].absorbed)
        ways = [type(way)(problem, rank) for rank, way in enumerate(ways)]
        pairs = [way.work.pairs() for way in ways]
        travels = problem.schedule.gradients_travel
        needed = np.stack([c > 0 if travels else s.left(c) for s, c in zip(starts, pairs, strict=True)])
        passes, loops, guards, ring = [], [], [], LocalRing(problem.size)
        stopped = self.stop is not None and self.stop.stage == stage
        for rank, comm in enumerate(ring.ranks):
            one = BackwardPass(problem, self.run.backend, ways[rank], pairs[rank], needed, after=starts[rank].after)
            one.visits.begin(starts[rank])
            past = self.pasts[rank]
            if past and past.stage == stage:
                restore_backward(one, past.saved, same=past.same_layout)
            first = given[rank][0][0] if given[rank] else None
            look = lambda one=one, rank=rank, first=first: backward_state(one, rows[rank], first)  # noqa: E731
            guard = Unguarded()
            if stopped:
                step = max(self.stop.step % len(one.itinerary.steps), starts[rank].after)
                guard = StopsAfterStep(step, look) if travels else StopsAfterCalls(self.stop.calls[rank])
            guards.append((guard, look))
            loops.append(one.loop(comm, self.operands(rank, rows[rank]), self.finite, guard))
            passes.append(one)
        ring.drive(loops)
        if stopped:
            ends = [guard.state if travels else (HeldState(look()), look()) for guard, look in guards]
            return self.save(ends, starts)
        self.run.pairs[stage] = sum(one.pairs_attended for one in passes) + self.pairs_before(stage, starts)
        return [one.finish() for one in passes]

    def pairs_before(self, stage, starts):
        """Of attempts on other layouts; those of this one are counted by the passes, which went on from there."""
        past = self.pasts[0]
        if not past or past.stage != stage:
            return 0
        return past.manifest.progress["pairs"][stage] - (sum(s.pairs for s in starts) if past.same_layout else 0)

    def save(self, ends, starts):
        stage = ends[0][1].stage
        total = sum(state.visits.pairs for _, state in ends) + self.pairs_before(stage, starts)
        files, before = [], starts[0].absorbed
        for rank, (held, state) in enumerate(ends):
            name = f"rank-{rank:05d}.h5"
            absorbed = state.visits.absorbed(state.resident)
            files.append(
                RankFile(
                    name=name,
                    bytes=0,
                    digest="0" * 64,
                    pairs=state.visits.pairs,
                    absorbed=None if absorbed is None else tuple(map(tuple, absorbed.tolist())),
                    ranges={
                        n: tuple((r.start, r.stop, r.step) for r in held_array.ranges)
                        for n, held_array in state.arrays.items()
                    },
                )
            )
            self.run.files[Path("g") / name] = held
        self.run.manifest = Manifest(
            generation=1,
            created="",
            ringmpi="",
            identity={},
            layout=self.layout,
            progress={"stage": stage, "step": ends[0][1].step, "pairs": {**self.run.pairs, stage: total}},
            attempts=(),
            absorbed=() if before is None else tuple(map(tuple, before.tolist())),
            files=tuple(files),
        )
