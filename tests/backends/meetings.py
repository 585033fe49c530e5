"""Work as a ring step gives it: a mask restricted to ranges of a query shard and of a visiting piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from numpy.typing import NDArray

from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.work import NO_WORK, Work, meet
from tests.backends.natives import natives
from tests.cuda.emulated import EMULATED, emulated
from tests.strategies import LENGTHS, masks

TILE_SIZES = st.integers(1, 12) | st.just(128)  # to 128 all items that LENGTHS draws are small, or nearly so

numpys = st.builds(lambda rows, keys: NumpyBackend(tile_rows=rows, tile_keys=keys), TILE_SIZES, TILE_SIZES)
backends = st.builds(emulated) if EMULATED else numpys | natives
rngs = st.integers(0, 1 << 32).map(np.random.default_rng)


@dataclass(frozen=True)
class Meeting:
    """rows, keys: global positions of the local rows and keys; allowed [rows, keys]: the pairs of `work`."""

    work: Work
    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    allowed: NDArray[np.bool_]


def meet_all(mask: Any, lengths: tuple[int, int], rows: list[range], keys: list[range]) -> Meeting:
    """All ranges of rows against all ranges of keys, local indices running on from range to range."""
    tables, row_offset = [NO_WORK], 0
    for row_range in rows:
        key_offset = 0
        for key_range in keys:
            tables.append(meet(mask.resolve(*lengths), row_range, key_range, row_offset, key_offset))
            key_offset += len(key_range)
        row_offset += len(row_range)
    positions = [np.concatenate([np.arange(0), *map(np.asarray, ranges)]).astype(np.int64) for ranges in (rows, keys)]
    return Meeting(np.concatenate(tables), *positions, mask.allowed(*lengths)[np.ix_(*positions)])


@st.composite
def ranges(draw: DrawFn, length: int) -> list[range]:
    """One range of any stride, or two of stride 1 with a gap: striped, contiguous and zigzag shards."""
    a, b = sorted([draw(st.integers(0, length)), draw(st.integers(0, length))])
    return draw(st.sampled_from([[range(a, length, draw(st.integers(1, 4)))], [range(a), range(b, length)]]))


@st.composite
def meetings(draw: DrawFn) -> Meeting:
    """Any mask, any two shards."""
    lengths = draw(LENGTHS), draw(LENGTHS)
    return meet_all(draw(masks(*lengths)), lengths, draw(ranges(lengths[0])), draw(ranges(lengths[1])))
