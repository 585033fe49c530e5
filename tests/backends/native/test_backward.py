"""Gradients by the native kernels: which bits depend on what, what may be left out, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.core.gradients import Gradients, Saved, delta_of
from ringmpi.core.partial import finalize
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import KEY_START, ROW_START, meet, tighten
from ringmpi.errors import ShapeError
from tests.backends.dense import inputs
from tests.backends.meetings import meet_all
from tests.backends.natives import ISAS, native

TILE_ROWS, TILE_KEYS = 96, 192  # backward_sight.h
LENGTH = 500
HEADS = (2, 2, 3, 20, 36)
MASKS = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "window and sinks": Mask.window(70, 3) | Mask.sinks(5),
    "documents": Mask.documents([130, 7, 63, 200, 100]) & Mask.causal(),
}
EVERYTHING = Scoring(0.3, 4.0, np.linspace(0, 0.3, 6), 0.25, 5)
pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


class Case:
    """Inputs with what a forward pass has kept of them."""

    def __init__(self, rng, mask, scoring=EVERYTHING, dtype="f4", isa=ISAS[0] if ISAS else ""):
        self.meeting = meet_all(mask, (LENGTH, LENGTH), [range(LENGTH)], [range(LENGTH)])
        self.arrays = inputs(rng, self.meeting, HEADS, dtype)
        self.scoring, self.isa = scoring, isa
        self.saved = self.kept(rng.standard_normal((*self.arrays[0].shape[:3], HEADS[4])).astype(dtype))

    def kept(self, grad_output, *, finite=True):
        """What a forward pass leaves."""
        partial, _ = native(self.isa).attend(*self.arrays, self.meeting.work, self.scoring, finite=finite)
        output, log_sum_exp = finalize(partial, grad_output.dtype)
        return Saved(grad_output, log_sum_exp, delta_of(grad_output, output, None, log_sum_exp.dtype))

    def zeros(self):
        return Gradients(*(np.zeros(x.shape, self.saved.delta.dtype) for x in self.arrays), np.zeros(6))

    def run(self, *works, threads=1, into=None, finite=True):
        into = self.zeros() if into is None else into
        for work in works or [self.meeting.work]:
            native(self.isa, threads).attend_backward(
                *self.arrays, self.saved, work, self.scoring, into=into, finite=finite
            )
        return into


def cut_columns(work, start, edges):
    """The pairs of `work`, cut along rows or keys (column `start` and the next) at `edges`."""
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        part = work.copy()
        part[:, start] = np.maximum(part[:, start], low)
        part[:, start + 1] = np.minimum(part[:, start + 1], high)
        yield tighten(part[part[:, start] < part[:, start + 1]])


def bits(gradients):
    return {name: getattr(gradients, name).tobytes() for name in ("query", "key", "value")}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mask", MASKS)
def test_threads_change_no_bit(rng, mask, isa):
    """Nor does the width of columns (backward.cpp): here all three key tiles for one thread, one for more."""
    case = Case(rng, MASKS[mask], isa=isa)
    alone = case.run()
    for threads in (2, 3):
        together = case.run(threads=threads)
        assert bits(together) == bits(alone)
        assert together.slope.tobytes() == alone.slope.tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_rows_do_not_depend_on_the_cut_of_rows(rng, mask, dtype):
    """Any cut, calls in any order: a row's gradient is of that row and of the tiles of keys."""
    case = Case(rng, MASKS[mask], dtype=dtype)
    parts = list(cut_columns(case.meeting.work, ROW_START, [0, 1, 50, 97, 300, 301, LENGTH]))
    assert case.run(*parts[::-1]).query.tobytes() == case.run().query.tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_keys_do_not_depend_on_cuts_at_tiles(rng, mask, dtype):
    """Row tiles in ascending order and any cut of keys, or key tiles in ascending order for the rows as well."""
    case = Case(rng, MASKS[mask], dtype=dtype)
    whole = bits(case.run())
    by_rows = bits(case.run(*cut_columns(case.meeting.work, ROW_START, [0, TILE_ROWS, 3 * TILE_ROWS, LENGTH])))
    by_keys = case.run(*cut_columns(case.meeting.work, KEY_START, [0, 100, 101, 350, LENGTH]))
    at_tiles = bits(case.run(*cut_columns(case.meeting.work, KEY_START, [0, TILE_KEYS, LENGTH])))
    assert whole == by_rows == at_tiles
    assert bits(by_keys)["key"] == whole["key"]
    assert bits(by_keys)["value"] == whole["value"]


