"""The contract of bits: a row's result depends on the row and its keys, not on where and with what it is computed."""

from itertools import pairwise

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.core.partial import Partial, empty_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import KEY_START, KEY_STOP, ROW_START, ROW_STOP, meet
from tests.backends.dense import arrays
from tests.backends.natives import ISAS, native

MASKS = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "window": Mask.window(70, 5) | Mask.sinks(3),
    "documents": Mask.documents([20] * 20 + [3], within=Mask.causal()),
}
EVERYTHING = Scoring(0.2, 3.0, np.array([0.5, 0.25, 0.125, 0.0625]), dropout=0.2, seed=5)
LENGTH = 403

everywhere = pytest.mark.parametrize("isa", ISAS)
masks = pytest.mark.parametrize("mask", MASKS)
scorings = pytest.mark.parametrize("scoring", [Scoring(0.2), EVERYTHING], ids=["plain", "everything"])


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((1, heads, LENGTH, 24), dtype=np.float32) for heads in (4, 2, 2)]


def work_of(mask):
    return meet(MASKS[mask].resolve(LENGTH, LENGTH), range(LENGTH), range(LENGTH))


def bits(partial, rows=slice(None)):
    return [np.ascontiguousarray(x[:, :, rows]).tobytes() for x in arrays(partial)]


@everywhere
@masks
@scorings
def test_threads_change_no_bit(isa, mask, scoring, qkv):
    one, two, three = (bits(native(isa, threads).attend(*qkv, work_of(mask), scoring)[0]) for threads in (1, 2, 3))
    assert one == two == three


@everywhere
@masks
@scorings
def test_rows_may_be_cut_into_calls_anywhere(isa, mask, scoring, qkv):
    whole, pairs = native(isa).attend(*qkv, work_of(mask), scoring)
    carried, counted = empty_partial(1, 4, LENGTH, 24, np.dtype("f4")), 0
    for start, stop in pairwise([0, 1, 50, 53, 200, LENGTH]):
        part = work_of(mask).copy()
        part[:, ROW_START], part[:, ROW_STOP] = (
            part[:, ROW_START].clip(start, stop),
            part[:, ROW_STOP].clip(start, stop),
        )
        counted += native(isa).attend(*qkv, part, scoring, into=carried)[1]
    assert bits(carried) == bits(whole)
    assert counted == pairs


@everywhere
@pytest.mark.parametrize("offset", [1, 7, 30, 48])
def test_the_place_of_a_row_changes_no_bit(isa, offset, qkv):
    """The same rows, further down in a longer array, in other lanes and beside other rows."""
    q, k, v = qkv
    below = np.concatenate([np.full_like(q[:, :, :offset], 7), q], axis=2)
    work = work_of("causal")
    shifted = work.copy()
    shifted[:, [ROW_START, ROW_STOP]] += offset
    shifted[:, 4] -= offset  # the origin: rows keep their positions
    found = native(isa).attend(below, k, v, shifted, Scoring(0.2))[0]
    assert bits(found, slice(offset, None)) == bits(native(isa).attend(q, k, v, work, Scoring(0.2))[0])


@everywhere
def test_other_heads_change_no_bit(isa, qkv):
    q, k, v = qkv
    together = native(isa, 2).attend(q, k, v, work_of("causal"), Scoring(0.2))[0]
    for head in range(4):
        key = slice(head // 2, head // 2 + 1)
        alone = native(isa).attend(q[:, head : head + 1], k[:, key], v[:, key], work_of("causal"), Scoring(0.2))[0]
        assert bits(alone) == [np.ascontiguousarray(x[:, head : head + 1]).tobytes() for x in arrays(together)]


@everywhere
def test_keys_that_a_row_does_not_see_change_no_bit(isa, qkv):
    q, k, v = qkv
    other = [np.where(np.arange(LENGTH)[:, None] >= 130, 1e3, x).astype("f4") for x in (k, v)]
    found = [native(isa).attend(q, *pair, work_of("causal"), Scoring(0.2))[0] for pair in ((k, v), other)]
    assert bits(found[0], slice(130)) == bits(found[1], slice(130))
    assert bits(found[0]) != bits(found[1])


@everywhere
@masks
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_layout_of_keys_changes_no_bit(isa, mask, dtype, qkv):
    """Keys and values that the kernel reads where they lie, and those that it packs first."""
    q, k, v = (x.astype(dtype) for x in qkv)
    together = native(isa).attend(q, k, v, work_of(mask), Scoring(0.2))[0]
    apart = [np.repeat(x, 2, axis=2)[:, :, ::2] for x in (k, v)]
    assert bits(native(isa).attend(q, *apart, work_of(mask), Scoring(0.2))[0]) == bits(together)


@everywhere
def test_keys_may_be_cut_into_calls_at_blocks(isa, rng):
    """At head_dim 4 a block is 4096 keys: cut there, the bits are those of one call; elsewhere the result only is."""
    q, k, v = (rng.standard_normal((1, 1, n, 4), dtype=np.float32) for n in (9, 5000, 5000))
    work = meet(Mask.full().resolve(9, 5000), range(9), range(5000))

    def cut_at(key):
        carried = empty_partial(1, 1, 9, 4, np.dtype("f4"))
        for start, stop in ((0, key), (key, 5000)):
            part = work.copy()
            part[:, KEY_START], part[:, KEY_STOP] = start, stop
            native(isa).attend(q, k, v, part, Scoring(0.5), into=carried)
        return carried

    whole = native(isa).attend(q, k, v, work, Scoring(0.5))[0]
    assert bits(cut_at(4096)) == bits(whole)
    for x, y in zip(arrays(cut_at(1000)), arrays(whole), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@everywhere
def test_row_max_is_the_largest_score_and_its_weight_is_one(isa, qkv):
    q, k, v = qkv
    diagonal = meet(Mask.window(0, 0).resolve(LENGTH, LENGTH), range(LENGTH), range(LENGTH))
    found: Partial = native(isa).attend(q, k, v, diagonal, Scoring(0.2))[0]
    assert (found.row_sum == 1).all()
    assert (found.weighted_sum == v.repeat(2, 1)).all()
