"""Every kernel gives the attention, and the gradients, of the plain formula: all dtypes, all widths."""

import numpy as np
import pytest

from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.gradients import Gradients
from ringmpi.core.partial import empty_partial, finalize
from ringmpi.core.reference import dense_attention
from ringmpi.core.reference_backward import dense_attention_backward
from ringmpi.core.tolerance import finite_scale
from ringmpi.core.work import KEY_START, KEY_STOP
from tests.backends.dense import assert_attended
from tests.backends.test_attend_backward import assert_of
from tests.cuda.cases import EVERY_CASE, KEYS, Case, gradients
from tests.cuda.emulated import EMULATED, emulated
from tests.tolerances import assert_log_sum_exp_within, assert_within_rounded, gradient_scales

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")
STEPS = 4


def carried(case):
    """(partial, pairs) of the case, its keys in some calls, as ring steps bring them."""
    q, k, v, _ = case.inputs()
    meeting = case.meeting()
    partial, pairs = empty_partial(*q.shape[:3], v.shape[3], accumulate_dtype(case.dtype)), 0
    for start, stop in zip(range(0, KEYS, KEYS // STEPS), range(KEYS // STEPS, 2 * KEYS, KEYS // STEPS), strict=False):
        work = meeting.work.copy()
        work[:, KEY_START], work[:, KEY_STOP] = (
            work[:, KEY_START].clip(start, stop),
            work[:, KEY_STOP].clip(start, stop),
        )
        pairs += emulated(rounded=case.rounded).attend(q, k, v, work, case.scoring, into=partial)[1]
    return partial, pairs


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_output_and_gradients_are_those_of_the_plain_formula(case):
    q, k, v, grad_output = case.inputs()
    meeting = case.meeting()
    partial, pairs = carried(case)
    assert pairs == 2 * meeting.allowed.sum()
    into, counted = gradients(emulated(rounded=case.rounded), case, meeting, copy(partial))
    assert counted == pairs
    if case.rounded:
        return assert_rounded(case, partial, into)
    if not case.scoring.dropout:
        assert_attended(copy(partial), q, k, v, meeting, case.scoring)
    else:
        assert_output(case, copy(partial))
    narrow = [x.astype(case.dtype) for x in (into.query, into.key, into.value)]
    return assert_of(Gradients(*narrow, into.slope), grad_output, (q, k, v), meeting, case.scoring)


def copy(partial):
    return type(partial)(partial.row_max.copy(), partial.row_sum.copy(), partial.weighted_sum.copy())


def assert_output(case, partial):
    q, k, v, _ = case.inputs()
    wide, narrow = wide_dtype(case.dtype), accumulate_dtype(case.dtype)
    naive, reference = (dense_attention(q, k, v, case.meeting().allowed, case.scoring, dtype=x) for x in (narrow, wide))
    output, log_sum_exp = finalize(partial, narrow)
    assert_within_rounded(output, naive[0], reference[0], finite_scale(v), narrow)
    assert_log_sum_exp_within(log_sum_exp, naive[1], reference[1])


def assert_rounded(case, partial, into):
    q, k, v, grad_output = case.inputs()
    allowed = case.meeting().allowed
    dtypes = accumulate_dtype(case.dtype), wide_dtype(case.dtype)
    naive, reference = (dense_attention(q, k, v, allowed, case.scoring, dtype=dtype) for dtype in dtypes)
    output, log_sum_exp = finalize(copy(partial), dtypes[0])
    assert_within_rounded(output, naive[0], reference[0], finite_scale(v), case.dtype)
    assert_log_sum_exp_within(log_sum_exp, naive[1], reference[1])
    own_output = naive[0].astype(case.dtype)
    near = dense_attention_backward(grad_output, q, k, v, allowed, case.scoring, dtype=dtypes[0], output=own_output)
    exact = dense_attention_backward(grad_output, q, k, v, allowed, case.scoring, dtype=dtypes[1])
    scales = gradient_scales(grad_output, q, k, v, allowed, case.scoring)
    for name in ("query", "key", "value"):
        found, scale = getattr(into, name), float(getattr(scales, name))
        assert_within_rounded(found, getattr(near, name), getattr(exact, name), scale, case.dtype)


def test_errors_do_not_grow_over_ring_steps():
    """Sixteen calls that carry the Partial are as exact as one call."""
    case = Case(np.dtype(np.float16), (64, 64), extras=False)
    q, k, v, _ = case.inputs()
    meeting, rows = case.meeting(), case.meeting().work
    carried_on = empty_partial(*q.shape[:3], v.shape[3], np.dtype(np.float32))
    for start in range(0, KEYS, 11):
        work = rows.copy()
        work[:, KEY_START], work[:, KEY_STOP] = (
            x.clip(start, start + 11) for x in (work[:, KEY_START], work[:, KEY_STOP])
        )
        emulated().attend(q, k, v, work, case.scoring, into=carried_on)
    assert_attended(carried_on, q, k, v, meeting, case.scoring)
