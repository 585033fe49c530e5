"""What goes wrong in another thread of a kernel call goes wrong in the call."""

import threading

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.partial import empty_partial
from ringmpi.core.scoring import Scoring
from tests.backends.dense import inputs
from tests.backends.meetings import meet_all

LENGTH, HEADS = 40, 4
MEETING = meet_all(Mask.causal(), (LENGTH, LENGTH), [range(LENGTH)], [range(LENGTH)])


@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError])
def test_a_fault_in_another_thread_is_raised_by_the_call_and_the_next_call_is_well(rng, monkeypatch, error):
    kernel, share = NumpyBackend(threads=3), NumpyBackend._run_share
    q, k, v = inputs(rng, MEETING, (1, HEADS, 1, 8, 8))

    def failing(self, *arguments):
        if threading.current_thread() is not threading.main_thread():
            raise error("one thread alone")
        return share(self, *arguments)

    def pairs():
        partial = empty_partial(1, HEADS, LENGTH, 8, np.dtype("f4"))
        return kernel.attend(q, k, v, MEETING.work, Scoring(0.1), into=partial)[1]

    with monkeypatch.context() as patched:
        patched.setattr(NumpyBackend, "_run_share", failing)
        with pytest.raises(error, match="one thread alone"):
            pairs()
    assert pairs() == HEADS * LENGTH * (LENGTH + 1) // 2
