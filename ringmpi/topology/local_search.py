"""2-opt and Or-opt: a closed tour is made shorter by turning parts of it round and by moving short parts.

Source: G. A. Croes, Operations Research 6 (1958); I. Or, PhD thesis, Northwestern University (1976); neighbour lists
and a queue of cities to look at as in J. L. Bentley, ORSA J. Computing 4 (1992).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

Rows = Sequence[Sequence[int]]
LONGEST_PART = 3  # cities that Or-opt moves at once
KICK_SPAN = 50  # places that a kick changes at most


class Tour:
    """A closed tour over the cities 0, 1, ... that can be improved in place.

    Parameters
    ----------
    order : sequence of int
    rows : sequence of sequences of int
        Length of the way between any two cities.
    near : sequence of sequences of int
        For each city the cities to try as its neighbours, nearest first.
    """

    def __init__(self, order: Sequence[int], rows: Rows, near: Rows) -> None:
        self._rows = rows
        self._near = near
        self._at = [0] * len(order)
        self.restore(list(order))

    @property
    def length(self) -> int:
        """Sum of all ways."""
        return sum(self._rows[a][b] for a, b in zip(self.order, self.order[1:] + self.order[:1], strict=True))

    def improve(self, cities: Iterable[int]) -> None:
        """Shorten the tour, starting at `cities`, until no move at a city that was touched shortens it."""
        waiting = deque(cities)
        queued = set(waiting)
        while waiting:
            city = waiting.popleft()
            queued.discard(city)
            touched = self._improve_at(city)
            fresh = [each for each in touched if each not in queued]
            waiting.extend(fresh)
            queued.update(fresh)

    def _improve_at(self, c: int) -> tuple[int, ...]:
        """Make the first move that pays at `c`; return the cities at whose ends it changed the tour."""
        rows, order, at = self._rows, self.order, self._at
        size = len(order)
        for step in (1, -1):
            e = order[(at[c] + step) % size]
            longest = rows[c][e]
            for x in self._near[c]:
                gain = longest - rows[c][x]
                if gain <= 0:
                    break
                y = order[(at[x] + step) % size]
                if gain + rows[x][y] > rows[e][y]:
                    self._exchange(c, e, x)
                    return c, e, x, y
                touched = self._move_part(c, x, step)
                if touched:
                    return touched
        return ()

    def _move_part(self, c: int, x: int, step: int) -> tuple[int, ...]:
        """Take out a short part whose end is `c`, on the side of `c` away from `step`, and put it next to `x`."""
        rows, order, at = self._rows, self.order, self._at
        size = len(order)
        e = order[(at[c] + step) % size]
        for length in range(1, min(LONGEST_PART, size - 3) + 1):
            s = order[(at[c] - step * (length - 1)) % size]
            if s == x:
                break
            f = order[(at[s] - step) % size]
            gain = rows[e][c] + rows[s][f] - rows[e][f] - rows[c][x]
            for side in (step, -step):
                y = order[(at[x] + side) % size]
                if y not in (c, s) and gain + rows[x][y] > rows[s][y]:
                    self._relink((f, s, c, e), x, y, turned=side == step)
                    return c, e, s, f, x, y
        return ()

    def _relink(self, part: tuple[int, int, int, int], x: int, y: int, *, turned: bool) -> None:
        """Move the part from s to c, which stands between f and e, between `x` and `y`, with c beside `x`."""
        f, s, c, e = part
        if turned:  # f s..c e..x y
            self._exchange(f, s, x)
            self._exchange(f, x, e)
        else:  # f s..c e..y x
            self._exchange(f, s, y)
            self._exchange(f, y, e)
            self._exchange(y, c, s)

    def _exchange(self, c: int, e: int, x: int) -> None:
        """Replace the edge from c to e, and that which leaves x the same way, by (c, x) and one between their ends."""
        follows = self.order[(self._at[c] + 1) % len(self.order)] == e
        self._reverse(*((e, x) if follows else (x, e)))

    def _reverse(self, first: int, last: int) -> None:
        """Turn the part from `first` to `last` round, or the rest, whichever is shorter."""
        order, at = self.order, self._at
        size = len(order)
        i, j = at[first], at[last]
        count = (j - i) % size + 1
        if 2 * count > size:
            i, j, count = j + 1, i - 1, size - count
        for _ in range(count // 2):
            i, j = i % size, j % size
            a, b = order[i], order[j]
            order[i], order[j] = b, a
            at[a], at[b] = j, i
            i, j = i + 1, j - 1

    def kick(self, random: Random) -> tuple[int, ...]:
        """Exchange two parts that follow one another, which 2-opt cannot undo (double bridge); return the cut cities.

        Source: O. Martin, S. W. Otto and E. W. Felten, Complex Systems 5 (1991). The tour needs four cities.
        """
        size = len(self.order)
        start = random.randrange(size)
        order = self.order[start:] + self.order[:start]
        a, b, c = sorted(random.sample(range(1, min(size, KICK_SPAN)), 3))
        self.restore(order[:a] + order[b:c] + order[a:b] + order[c:])
        return tuple(self.order[place] for cut in (a, a + c - b, c) for place in (cut - 1, cut % size))

    def restore(self, order: list[int]) -> None:
        """Take over another order of the same cities."""
        self.order = order
        for place, city in enumerate(order):
            self._at[city] = place
