"""The visits of one pass on one rank: kernel call by kernel call, how far they are, and what has been absorbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.absorbed import part_of_visit, rectangles
from ringmpi.core.itinerary import AT_HOME
from ringmpi.core.schedule import Piece
from ringmpi.core.slices import Slices
from ringmpi.core.work import NO_WORK, ROW_START, Work, cut
from ringmpi.passes.guard import Guard

VISITED = np.iinfo(np.int64).max  # in place of a number of calls: all that there are
Cursor = NDArray[np.int64]


@dataclass(frozen=True)
class Start:
    """Where a pass begins. `Start()`: at its beginning.

    Attributes
    ----------
    absorbed : int64 [n, 6] or None
        Slices that runs of other layouts have attended to.
    cursor : int64 [pieces] or None
        Of a run of the same layout: its calls are left out.
    pairs : int
        That the kernels have counted in these calls.
    after : int
        The last ring step that has been done, where gradients travel.
    """

    absorbed: Slices | None = None
    cursor: Cursor | None = None
    pairs: int = 0
    after: int = AT_HOME

    def left(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which pieces a rank still needs, of those that it has `pairs` with, int64 [pieces]."""
        return pairs > 0 if self.cursor is None else (pairs > 0) & (self.cursor != VISITED)


BEGINNING = Start()


class HasTables(Protocol):
    """The work of each visit (core/rank_work.py)."""

    def table(self, piece: int) -> Work:
        """In local indices."""
        ...


class VisitLog:
    """Does the work of visits in calls of bounded size, and keeps the account.

    Parameters
    ----------
    pieces : sequence of Piece
        What visits.
    staying_axis : ROW_START or KEY_START
        Which side of the work stays here.
    budget : int
        Rows x keys of a call.
    whole : bool
        Visits are whole or not at all where the state is saved, and their calls cut the staying side only: where the
        order of sums must not depend on the number of ranks.

    Attributes
    ----------
    cursor : int64 [pieces]
        Kernel calls done of each visit; VISITED: all.
    pairs : int
        Pairs that the kernels have counted in these calls, over batch and query heads.
    """

    def __init__(
        self, work: HasTables, pieces: Sequence[Piece], *, staying_axis: int, budget: int, whole: bool
    ) -> None:
        self._work, self._pieces, self._budget = work, pieces, budget
        self._staying_axis, self._whole = staying_axis, whole
        self.cursor: Cursor = np.zeros(len(pieces), np.int64)
        self.pairs = 0

    def begin(self, start: Start) -> None:
        """Leave out the calls that a run before this one has done."""
        if start.cursor is not None:
            self.cursor, self.pairs = start.cursor.copy(), start.pairs

    def calls(self, piece: int) -> list[Work]:
        """The kernel calls of a visit, in order: the same whenever it is asked."""
        only = self._staying_axis if self._whole else None
        return cut(self._work.table(piece), self._budget, only=only)

    def attend(self, piece: int, guard: Guard, call: Callable[[Work], int]) -> Iterator[int]:
        """Make the calls of a visit that are left, while the guard lets it; yield the pairs of each.

        The guard looks where the state may be saved: after each call, or after the last of a visit.
        """
        if self.cursor[piece] == VISITED or not guard.attends():
            return
        calls = self.calls(piece)
        for nth in range(int(self.cursor[piece]), len(calls)):
            if not self._whole and not guard.attends():
                return
            pairs = call(calls[nth])
            last = nth + 1 == len(calls)
            self.cursor[piece] = VISITED if last else nth + 1
            self.pairs += pairs
            yield pairs
            if last or not self._whole:
                guard.look()

    def absorbed(self, staying: Sequence[range]) -> Slices | None:
        """What has been attended to in these visits, by positions; `staying`: those of the side that stays.

        Returns
        -------
        int64 [n, 6] or None
            May overlap. None where slices cannot say it (core/absorbed.py).
        """
        visited = [r for piece, calls in enumerate(self.cursor) if calls == VISITED for r in self._pieces[piece].ranges]
        found = [rectangles(*self._in_order(staying, visited))]
        for piece in np.flatnonzero((self.cursor > 0) & (self.cursor < VISITED)).tolist():
            calls, made = self.calls(piece), int(self.cursor[piece])
            done, left = (np.concatenate([NO_WORK, *some]) for some in (calls[:made], calls[made:]))
            found.append(part_of_visit(done, left, *self._in_order(staying, self._pieces[piece].ranges)))
        said = [slices for slices in found if slices is not None]
        return np.concatenate(said) if len(said) == len(found) else None

    def _in_order(self, staying: Sequence[range], visiting: Sequence[range]) -> tuple[Sequence[range], Sequence[range]]:
        """Positions of queries, then of keys."""
        return (staying, visiting) if self._staying_axis == ROW_START else (visiting, staying)
