"""The contract of bits: a row's result depends on the row and its keys, not on where and with what it is computed."""

import numpy as np
import pytest

from ringmpi.core.dtypes import SUPPORTED
from ringmpi.core.partial import empty_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import KEY_START, KEY_STOP, ROW_START, ROW_STOP
from tests.backends.dense import arrays
from tests.cuda.cases import EXTRAS, KEYS, ROWS, Case
from tests.cuda.emulated import EMULATED, emulated

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")
everywhere = pytest.mark.parametrize("dtype", SUPPORTED, ids=str)


def bits(partial, rows=slice(None)):
    return [np.ascontiguousarray(x[:, :, rows]).tobytes() for x in arrays(partial)]


def attend(case, work, scoring, into=None):
    return emulated().attend(*case.inputs()[:3], work, scoring, into=into)[0]


@everywhere
@pytest.mark.parametrize("scoring", [Scoring(0.2), EXTRAS], ids=["plain", "everything"])
def test_rows_may_be_cut_into_calls_anywhere(dtype, scoring):
    case = Case(dtype, 64)
    work = case.meeting().work
    whole = attend(case, work, scoring)
    into = empty_partial(1, 2, ROWS, 48, whole.row_max.dtype)
    for start, stop in ((0, 1), (1, 77), (77, ROWS)):
        part = work.copy()
        part[:, ROW_START], part[:, ROW_STOP] = (x.clip(start, stop) for x in (part[:, ROW_START], part[:, ROW_STOP]))
        attend(case, part, scoring, into)
    assert bits(into) == bits(whole)


@everywhere
def test_keys_may_be_cut_into_calls_at_tiles(dtype):
    case = Case(dtype, 64)
    work = case.meeting().work[:1].copy()
    whole, into = attend(case, work, Scoring(0.2)), None
    for start, stop in ((0, 128), (128, KEYS)):
        part = work.copy()
        part[:, KEY_START], part[:, KEY_STOP] = (x.clip(start, stop) for x in (part[:, KEY_START], part[:, KEY_STOP]))
        into = attend(case, part, Scoring(0.2), into)
    assert bits(into) == bits(whole)


@everywhere
def test_the_place_of_a_row_changes_no_bit(dtype):
    case = Case(dtype, 64)
    q, k, v, _ = case.inputs()
    work = case.meeting().work
    below = np.concatenate([np.full_like(q[:, :, :37], 7), q], axis=2)
    shifted = work.copy()
    shifted[:, [ROW_START, ROW_STOP]] += 37
    shifted[:, 4] -= 37  # the origin: rows keep their positions
    found, _ = emulated().attend(below, k, v, shifted, Scoring(0.2))
    assert bits(found, slice(37, None)) == bits(attend(case, work, Scoring(0.2)))


@everywhere
def test_kernels_with_and_without_extras_give_the_same_bits(dtype):
    case = Case(dtype, 64)
    q, k, v, _ = case.inputs()
    work = case.meeting().work
    plain, knowing = (emulated().attend(q, k, v, work, Scoring(0.2), finite=x)[0] for x in (True, False))
    assert bits(plain) == bits(knowing)
