"""`attention(..., record=True)`: what rows say of their weights, on any ring."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Record, Recording, Sharding, attention
from ringmpi.core.record import QUANTITIES
from ringmpi.core.scoring import Scoring
from ringmpi.errors import BackendError, ShapeError
from tests.backends.natives import BACKENDS, ISAS
from tests.strategies import rings
from tests.tolerances import assert_record

HEADS = (4, 2)
SCORES = {"softcap": 2.0, "alibi_slopes": np.array([0.1, 0.3, 0.0, 0.01])}
SINKS = np.array([0.5, -np.inf, 2.0, -1.0])


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(query_length, key_length, dtype=np.float32, batch=()):
    heads, shared = HEADS
    return (
        normal(1, *batch, heads, query_length, 16, dtype=dtype),
        normal(2, *batch, shared, key_length, 16, dtype=dtype),
        normal(3, *batch, shared, key_length, 8, dtype=dtype),
    )


def judge(found, q, k, mask, recording, scores=None, sink_logits=None):
    scores = scores or {}
    scoring = Scoring(1 / 4, scores.get("softcap"), scores.get("alibi_slopes"))
    record = Record(*(array[None] for array in found.record.arrays)) if q.ndim == 3 else found.record
    q, k = (array[None] if array.ndim == 3 else array for array in (q, k))
    allowed = mask.allowed(q.shape[2], k.shape[2])
    assert_record(record, q, k, allowed, scoring, recording, sink_logits=sink_logits)


@given(rings(), st.booleans(), st.integers(1, 9))
def test_any_mask_on_any_ring_is_recorded(ring, with_scores, sinks):
    q, k, v = qkv(*ring.pop("lengths"))
    recording, options = Recording(sinks), SCORES | {"sink_logits": SINKS, "dropout": 0.3} if with_scores else {}
    found = attention(q, k, v, record=recording, **options, **ring)
    judge(found, q, k, ring["mask"], recording, SCORES if with_scores else None, options.get("sink_logits"))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_dtype_loses_accuracy_from_1_to_32_ranks_and_no_bit_of_the_output_changes(dtype, backend):
    q, k, v = qkv(193, 193, dtype)
    for ranks in (1, 3, 32):
        options = {"mask": Mask.window(60, 3), "ranks": ranks, "backend": backend, "dropout": 0.2}
        found, bare = attention(q, k, v, record=True, **options), attention(q, k, v, **options)
        judge(found, q, k, options["mask"], Recording())
        assert found.output.tobytes() == bare.output.tobytes()
        assert found.log_sum_exp.tobytes() == bare.log_sum_exp.tobytes()
        assert bare.record is None


def test_every_sharding_and_schedule_gives_the_same_top_keys():
    q, k, v = qkv(211, 211, np.float64)
    expected = attention(q, k, v, mask=Mask.causal(), record=True).record
    for sharding in ("contiguous", "zigzag", "striped", "balanced"):
        for schedule in ("ring", "bidirectional", "all-gather", "broadcast"):
            options = {"ranks": 3, "sharding": sharding, "schedule": schedule}
            found = attention(q, k, v, mask=Mask.causal(), record=True, **options)
            judge(found, q, k, Mask.causal(), Recording())
            np.testing.assert_array_equal(found.record.top_key, expected.top_key)


def test_arrays_with_a_batch_axis_have_records_with_one():
    q, k, v = qkv(40, 40, batch=(2,))
    found = attention(q, k, v, mask=Mask.causal(), ranks=2, record=True)
    assert found.record.entropy.shape == (2, 4, 40)
    judge(found, q, k, Mask.causal(), Recording())


def test_rows_without_keys_and_sequences_without_positions():
    q, k, v = qkv(6, 0)
    found = attention(q, k, v, ranks=2, record=True).record
    assert (found.top_key == -1).all()
    assert np.isneginf(found.top_score).all()
    assert attention(*qkv(0, 5), record=True).record.entropy.shape == (4, 0)


@pytest.mark.parametrize("isa", ISAS)
def test_reproducible_records_have_the_same_bits_on_any_number_of_ranks(isa, monkeypatch):
    monkeypatch.setenv("RINGMPI_NATIVE", isa)
    q, k, v = qkv(293, 293)
    mask, found = Mask.window(150, 2) | Mask.sinks(3), set()
    for ranks, name in zip((1, 2, 3, 4, 6, 8), ("zigzag", "contiguous", "striped") * 2, strict=True):
        sharding = getattr(Sharding, name)(293, ranks, block=36)
        options = SCORES | {"sink_logits": SINKS, "dropout": 0.3, "reproducible": True, "backend": "native"}
        record = attention(q, k, v, mask=mask, ranks=ranks, sharding=sharding, record=True, **options).record
        found.add(tuple(array.tobytes() for array in record.arrays))
    assert len(found) == 1


def test_what_is_no_recording_is_refused():
    with pytest.raises(ShapeError, match=r"record is 4; it must be True, False, or a Recording: Recording\(sinks=4\)"):
        attention(*qkv(3, 3), record=4)
    with pytest.raises(ShapeError, match="record is None"):
        attention(*qkv(3, 3), record=None)


@pytest.mark.parametrize("sinks", [0, -1, True, 1.5, None, (1 << 53) + 1, 1 << 63, 10**30])
def test_what_counts_no_keys_is_refused(sinks):
    with pytest.raises(ShapeError, match="whole number of keys >= 1, at most 2.53"):
        Recording(sinks=sinks)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sinks", [np.uint8(200), 1 << 53])
def test_more_first_keys_than_there_are_hold_all_the_weight(sinks, backend):
    record = attention(*qkv(6, 6), record=Recording(sinks), backend=backend).record
    assert record.sinks == pytest.approx(1)


def test_a_backend_that_does_not_record_is_refused(monkeypatch):
    monkeypatch.setattr("ringmpi.backends.numpy.attend.NumpyBackend.records", False)
    with pytest.raises(BackendError, match='backend "numpy" does not record them'):
        attention(*qkv(3, 3), record=True, backend="numpy")
    assert attention(*qkv(3, 3), backend="numpy").record is None


def test_quantities_are_in_the_order_of_the_class():
    record = attention(*qkv(3, 3), record=True).record
    for name, array in zip(QUANTITIES, record.arrays, strict=True):
        assert getattr(record, name) is array