def test_gradients_do_not_depend_on_the_place_of_rows_and_heads(rng):
    """Rows in arrays of their own, at other local indices and under one head, get the same gradients."""
    case = Case(rng, Mask.causal(), replace(EVERYTHING, alibi_slopes=None, dropout=0.0))
    whole, rows, head = case.run(), slice(101, 320), slice(3, 4)
    q, k, v = case.arrays[0][:, head, rows], case.arrays[1][:, 1:], case.arrays[2][:, 1:]
    saved = Saved(*(x[:, head, rows] for x in (case.saved.grad_output, case.saved.log_sum_exp, case.saved.delta)))
    work = meet(Mask.causal().resolve(LENGTH, LENGTH), range(101, 320), range(LENGTH))
    into = Gradients(*(np.zeros(x.shape, np.float32) for x in (q, k, v)), np.zeros(1))
    native(case.isa).attend_backward(q, k, v, saved, work, case.scoring, into=into)
    assert into.query.tobytes() == whole.query[:, head, rows].tobytes()


@pytest.mark.parametrize("mask", MASKS)
def test_one_side_alone_has_the_same_bits(rng, mask):
    case = Case(rng, MASKS[mask])
    both, zeros = case.run(), case.zeros()
    rows = case.run(into=replace(zeros, key=None, value=None))
    keys = case.run(into=replace(case.zeros(), query=None), threads=2)
    assert rows.query.tobytes() == both.query.tobytes()
    assert (keys.key.tobytes(), keys.value.tobytes()) == (both.key.tobytes(), both.value.tobytes())
    assert rows.slope.tobytes() == keys.slope.tobytes() == both.slope.tobytes()


@pytest.mark.parametrize("mask", MASKS)
def test_values_alone_and_keys_alone_have_the_same_bits(rng, mask):
    case = Case(rng, MASKS[mask])
    both, zeros = case.run(), case.zeros()
    values = case.run(into=replace(zeros, query=None, key=None), threads=2)
    keys = case.run(into=replace(case.zeros(), query=None, value=None))
    assert values.value.tobytes() == both.value.tobytes()
    assert keys.key.tobytes() == both.key.tobytes()
    assert not values.slope.any()  # a slope has the gradients of scores, and none is made


def test_a_carried_sum_goes_on(rng):
    """What stands in the gradients before a call is the start of their sums, not overwritten."""
    case = Case(rng, MASKS["window and sinks"])
    once, twice = case.run(), case.run(case.meeting.work, case.meeting.work)
    np.testing.assert_allclose(twice.query, 2 * once.query, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(twice.value, 2 * once.value, rtol=1e-5, atol=1e-6)


def test_strided_sums_are_written_where_they_lie(rng):
    case = Case(rng, Mask.causal())
    wide = [np.zeros((*x.shape[:2], 2 * x.shape[2], 3 * x.shape[3]), np.float32) for x in case.arrays]
    views = [x[:, :, ::-2, 1::3] for x in wide]
    found, expected = case.run(into=Gradients(*views, np.zeros(6))), case.run()
    assert bits(found) == bits(expected)
    for whole, view in zip(wide, views, strict=True):
        assert np.count_nonzero(whole) == np.count_nonzero(view)


def test_sums_of_another_dtype_are_refused(rng):
    case = Case(rng, Mask.causal())
    with pytest.raises(ShapeError, match="summed in float64"):
        case.run(into=replace(case.zeros(), query=np.zeros((2, 6, LENGTH, 20))))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("where", ["grad_output", "query", "key", "value"])
def test_nan_reaches_what_sees_it_and_changes_no_other_bit(rng, where, isa):
    """At one place, between rows and keys of the same tile that do not see it."""
    case = Case(rng, MASKS["causal"], replace(EVERYTHING, dropout=0.0), isa=isa)
    clean, place = case.run(), 250
    spoilt = dict(zip(("query", "key", "value"), case.arrays, strict=True), grad_output=case.saved.grad_output)[where]
    spoilt[0, 0, place, 3] = np.nan
    case.saved = case.kept(case.saved.grad_output, finite=False)
    found = case.run(finite=False)
    rows = np.arange(LENGTH) == place if where in ("grad_output", "query") else np.arange(LENGTH) >= place
    keys = np.arange(LENGTH) <= (place if where in ("grad_output", "query") else LENGTH)
    hurt = {"query": rows, "key": keys, "value": keys}
    for name in hurt:
        before, after = getattr(clean, name)[0, 0], getattr(found, name)[0, 0]
        assert before[~hurt[name]].tobytes() == after[~hurt[name]].tobytes()
        if (name, where) != ("value", "value"):  # dV = p^T dO knows nothing of values
            assert np.isnan(after[hurt[name]]).any(-1).all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_whose_scores_are_all_minus_inf_gives_nothing(rng, isa):
    """Its log_sum_exp is -inf though it sees keys: no probability is made of -inf - -inf."""
    case = Case(rng, Mask.window(0, 0), Scoring(1.0), isa=isa)
    q, k, _ = case.arrays
    q[:, :, 7], k[:, :, 7] = 0, 0
    q[:, :, 7, 0], k[:, :, 7, 0] = 1, -np.inf
    case.saved.log_sum_exp[:, :, 7] = -np.inf
    found = case.run(finite=False)
    for sums in (found.query, found.key, found.value):
        assert not sums[:, :, 7].any()
