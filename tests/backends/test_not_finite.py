"""NaN and inf in k and v: they reach the rows that see them, as the plain formula has it, and no other bit."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ringmpi import Mask
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.partial import finalize
from ringmpi.core.scoring import Scoring
from tests.backends.dense import arrays, inputs
from tests.backends.meetings import backends, meet_all, meetings, rngs
from tests.backends.natives import ISAS, native
from tests.cuda.emulated import EMULATED, emulated

PLAIN = Scoring(0.5)
SPECIAL = [np.nan, np.inf, -np.inf]


def attend(backend, q, k, v, meeting, **options):
    return backend.attend(q, k, v, meeting.work, PLAIN, **options)[0]


def spoil(array, rng, heads, keys):
    """NaN and inf at random places of the drawn heads and keys. Returns [heads, keys]: where."""
    spoilt = np.zeros(array.shape[1:3], bool)
    for head in heads:
        for key in keys:
            array[0, head, key % array.shape[2], rng.integers(array.shape[3])] = rng.choice(SPECIAL)
            spoilt[head, key % array.shape[2]] = True
    return spoilt


spots = st.tuples(st.sampled_from([[0], [1], [0, 1]]), st.lists(st.integers(0, 40), min_size=1, max_size=6))


@given(meetings(), backends, rngs)
def test_finite_inputs_give_the_same_bits_either_way(meeting, backend, rng):
    q, k, v = inputs(rng, meeting)
    for x, y in zip(*(arrays(attend(backend, q, k, v, meeting, finite=f)) for f in (True, False)), strict=True):
        assert x.tobytes() == y.tobytes()


@given(meetings(), backends, rngs, st.booleans(), spots)
def test_rows_that_see_finite_keys_only_keep_every_bit(meeting, backend, rng, in_values, spots):
    q, k, v = inputs(rng, meeting)
    assume(k.shape[2])
    clean = attend(backend, q, k, v, meeting)
    spoilt = spoil(v if in_values else k, rng, *spots)
    found = attend(backend, q, k, v, meeting, finite=False)
    unhurt = ~(meeting.allowed @ spoilt.T).T
    for x, y in zip(arrays(clean), arrays(found), strict=True):
        assert x[0][unhurt].tobytes() == y[0][unhurt].tobytes()


@given(meetings(), backends, rngs, spots)
def test_values_that_are_not_finite_reach_the_rows_that_see_them(meeting, backend, rng, spots):
    q, k, v = inputs(rng, meeting)
    assume(k.shape[2])
    spoil(v, rng, *spots)
    output, _ = finalize_quietly(attend(backend, q, k, v, meeting, finite=False))
    expected = by_rows(q, k, v, meeting)
    np.testing.assert_array_equal(np.isfinite(output), np.isfinite(expected))
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(output[special], expected[special])
    np.testing.assert_allclose(output[~special], expected[~special], rtol=1e-4, atol=1e-5)


@given(meetings(), backends, rngs, spots)
def test_a_nan_key_makes_nan_of_the_rows_that_see_it(meeting, backend, rng, spots):
    q, k, v = inputs(rng, meeting)
    assume(k.shape[2])
    heads, keys = spots
    hurt = np.zeros((2, len(meeting.rows)), bool)
    for key in np.unique(np.array(keys) % k.shape[2]):
        k[0, heads, key, 0] = np.nan
        hurt[heads] |= meeting.allowed[:, key]
    partial = attend(backend, q, k, v, meeting, finite=False)
    np.testing.assert_array_equal(np.isnan(partial.weighted_sum[0]), np.repeat(hurt[..., None], 4, 2))
    np.testing.assert_array_equal(np.isnan(partial.row_sum[0]), hurt)
    np.testing.assert_array_equal(np.isnan(partial.row_max[0]), hurt)


def finalize_quietly(partial):
    with np.errstate(invalid="ignore"):
        return finalize(partial, np.dtype("f4"))


def by_rows(q, k, v, meeting):
    """The plain formula, each row with its own keys only: so no masked value is ever multiplied."""
    output = np.zeros((*q.shape[:3], v.shape[3]), np.float64)
    for head, row in np.ndindex(q.shape[1:3]):
        seen = meeting.allowed[row]
        if seen.any():
            scores = PLAIN.scale * k[0, head, seen].astype(np.float64) @ q[0, head, row]
            weights = np.exp(scores - scores.max())
            with np.errstate(invalid="ignore"):
                output[0, head, row] = (weights[:, None] * v[0, head, seen]).sum(0) / weights.sum()
    return output


KERNELS = pytest.mark.parametrize(
    "backend",
    [emulated()] if EMULATED else [NumpyBackend(tile_rows=32, tile_keys=32), *map(native, ISAS)],
    ids=lambda b: getattr(b, "isa", b.name),
)


@KERNELS
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_shard_full_of_nan_stays_behind_its_mask(rng, backend, dtype):
    meeting = meet_all(Mask.causal(), (80, 80), [range(80)], [range(80)])
    q, k, v = inputs(rng, meeting, dtype=dtype)
    k[:, :, 60:], v[:, :, 60:] = np.nan, np.nan
    found = attend(backend, q, k, v, meeting, finite=False)
    assert np.isnan(found.weighted_sum[:, :, 60:]).all()
    assert np.isfinite(found.weighted_sum[:, :, :60]).all()


@KERNELS
def test_infinite_queries_warn_of_nothing_and_spoil_their_own_rows_only(rng, backend):
    meeting = meet_all(Mask.causal(), (20, 20), [range(20)], [range(20)])
    q, k, v = inputs(rng, meeting)
    clean = attend(backend, q, k, v, meeting)
    q[:, :, 7] = np.inf
    found = attend(backend, q, k, v, meeting)
    others = np.arange(20) != 7
    for x, y in zip(arrays(clean), arrays(found), strict=True):
        assert x[:, :, others].tobytes() == y[:, :, others].tobytes()
    assert np.isnan(found.weighted_sum[:, :, 7]).all()
