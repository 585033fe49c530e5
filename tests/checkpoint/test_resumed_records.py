"""The record of rows in passes that stop and go on: its sums, or what they have become, are part of what is saved."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi import Mask, Record, Recording, Sharding
from ringmpi.core.scoring import Scoring
from tests.attempts import Run, Stop
from tests.backends.natives import ISAS
from tests.checkpoint.test_resumed_passes import DIM, HEADS, arrays_of, pose, small_calls
from tests.tolerances import assert_attention, assert_gradients, assert_record

LENGTH = 40
RECORDING = Recording(3)
MASK = Mask.window(25, 2)
calls = st.tuples(*[st.integers(0, 12)] * 4)


def problem_on(arrays, ranks, name="zigzag", schedule="ring"):
    sharding = getattr(Sharding, name)(LENGTH, ranks)
    return pose(arrays, MASK, sharding, sharding, schedule, record=RECORDING)


@settings(max_examples=15)
@given(
    calls,
    st.sampled_from(["forward", "backward"]),
    st.integers(0, 2),
    st.sampled_from(["numpy", *(["native"] if ISAS else [])]),
    st.sampled_from(["contiguous", "zigzag", "striped"]),
)
def test_the_same_layout_gives_the_same_bits(stops, stage, step, backend, name):
    arrays = arrays_of(LENGTH, LENGTH, np.float32)
    problem = problem_on(arrays, 3, name)
    whole = Run(arrays, small_calls(backend, 20), "keys").attempt(problem)
    run = Run(arrays, small_calls(backend, 20), "keys")
    assert run.attempt(problem, Stop(stage, stops, step)) is None
    for expected, array in zip(whole, run.attempt(problem), strict=True):
        assert array.tobytes() == expected.tobytes()


@settings(max_examples=15)
@given(calls, st.sampled_from(["forward", "backward"]), st.integers(1, 4))
def test_other_ranks_take_over_and_each_pair_is_in_the_record_once(stops, stage, ranks):
    arrays = arrays_of(LENGTH, LENGTH)
    run = Run(arrays, small_calls("numpy", 20), "keys")
    assert run.attempt(problem_on(arrays, 3), Stop(stage, stops, 1)) is None
    output, log_sum_exp, *rest = run.attempt(problem_on(arrays, ranks, "contiguous", "bidirectional"))
    allowed, scoring = MASK.allowed(LENGTH, LENGTH), Scoring(DIM**-0.5)
    assert_attention((output, log_sum_exp), *arrays[1:], allowed, scoring)
    assert_record(Record(*rest[:5]), *arrays[1:3], allowed, scoring, RECORDING)
    assert_gradients((*rest[5:], None, None), *arrays, allowed, scoring)
    assert run.pairs["backward"] == MASK.pairs(LENGTH, LENGTH) * HEADS[0]


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_the_state_names_the_record(stage):
    arrays = arrays_of(LENGTH, LENGTH)
    run = Run(arrays, small_calls("numpy", 20), "keys")
    run.attempt(problem_on(arrays, 2), Stop(stage, (1, 1, 1, 1), 0))
    (held, *_) = run.files.values()
    found = {name for name in held.arrays if name.startswith("record/")}
    sums = {"record/score_sum", "record/distance_sum", "record/sink_sum", "record/top_key"}
    results = {f"record/{name}" for name in ("entropy", "distance", "top_score", "top_key", "sinks")}
    assert found == (sums if stage == "forward" else results)
