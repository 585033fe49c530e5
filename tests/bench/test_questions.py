"""What contenders are asked: without ringmpi's own masks and dtypes, and yet the same."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ringmpi.bench.hard import HARD
from ringmpi.bench.peers.own import mask_of
from ringmpi.bench.questions import Case, allowed, check_mask, parse_shape, rounded

ROOT = Path(__file__).parents[2]
MASKS = ["full", "causal", "causal-end", "window:0", "window:3", "hole:4,2", "hole:0,0"]


@pytest.mark.parametrize(("mask", "lengths"), [*product(MASKS, [(7, 7), (7, 5), (5, 9)]), ("documents:4", (9, 9))])
def test_words_mean_the_mask_that_ringmpi_is_given(mask, lengths):
    assert (mask_of(mask, *lengths).allowed(*lengths) == allowed(mask, *lengths)).all()


def test_documents_by_their_lengths():
    mask = "lengths:3+2+3/4+0+4"
    assert (mask_of(mask, 8, 8).allowed(8, 8) == allowed(mask, 8, 8)).all()
    assert not allowed(mask, 8, 8)[3:5].any()


@pytest.mark.parametrize(("dtype", "type_"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
def test_16_bit_numbers_are_rounded_as_their_dtype_rounds(rng, dtype, type_):
    x = np.concatenate([rng.standard_normal(1000, np.float32), [0.0, -0.0, 1.00390625, 1.01171875, 3e4, np.nan]])
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32).astype(type_).astype(np.float32)
    np.testing.assert_array_equal(rounded(x.astype(np.float32), dtype), expected)


def test_shapes_are_read_and_written_alike():
    assert parse_shape("8x4096x64") == (8, 8, 4096, 64)
    assert parse_shape(" 8/2x10x3") == (8, 2, 10, 3)
    assert Case(*parse_shape("8/2x10x3")).shape == "8/2x10x3"
    assert Case(*parse_shape("8x10x3")).shape == "8x10x3"


@pytest.mark.parametrize("shape", ["8x64", "8/3x10x4", "0x1x1", "8x4096x64x1", "ax1x1"])
def test_shapes_that_cannot_be_are_refused(shape):
    with pytest.raises(ValueError, match="expected HEADSxLENGTHxDIM"):
        parse_shape(shape)


@pytest.mark.parametrize("mask", ["causl", "window:", "window:-1", "documents:0", "hole:1,1", "lengths:1/1"])
def test_masks_that_cannot_be_are_refused(mask):
    with pytest.raises(ValueError, match="choose full, causal"):
        check_mask(mask)


def test_work_is_counted_by_the_pairs_of_the_mask():
    case = Case(8, 2, 100, 64, "causal")
    assert case.flops(5050) == 4 * 8 * 5050 * 64
    assert Case(8, 2, 100, 64, "causal", backward=True).flops(5050) == 2.5 * case.flops(5050)


def test_arrays_are_the_same_each_time_and_for_each_dtype_what_it_can_hold():
    one, other = (Case(4, 2, 9, 8, dtype="bfloat16").question() for _ in range(2))
    assert (one.q.shape, one.k.shape, one.grad_output.shape) == ((4, 9, 8), (2, 9, 8), (4, 9, 8))
    assert (one.v == other.v).all()
    assert (one.q == one.q.astype(ml_dtypes.bfloat16).astype(np.float32)).all()


@pytest.mark.parametrize("name", HARD)
def test_hard_questions_fit_their_masks(name):
    question = HARD[name].question()
    assert question.allowed().shape == question.lengths
    assert question.q.dtype == (np.float64 if question.dtype == "float64" else np.float32)


def test_children_need_numpy_alone():
    program = (
        "import sys\nfor name in ('mpi4py', 'h5py', 'pydantic', 'click', 'rich', 'ml_dtypes', 'threadpoolctl'):\n"
        "    sys.modules[name] = None\nimport ringmpi.bench.worker, ringmpi.bench.peers.textbook"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
