"""The attention map on simulated rings: counted as integers, judged against the plain formula, on every path."""

import tracemalloc
from dataclasses import astuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding, attention, attention_map
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.problem import pose_problem
from ringmpi.core.scoring import Scoring
from ringmpi.core.slices import total_pairs
from ringmpi.errors import BackendError, ExactnessError, ShapeError
from ringmpi.passes.map_pass import COLUMNS, MapPass, map_problem
from tests.api.test_attention import DTYPES, HEADS, normal, qkv
from tests.backends.natives import BACKENDS
from tests.strategies import WHOLE_DTYPES, rings
from tests.tolerances import assert_map


def judge(q, k, mask, block, *, sinks=None, ring=None, **options):
    """The map of what `attention` gives, by the policy of tests/tolerances.py; arrays without a batch axis."""
    out = attention(q, k, k, mask=mask, sink_logits=sinks, dropout=0.3, **options)
    found = attention_map(q, k, out.log_sum_exp, block=block, mask=mask, **(ring or {}), **options)
    allowed = mask.allowed(q.shape[-2], k.shape[-2])
    assert found.pairs == allowed.sum() * q.shape[-3]
    scoring = Scoring(q.shape[-1] ** -0.5, options.get("softcap"), options.get("alibi_slopes"))
    arrays = found.map[None], found.received[None]
    assert_map(arrays, q[None], k[None], allowed, scoring, block, sink_logits=sinks)
    return found


@given(rings(), HEADS, st.integers(1, 50), st.sampled_from(BACKENDS))
def test_any_mask_on_any_ring_has_an_exact_map(ring, heads, block, backend):
    q, k, _ = qkv(*ring.pop("lengths"), heads)
    judge(q, k, ring.pop("mask"), block, ring=ring, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype, backend):
    q, k, _ = qkv(300, 300, (4, 2), 32, dtype=dtype)
    found = judge(q, k, Mask.causal(), 64, ring={"ranks": 3}, backend=backend)
    assert found.map.dtype == (np.float64 if dtype is np.float64 else np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0},
        {"alibi_slopes": np.array([0.3, 0.1, 0.0, 0.05])},
        {"softcap": 2.0, "alibi_slopes": np.array([0.3, 0.1, 0.0, 0.05])},
    ],
)
def test_scores_are_capped_and_biased(options, backend):
    q, k, _ = qkv(150, 150)
    judge(q, k, Mask.window(40, 5), 32, ring={"ranks": 4, "sharding": "striped"}, backend=backend, **options)


