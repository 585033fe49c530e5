"""Small tables of slices to draw from, and what they mean by definition: a dense count of each pair."""

import numpy as np
from hypothesis import strategies as st

from ringmpi.core.slice_algebra import unite
from ringmpi.core.slices import UNBOUNDED, table

SIZE = 14


def dense(slices, queries=SIZE, keys=SIZE):
    """How many slices hold each pair, straight from the definition."""
    i, j = np.arange(queries)[:, None], np.arange(keys)
    seen = np.zeros((queries, keys), int)
    for q0, q1, k0, k1, low, high in slices.tolist():
        seen += (q0 <= i) & (i < q1) & (k0 <= j) & (j < k1) & (low <= j - i) & (j - i <= high)
    return seen


def bounds(lowest, highest):
    start = st.one_of(st.integers(lowest, highest), st.just(-UNBOUNDED))
    stop = st.one_of(st.integers(lowest, highest), st.just(UNBOUNDED))
    return st.tuples(start, stop)


finite = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted)
rows = st.builds(lambda q, k, d: [*q, *k, *d], finite, finite, bounds(-SIZE, SIZE).map(sorted))
tables = st.lists(rows, max_size=9).map(table)
loose_rows = st.builds(lambda q, k, d: [*q, *k, *d], *[bounds(-3, SIZE)] * 3)
loose_tables = st.lists(loose_rows, max_size=9).map(table)
masks = tables.map(lambda slices: unite([slices]))
