from dataclasses import replace

import numpy as np
import pytest

from tests.storage.samples import make_account


def test_overlap_is_the_part_of_the_flights_that_ranks_did_not_wait():
    timeline = replace(
        make_account(2, 3).timeline,
        flight_seconds=np.array([[4.0, 2.0, 0.0], [4.0, 0.0, 0.0]]),
        wait_seconds=np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]),
    )
    assert timeline.overlap(0) == 0.5
    assert timeline.overlap(1) == 0
    assert timeline.overlap(2) is None  # nothing was under way
    assert timeline.overlap() == pytest.approx(0.4)


def test_a_clock_that_sees_more_waiting_than_flight_gives_no_negative_overlap():
    timeline = make_account(1, 1).timeline
    assert replace(timeline, flight_seconds=np.ones((1, 1)), wait_seconds=np.full((1, 1), 1.01)).overlap() == 0