def test_the_sums_say_that_no_weight_is_lost():
    """Rows of the map sum to 1, and keys receive as much as there are rows that see one; a sink takes its part."""
    q, k, _ = qkv(203, 203)
    mask = Mask.documents([50, 0, 3, 150], within=Mask.window(20, 0)) & Mask.keys(10, 203)
    seen = mask.allowed(203, 203).any(1)
    found = judge(q, k, mask, 10, ring={"ranks": 3})
    rows = np.add.reduceat(seen, np.arange(0, 203, 10))
    np.testing.assert_allclose(found.map.sum(-1), np.broadcast_to(rows > 0, (4, 21)), rtol=1e-13)
    np.testing.assert_allclose(found.received.sum(-1), seen.sum(), rtol=1e-13)
    with_sinks = judge(q, k, mask, 10, sinks=np.array([0.5, -np.inf, 2, 1]), ring={"ranks": 3})
    assert (with_sinks.map[[0, 2, 3]].sum(-1)[:, rows > 0] < 1).all()
    np.testing.assert_allclose(with_sinks.received[1], found.received[1], rtol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_one_position_are_the_weights_themselves(backend):
    """q = 0: a row gives all keys that it sees the same."""
    q, k, _ = qkv(40, 30)
    mask = Mask.causal("end")
    allowed = mask.allowed(40, 30)
    out = attention(0 * q, k, k, mask=mask)
    found = attention_map(0 * q, k, out.log_sum_exp, block=1, mask=mask, ranks=4, backend=backend)
    expected = allowed / np.maximum(allowed.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(found.map, np.broadcast_to(expected, (4, 40, 30)), atol=1e-15)


def test_a_batch_axis_stays():
    q, k = normal(1, 2, 4, 60, 8), normal(2, 2, 2, 60, 8)
    out = attention(q, k, k, mask=Mask.causal())
    found = attention_map(q, k, out.log_sum_exp, block=16, mask=Mask.causal(), ranks=2)
    assert found.map.shape == (2, 4, 4, 4)
    assert found.received.shape == (2, 4, 60)
    for batch in range(2):
        alone = attention_map(q[batch], k[batch], out.log_sum_exp[batch], block=16, mask=Mask.causal(), ranks=2)
        np.testing.assert_allclose(found.map[batch], alone.map, rtol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_not_finite_reaches_what_sees_it_and_no_more(special, backend):
    q, k, _ = qkv(64, 64, (2, 1), dtype=np.float32)
    q[0, 20], k[0, 50] = special, special
    with np.errstate(all="ignore"):
        out = attention(q, k, k, mask=Mask.causal(), backend=backend)
        found = attention_map(q, k, out.log_sum_exp, block=8, mask=Mask.causal(), ranks=2, backend=backend)
    unknown = np.isnan(found.map)
    late = np.tri(8, dtype=bool) & (np.arange(8) >= 6)[:, None]  # rows 50 and on see key 50, and all keys before
    early = np.tri(8, dtype=bool) & (np.arange(8) == 2)[:, None]
    assert (unknown[0] == (late | early)).all()
    assert (unknown[1] == late).all()


def test_a_map_resolves_the_mask_of_its_forward_pass_no_more():
    """No values are known to the problem that is posed: columns for the blocks of a call take their place."""
    q, k, _ = qkv(40, 40)
    whole = Sharding.zigzag(40, 2)
    problem = pose_problem([q, k], mask=Mask.causal(), queries=whole, keys=whole, dropout=0.5, seed=3)
    assert problem.heads.value_dim == 0
    found = map_problem(problem)
    assert found.whole_mask is problem.whole_mask
    assert (found.heads.value_dim, found.scoring.dropout) == (COLUMNS, 0)


@pytest.mark.parametrize("dtype", WHOLE_DTYPES)
def test_whole_numbers_of_numpy_are_taken(dtype):
    q, k, v = qkv(140, 140)
    whole = np.dtype(dtype).type
    found = attention(q, k, v, mask=Mask.window(whole(100), whole(5)), ranks=whole(3), seed=whole(3), dropout=0.1)
    expected = attention(q, k, v, mask=Mask.window(100, 5), ranks=3, seed=3, dropout=0.1)
    assert (found.output == expected.output).all()
    assert found.meaning == expected.meaning
    maps = [attention_map(q, k, expected.log_sum_exp, mask=Mask.window(100, 5), block=n) for n in (whole(20), 20)]
    assert (maps[0].map == maps[1].map).all()


def test_a_lost_pair_is_refused(monkeypatch):
    attend = NumpyBackend.attend_backward
    monkeypatch.setattr(NumpyBackend, "attend_backward", lambda *a, **b: attend(*a, **b) - 1)
    q, k, _ = qkv(40, 40)
    with pytest.raises(ExactnessError, match="pairs"):
        attention_map(q, k, np.zeros((4, 40)), block=8, ranks=2, backend="numpy")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"block": 0}, ShapeError, "whole number >= 1"),
        ({"block": 10**30}, ShapeError, "whole number >= 1, at most 2.53"),
        ({"log_sum_exp": np.zeros((4, 39))}, ShapeError, "log_sum_exp has shape"),
        ({"log_sum_exp": np.zeros((4, 40), np.float32)}, ShapeError, "log_sum_exp is float32; expected .* float64"),
        ({"log_sum_exp": np.ma.masked_less(np.zeros((4, 40)), 1)}, ShapeError, "log_sum_exp is an array with masked"),
        ({"log_sum_exp": [0.0]}, ShapeError, "log_sum_exp is list"),
        ({"q": [1.0]}, ShapeError, "query is a list"),
        ({"k": np.zeros((4, 40, 8), np.float32)}, ShapeError, "query and key have dtypes float64, float32; all"),
        ({"k": np.zeros((1, 4, 40, 8))}, ShapeError, "query and key have 3 and 4 axes; both need"),
        ({"ranks": 0}, ShapeError, "ranks = 0"),
        ({"backend": "abacus"}, BackendError, "abacus"),
        ({"sharding": Sharding.zigzag(41, 1)}, ShapeError, "41"),
    ],
)
def test_what_does_not_fit_is_refused(changes, error, words):
    q, k, _ = qkv(40, 40)
    options = {"q": q, "k": k, "log_sum_exp": np.zeros((4, 40)), "block": 8} | changes
    with pytest.raises(error, match=words):
        attention_map(options.pop("q"), options.pop("k"), options.pop("log_sum_exp"), **options)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("other", [{"mask": Mask.full()}, {"softcap": None}, {"scale": 3.0}], ids=str)
def test_the_log_sum_exp_of_another_question_is_refused(other, ranks):
    q, k, v = qkv(40, 40)
    q *= 4
    options = {"mask": Mask.causal(), "softcap": 1.0}
    log_sum_exp = attention(q, k, v, **options).log_sum_exp
    sums = attention_map(q, k, log_sum_exp, block=8, ranks=ranks, **options).map.sum(-1)
    np.testing.assert_allclose(sums, 1)
    with pytest.raises(ShapeError, match="log_sum_exp does not belong to these .* sum to .* with the same mask"):
        attention_map(q, k, log_sum_exp, block=8, ranks=ranks, **(options | other))


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_that_of_a_few_blocks_and_not_of_the_keys(backend):
    """One column of sums for each block at hand; a column a block of the whole sequence would be 64 MiB."""
    length, block = 1 << 14, 64
    q, k, _ = qkv(length, length, (1, 1), 8, dtype=np.float32)
    mask = Mask.window(15, 0)
    out = attention(q, k, k, mask=mask, backend=backend)
    tracemalloc.start()
    found = attention_map(q, k, out.log_sum_exp, block=block, mask=mask, ranks=4, backend=backend)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.pairs == total_pairs(mask.resolve(length, length))
    assert peak < 12 << 20  # the inputs are 1 MiB, the map in float64 0.5 MiB, three times


def test_a_map_is_frozen_and_says_its_block():
    q, k, v = qkv(40, 40, dtype=ml_dtypes.bfloat16)
    found = attention_map(q, k, attention(q, k, v).log_sum_exp, block=np.int64(16))
    assert found.block == 16
    assert len(astuple(found)) == 4
    assert MapPass.stage == "map"
