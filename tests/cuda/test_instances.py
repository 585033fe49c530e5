"""Every kernel gives the attention, and the gradients, of the plain formula: all dtypes, all widths."""

import numpy as np
import pytest

from ringmpi.backends.cuda.instances import every_instance
from ringmpi.core.dtypes import SUPPORTED
from ringmpi.core.gradients import Gradients
from tests.cuda.cases import EVERY_CASE, PLAIN_CASES, Case, carried, gradients, long_cases, saved_of
from tests.cuda.emulated import EMULATED, emulated
from tests.cuda.judging import backward_ratio, forward_ratio

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")
STEPS = 3


@pytest.mark.parametrize("case", EVERY_CASE + PLAIN_CASES, ids=str)
def test_output_and_gradients_are_those_of_the_plain_formula(case, record_property):
    backend = emulated(rounded=case.rounded)
    partial, pairs = carried(backend, case, STEPS)
    assert pairs == 2 * case.meeting().allowed.sum()
    ratio = forward_ratio(case, partial)
    record_property("worst", ("forward", str(case.dtype), ratio))
    assert ratio <= 1
    into, counted = gradients(backend, case, partial)
    assert counted == pairs
    ratio = backward_ratio(case, into)
    record_property("worst", ("backward", str(case.dtype), ratio))
    assert ratio <= 1


@pytest.mark.parametrize("case", [case for width in (32, 192) for case in long_cases(width, 1024)], ids=str)
def test_errors_do_not_grow_with_the_number_of_keys_or_rows(case):
    """Tensor cores cut sums off, and the emulated ones do: what stays in them falls behind with each tile."""
    partial, _ = carried(emulated(), case, 1)
    assert forward_ratio(case, partial) <= 1
    if case.backward:
        assert backward_ratio(case, gradients(emulated(), case, partial)[0]) <= 1


@pytest.mark.parametrize("case", PLAIN_CASES, ids=str)
def test_gradients_of_values_alone_have_the_bits_that_they_have_among_all(case):
    """As the map pass asks for them, of kernels with and without room for two sums."""
    q, k, v, grad_output = case.inputs()
    partial, pairs = carried(emulated(), case, 1)
    whole, _ = gradients(emulated(), case, partial)
    alone = Gradients(query=None, key=None, value=np.zeros(v.shape, case.sums), slope=np.zeros(q.shape[1]))
    saved, work = saved_of(partial, grad_output, case.dtype), case.meeting().work
    assert emulated().attend_backward(q, k, v, saved, work, case.scoring, into=alone) == pairs
    assert alone.value.tobytes() == whole.value.tobytes()


def test_every_instance_is_met():
    assert {instance for case in EVERY_CASE for instance in case.instances()} == set(every_instance())


@pytest.mark.parametrize("dtype", SUPPORTED, ids=str)
def test_errors_do_not_grow_over_sixteen_ring_steps(dtype, record_property):
    """Sixteen calls that carry sums along keep to the bound of one call, forward and backward."""
    case = Case(dtype, 64, plain=True)
    partial, pairs = carried(emulated(), case, 16)
    into, counted = gradients(emulated(), case, partial, steps=16)
    assert counted == pairs == 2 * case.meeting().allowed.sum()
    ratio = max(forward_ratio(case, partial), backward_ratio(case, into))
    record_property("sixteen", ratio)
    assert ratio <= 1
