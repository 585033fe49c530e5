"""Two closed walks over a torus that share no link, so that two rings do not meet on any cable.

A ring that is walked both ways uses each cable once in either direction; a second ring without common links doubles
what a step can move: keys go around the one and values around the other, or halves of both.

A torus of more dimensions is one of two, rows and columns: a closed walk over all dimensions but one is a long row.
The first walk goes through row after row, each in full, and steps down where it has come to its end. A row that goes
right begins one place further left than the row before, a row that goes left one further right; so the walk closes if
right and left rows differ by a multiple of the length of a row. What is left over is the second walk if the numbers of
rows and columns are both even or both odd, and there are no more columns than rows. Otherwise the squares between rows
and columns are searched: exchanging the two links of one walk in a square for the two of the other joins walks or
parts them. Source of the theorem: A. Kotzig, Math. Slovaca 23 (1973); of tori of any dimensions: M. M. Bae, B. F.
AlBdaiwi and B. Bose, IEEE Trans. Computers 53 (2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from ringmpi.errors import ShapeError
from ringmpi.topology.box_cycles import Place, closed_walk

Cell = tuple[int, int]
Around = dict[Cell, set[Cell]]  # each cell to its two neighbours on closed walks
MOST_CELLS = 400  # for the search, which goes around all walks after every exchange
ROUNDS = 10
SEED = 1


def disjoint_cycles(shape: Sequence[int]) -> tuple[list[Place], list[Place]]:
    """Two closed walks over every place of a torus, without a common link.

    Parameters
    ----------
    shape : sequence of int
        Places along each dimension, all of them wrapped. Dimensions of one place do not count.

    Raises
    ------
    ShapeError
        If there are not two dimensions of three places or more, or no such walks are known for this shape.
    """
    sizes = [size for size in shape if size > 1]
    for axis in sorted((axis for axis, size in enumerate(shape) if size > 2), key=lambda axis: -shape[axis]):
        rest = [1 if other == axis else size for other, size in enumerate(shape)]
        row = closed_walk(rest, [True] * len(rest))
        if len(row) < 3 or len(sizes) < 2:
            continue
        walks = _of_plane(shape[axis], len(row))
        if walks:
            first, second = ([_raised(row[j], axis, i) for i, j in walk] for walk in walks)
            return first, second
    raise ShapeError(
        f"torus {' x '.join(map(str, shape))}: no two walks without a common link are known; two dimensions of at "
        f"least 3 places are needed. Walk one ring in both directions."
    )


def _raised(place: Place, axis: int, at: int) -> Place:
    return (*place[:axis], at, *place[axis + 1 :])


def _of_plane(rows: int, columns: int) -> tuple[list[Cell], list[Cell]] | None:
    """Two walks over a torus of two dimensions, each at least 3."""
    if rows < columns:
        turned = _of_plane(columns, rows)
        return turned and ([(j, i) for i, j in turned[0]], [(j, i) for i, j in turned[1]])
    if (rows - columns) % 2 == 0:
        first = _row_after_row(rows, columns)
        return first, _followed(_left_over(first, rows, columns))
    return _searched(rows, columns) if rows * columns <= MOST_CELLS else None


def _row_after_row(rows: int, columns: int) -> list[Cell]:
    walk: list[Cell] = []
    start = 0
    for row in range(rows):
        step = 1 if row < (rows + columns) // 2 else -1
        walk += [(row, (start + step * place) % columns) for place in range(columns)]
        start -= step
    return walk


def _left_over(walk: list[Cell], rows: int, columns: int) -> Around:
    """Each cell to the neighbours that the walk does not link it to."""
    around = {
        (i, j): {((i + s) % rows, j) for s in (1, -1)} | {(i, (j + s) % columns) for s in (1, -1)} for i, j in walk
    }
    for a, b in pairwise([*walk, walk[0]]):
        around[a].remove(b)
        around[b].remove(a)
    return around


def _followed(around: Around) -> list[Cell]:
    """The closed walk through cell (0, 0)."""
    walk = [(0, 0)]
    last, here = (0, 0), min(around[0, 0])
    while here != (0, 0):
        walk.append(here)
        last, here = here, next(cell for cell in around[here] if cell != last)
    return walk


def _searched(rows: int, columns: int) -> tuple[list[Cell], list[Cell]] | None:
    """Rows as one set of walks and columns as the other, exchanged in squares until each set is one walk."""
    random = Random(SEED)
    cells = [(i, j) for i in range(rows) for j in range(columns)]
    for _ in range(ROUNDS):
        across: Around = {(i, j): {(i, (j + s) % columns) for s in (1, -1)} for i, j in cells}
        down: Around = {(i, j): {((i + s) % rows, j) for s in (1, -1)} for i, j in cells}
        count = rows + columns
        for i, j in random.sample(cells, len(cells)) + random.sample(cells, len(cells)):
            square = ((i, j), (i, (j + 1) % columns), ((i + 1) % rows, (j + 1) % columns), ((i + 1) % rows, j))
            if _exchange(across, down, square):
                new = _walks(across) + _walks(down)
                if new > count:
                    _exchange(across, down, square)
                elif (count := new) == 2:
                    return _followed(across), _followed(down)
    return None


def _exchange(across: Around, down: Around, square: tuple[Cell, Cell, Cell, Cell]) -> bool:
    """Give each set the links of the other in a square, if each has two opposite ones."""
    a, b, c, d = square
    for one, other in ((across, down), (down, across)):
        if b in one[a] and c in one[d] and d in other[a] and c in other[b]:
            for p, q, r in ((a, b, d), (b, a, c), (c, d, b), (d, c, a)):
                one[p].symmetric_difference_update((q, r))
                other[p].symmetric_difference_update((q, r))
            return True
    return False


def _walks(around: Around) -> int:
    """The number of closed walks."""
    left = set(around)
    count = 0
    while left:
        waiting = [left.pop()]
        count += 1
        while waiting:
            near = around[waiting.pop()] & left
            left -= near
            waiting += near
    return count
