"""What may be asked for after the forward pass, and what is refused by name."""

import numpy as np
import pytest

from ringmpi import Mask, Sharding
from ringmpi.core.late_recording import LateRecording
from ringmpi.core.problem import pose_problem
from ringmpi.errors import ShapeError

ARRAYS = [np.zeros((4, 60, 8), np.float32), *[np.zeros((2, 90, 8), np.float32)] * 2]


def problem(**options):
    queries, keys = (Sharding.contiguous(length, 2, block=30) for length in (60, 90))
    return pose_problem(ARRAYS, mask=Mask.full(), queries=queries, keys=keys, **options)


@pytest.mark.parametrize(
    ("asked", "has_map_pass"),
    [
        (LateRecording(map_block=7), True),
        (LateRecording(received=True), True),
        (LateRecording(top_rows=np.array([0, 59]), top_key_count=3), False),
        (LateRecording(map_block=7, received=True, top_rows=np.array([0, 59]), top_key_count=200), True),
    ],
)
def test_a_few_rows_need_no_pass(asked, has_map_pass):
    asked.check(problem())
    assert asked.has_map_pass == has_map_pass


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (LateRecording(map_block=0), "whole number >= 1"),
        (LateRecording(top_rows=np.array([60]), top_key_count=1), "there are 60 queries"),
        (LateRecording(top_rows=np.array([5]), top_key_count=0), "top keys = 0"),
    ],
)
def test_what_does_not_fit_the_problem_is_refused(asked, words):
    with pytest.raises(ShapeError, match=words):
        asked.check(problem())


def test_equal_bits_are_not_promised_for_sums_over_the_keys_of_all_ranks():
    with pytest.raises(ShapeError, match=r"\[ring\] reproducible asks for equal bits"):
        LateRecording(received=True).check(problem(reproducible=True))


def test_runs_that_ask_for_other_things_do_not_go_on_with_each_other():
    both = [
        LateRecording(map_block=7),
        LateRecording(map_block=8),
        LateRecording(map_block=7, received=True),
        LateRecording(),
    ]
    both += [
        LateRecording(top_rows=np.array(rows), top_key_count=count) for rows, count in (([1], 2), ([2], 2), ([1], 3))
    ]
    identities = [str(asked.identity()) for asked in both]
    assert len(set(identities)) == len(identities)
