"""Kernels that record their rows: against the plain formulas, and no bit of the attention changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringmpi.backends
from ringmpi import Mask
from ringmpi.backends import get_backend
from ringmpi.core.dtypes import accumulate_dtype, bfloat16
from ringmpi.core.partial import Partial, empty_partial, finalize_record
from ringmpi.core.record import Recording, RecordSums
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import cut, meet
from ringmpi.errors import BackendError, ShapeError
from tests.backends.dense import arrays, inputs
from tests.backends.meetings import backends, meet_all, meetings, rngs
from tests.backends.natives import ISAS, native
from tests.backends.rowwise import open_rowwise
from tests.tolerances import assert_record

HEADS = st.tuples(*[st.integers(1, n) for n in (2, 3, 3, 5, 5)])
PLAIN = Scoring(0.5)
EVERYTHING = Scoring(0.2, 3.0, np.array([0.5, 0.25, 0.125, 0.0625]), dropout=0.2, seed=5)
RECORDING = Recording(3)

everywhere = pytest.mark.parametrize("isa", ISAS)


def fresh(q, v, recording=RECORDING):
    return empty_partial(*q.shape[:3], v.shape[3], accumulate_dtype(q.dtype), recording=recording)


def attend(backend, q, k, v, work, scoring, into=None, **options):
    into = fresh(q, v) if into is None else into
    return backend.attend(q, k, v, work, scoring, into=into, **options)[0]


def bits(partial, rows=slice(None)):
    found = [*arrays(partial), *partial.record.arrays.values()]
    return [np.ascontiguousarray(array[:, :, rows]).tobytes() for array in found]


def assert_recorded(partial, q, k, meeting, scoring, recording=RECORDING):
    places = meeting.rows, meeting.keys
    assert_record(finalize_record(partial, partial), q, k, meeting.allowed, scoring, recording, places)


def scorings(query_heads):
    slopes = st.lists(st.floats(0.01, 1), min_size=query_heads, max_size=query_heads).map(np.array)
    return st.builds(
        Scoring,
        st.floats(0.1, 2),
        st.none() | st.floats(0.5, 5),
        st.none() | slopes,
        st.sampled_from([0.0, 0.4]),
    )


@given(st.data(), meetings(), backends, rngs, HEADS, st.sampled_from(["f2", "f4", "f8", bfloat16]))
def test_the_record_is_that_of_the_plain_formulas(data, meeting, backend, rng, heads, dtype):
    q, k, v = inputs(rng, meeting, heads, dtype)
    scoring = data.draw(scorings(q.shape[1]))
    assert_recorded(attend(backend, q, k, v, meeting.work, scoring), q, k, meeting, scoring)


@given(meetings(), backends, rngs, st.integers(1, 60))
def test_pieces_may_be_carried_in_any_order(meeting, backend, rng, budget):
    q, k, v = inputs(rng, meeting)
    calls, carried = cut(meeting.work, budget), fresh(q, v)
    for n in rng.permutation(len(calls)):
        attend(backend, q, k, v, calls[n], PLAIN, carried)
    assert_recorded(carried, q, k, meeting, PLAIN)


@given(st.data(), meetings(), backends, rngs, st.booleans())
def test_no_bit_of_the_attention_depends_on_a_record(data, meeting, backend, rng, finite):
    q, k, v = inputs(rng, meeting)
    scoring = data.draw(scorings(q.shape[1]))
    bare = backend.attend(q, k, v, meeting.work, scoring, finite=finite)[0]
    assert bare.record is None
    recorded = attend(backend, q, k, v, meeting.work, scoring, finite=finite)
    for x, y in zip(arrays(bare), arrays(recorded), strict=True):
        assert x.tobytes() == y.tobytes()


@given(meetings(), backends, rngs)
def test_of_equal_scores_the_first_key_is_the_top_one(meeting, backend, rng):
    """Queries of zero, keys in pieces that come last to first."""
    q, k, v = inputs(rng, meeting)
    carried = fresh(q, v)
    for call in cut(meeting.work, 30)[::-1]:
        attend(backend, 0 * q, k, v, call, PLAIN, carried)
    first = [meeting.keys[row][0] if row.any() else -1 for row in meeting.allowed]
    np.testing.assert_array_equal(carried.record.top_key[0, 0], first)
    np.testing.assert_array_equal(carried.record.score_sum, 0)


MASKS = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "window": Mask.window(70, 5) | Mask.sinks(3),
    "documents": Mask.documents([20] * 20 + [3], within=Mask.causal()),
}
LENGTH = 403


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("scoring", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_whole_tiles_are_recorded_too(rng, kernel, mask, dtype, scoring):
    meeting = meet_all(MASKS[mask], (LENGTH, LENGTH), [range(LENGTH)], [range(LENGTH)])
    q, k, v = inputs(rng, meeting, (1, 2, 2, 24, 16), dtype)
    assert_recorded(attend(kernel(threads=2), q, k, v, meeting.work, scoring), q, k, meeting, scoring)


@pytest.mark.parametrize("start", [0, 10**6, 3 * 10**9])
def test_distances_of_near_keys_are_exact_however_far_down(rng, kernel, start):
    """A window of 3 at position 3 x 10^9, which float32 knows to 256 only: with equal weights, means of integers."""
    rows = range(start, start + 300)
    work = meet(np.array([[start, start + 300, start, start + 300, -2, 0]]), rows, rows)
    q, k, v = (np.zeros((1, 1, 300, 8), "f4") for _ in range(3))
    found = attend(kernel(), q, k, v, work, PLAIN)
    found = finalize_record(found, found)
    np.testing.assert_array_equal(found.distance[0, 0, 2:], 1)
    np.testing.assert_array_equal(found.distance[0, 0, :2], [0, 0.5])
    np.testing.assert_array_equal(found.top_key[0, 0], np.maximum(np.arange(start - 2, start + 298), start))
    assert (found.sinks[0, 0, 5:] == 0).all()


def test_rows_that_see_nan_know_nothing_and_others_keep_every_bit(rng, kernel):
    meeting = meet_all(Mask.causal(), (80, 80), [range(80)], [range(80)])
    q, k, v = inputs(rng, meeting)
    clean = attend(kernel(), q, k, v, meeting.work, PLAIN, finite=False)
    k[:, :, 60, 1] = np.nan
    spoilt = attend(kernel(), q, k, v, meeting.work, PLAIN, finite=False)
    assert bits(clean, slice(60)) == bits(spoilt, slice(60))
    found = finalize_record(spoilt, spoilt)
    for array in (found.entropy, found.distance, found.top_score, found.sinks):
        assert np.isnan(array[:, :, 60:]).all()
    assert (found.top_key[:, :, 60:] == -1).all()


def test_values_that_are_not_finite_do_not_touch_the_record(rng, kernel):
    meeting = meet_all(Mask.causal(), (80, 80), [range(80)], [range(80)])
    q, k, v = inputs(rng, meeting)
    clean = attend(kernel(), q, k, v, meeting.work, PLAIN)
    v[:, :, 10] = np.nan
    with np.errstate(invalid="ignore"):
        spoilt = attend(kernel(), q, k, v, meeting.work, PLAIN, finite=False)
    assert bits(clean)[3:] == bits(spoilt)[3:]


def test_scores_that_fall_to_minus_infinity_weigh_nothing(rng, kernel):
    meeting = meet_all(Mask.full(), (9, 40), [range(9)], [range(40)])
    q, k, v = inputs(rng, meeting)
    q[...], k[...] = 1e20, 0
    k[:, :, ::3] = -1e20
    partial = attend(kernel(), q, k, v, meeting.work, PLAIN)
    found = finalize_record(partial, partial)
    np.testing.assert_allclose(found.entropy, np.log(np.float32(26)), rtol=1e-6)
    assert (found.top_key == 1).all()


@everywhere
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scoring", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_native_records_keep_the_contract_of_bits(isa, mask, scoring, rng):
    """Threads, cuts between rows, and the place of a row change no bit of the record."""
    meeting = meet_all(MASKS[mask], (LENGTH, LENGTH), [range(LENGTH)], [range(LENGTH)])
    q, k, v = inputs(rng, meeting, (1, 2, 2, 24, 16))
    whole = bits(attend(native(isa), q, k, v, meeting.work, scoring))
    assert bits(attend(native(isa, 3), q, k, v, meeting.work, scoring)) == whole
    carried = fresh(q, v)
    for start, stop in ((0, 1), (1, 53), (53, 200), (200, LENGTH)):
        part = meeting.work.copy()
        part[:, 0], part[:, 1] = part[:, 0].clip(start, stop), part[:, 1].clip(start, stop)
        attend(native(isa), q, k, v, part, scoring, carried)
    assert bits(carried) == whole
    below, shifted = np.concatenate([np.full_like(q[:, :, :7], 7), q], axis=2), meeting.work.copy()
    shifted[:, :2] += 7
    shifted[:, 4] -= 7
    assert bits(attend(native(isa), below, k, v, shifted, scoring), slice(7, None)) == whole


def test_a_record_of_other_rows_is_refused(rng, kernel):
    meeting = meet_all(Mask.full(), (5, 5), [range(5)], [range(5)])
    q, k, v = inputs(rng, meeting)
    good = fresh(q, v)
    short = RecordSums(*(array[:, :, :4] for array in good.record.arrays.values()), 3)
    with pytest.raises(ShapeError, match="the record of the carried partial has rows"):
        attend(kernel(), q, k, v, meeting.work, PLAIN, Partial(*arrays(good), short))


def test_a_backend_that_does_not_record_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(ringmpi.backends._OPENERS, "rowwise", (open_rowwise.__module__, open_rowwise.__name__))
    assert get_backend("rowwise").name == "rowwise"
    with pytest.raises(BackendError, match='rows are to be recorded, but backend "rowwise" does not record them'):
        get_backend("rowwise", records=True)
