"""The judge of records, against formulas written out row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.reference import KeySlab
from ringmpi.core.reference_record import RowsRecord
from ringmpi.core.scoring import Scoring

ROWS, KEYS, DIM, SINKS = 6, 11, 3, 2
SCORES = Scoring(0.7, 2.0, np.array([0.25, 0.0, 0.125, 0.5]))
POSITIONS = np.array([0, 2, 3, 7, 8, 20])


def draw(seed):
    """Q, k and a mask in which row 1 sees nothing."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((1, 4, ROWS, DIM)), rng.standard_normal((1, 2, KEYS, DIM))
    allowed = rng.random((ROWS, KEYS)) < 0.6
    allowed[1] = False
    return q, k, allowed


def by_rows(q, k, allowed, sink_logits):
    """Entropy, distance, top score, top key and sinks, each row on its own."""
    found = np.empty((5, 4, ROWS))
    for h, i in np.ndindex(4, ROWS):
        keys = np.flatnonzero(allowed[i])
        s = 2 * np.tanh(0.7 * k[0, h // 2, keys] @ q[0, h, i] / 2) - SCORES.alibi_slopes[h] * abs(POSITIONS[i] - keys)
        terms = np.exp(np.append(s, sink_logits[h]))
        p = terms / max(terms.sum(), np.finfo(float).tiny)
        entropy = -sum(x * np.log(x) for x in p if x > 0)
        p = p[:-1]
        found[0, h, i], found[1, h, i] = entropy, (p * abs(POSITIONS[i] - keys)).sum()
        found[2:4, h, i] = (s.max(), keys[s.argmax()]) if len(keys) else (-np.inf, -1)
        found[4, h, i] = p[keys < SINKS].sum()
    return found


@given(st.integers(0, 2**32), st.sets(st.integers(1, KEYS - 1), max_size=4), st.booleans(), st.randoms())
def test_it_is_the_formula_however_keys_are_cut_into_slabs(seed, cuts, with_sinks, random):
    q, k, allowed = draw(seed)
    sinks = np.array([0.5, -np.inf, 3.0, -1.0]) if with_sinks else np.full(4, -np.inf)
    edges = [0, *sorted(cuts), KEYS]
    slabs = [range(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    random.shuffle(slabs)
    expected = by_rows(q, k, allowed, sinks)
    rows = RowsRecord(q, POSITIONS, SCORES, sinks=SINKS, claimed=expected[3][None].astype(np.int64))
    for slab in slabs:
        part = k[:, :, slab.start : slab.stop]
        rows.absorb(KeySlab(slab, allowed[:, slab.start : slab.stop], part, part))
    found = rows.finish(sinks)
    for array, formula in zip(found.arrays, expected, strict=True):
        np.testing.assert_allclose(array[0], formula, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(rows.claimed_score, found.top_score)


@pytest.mark.parametrize("claim", [4, 0])
def test_a_claimed_key_that_is_not_the_top_one_has_another_score(claim):
    q, k, allowed = draw(0)
    allowed[:, 4] = False
    rows = RowsRecord(q, POSITIONS, SCORES, sinks=SINKS, claimed=np.full((1, 4, ROWS), claim))
    rows.absorb(KeySlab(range(KEYS), allowed, k, k))
    assert (rows.claimed_score < rows.finish().top_score)[:, :, allowed.any(1)].any()
    assert (claim != 4) or np.isneginf(rows.claimed_score).all()


def test_without_any_slab_there_is_nothing():
    q, _, _ = draw(0)
    found = RowsRecord(q, POSITIONS, SCORES, sinks=SINKS).finish()
    assert (found.top_key == -1).all()
    assert (found.entropy == 0).all()


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_a_row_that_meets_nan_or_plus_inf_has_no_top_key(special):
    """As the sums have it: weights would be inf / inf."""
    q, k, allowed = draw(0)
    q[:] = np.abs(q)
    k[0, :, 4] = special
    scores = Scoring(0.7, None, None)
    rows = RowsRecord(q, POSITIONS, scores, sinks=SINKS)
    rows.absorb(KeySlab(range(KEYS), allowed, k, k))
    found, met = rows.finish(), allowed[:, 4]
    assert met.any()
    assert not met.all()
    for array in (found.entropy, found.distance, found.top_score, found.sinks):
        assert (np.isnan(array) == met).all()
    assert (found.top_key[..., met] == -1).all()
    assert (found.top_key[..., ~met & allowed.any(1)] >= 0).all()
