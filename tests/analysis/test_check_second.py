"""What was recorded after the forward pass, verified: each fault is found by the check that is made for it."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi import Mask, attention_map
from ringmpi.analysis.verify import verify_file
from ringmpi.core.problem import pose_problem
from ringmpi.core.sharding import Sharding
from ringmpi.core.top_keys import ChosenRows, best_keys
from ringmpi.storage.record_layout import MAP, RECEIVED, TOP_KEYS, TOP_ROWS, TOP_WEIGHTS
from ringmpi.storage.records import PassTimeline, SecondRecord
from ringmpi.storage.second_pass import write_second
from tests.analysis.written import LENGTH, Case, write_run

BLOCK, ROWS, COUNT = 7, [0, 13, 59], 5
RECORD = f"[record]\nrows = false\nmap_block = {BLOCK}\nreceived = true\ntop_rows = {ROWS}\ntop_keys = {COUNT}\n"
SINKS = [0.5, 0.0, 2.0, -1.0]


def second_of(path, sinks):
    """By the product itself: what is tried here is how it is judged."""
    with h5py.File(path) as file:
        log_sum_exp = file["log_sum_exp"][...]
    with h5py.File(path.with_name("input.h5")) as file:
        q, k = file["q"][...], file["k"][...]
    found = attention_map(q, k, log_sum_exp, block=BLOCK, mask=Mask.causal(), scale=0.5, backend="numpy")
    whole = Sharding.contiguous(LENGTH, 1)
    problem = pose_problem((q, k, k), mask=Mask.causal(), queries=whole, keys=whole, scale=0.5)
    best = best_keys(problem, 0, ChosenRows(np.array(ROWS), q[None][:, :, ROWS]), k[None], COUNT)
    weights = best.weights(log_sum_exp[None][:, :, ROWS]).astype(np.float32)
    arrays = {MAP: found.map, RECEIVED: found.received, TOP_ROWS: np.array(ROWS)}
    arrays |= {TOP_KEYS: best.keys[0], TOP_WEIGHTS: weights[0]}
    steps = np.zeros((3, 3))
    counts = np.zeros((3, 3), np.int64)
    counts[0, 0] = found.pairs
    timeline = PassTimeline(steps, steps, steps, counts * 0, counts * 0, counts)
    return SecondRecord(timeline, found.pairs, found.pairs, arrays, BLOCK)


def failed(tmp_path, spoil=lambda second: second, *, sinks=None, rows=None):
    """Names of the checks that fail on an output whose arrays, digests with them, `spoil` has made others."""
    logits = f"sink_logits = {sinks}\n" if sinks else ""
    path = write_run(tmp_path, Case(attention=f'mask = "causal"\nscale = 0.5\n{logits}{RECORD}'))
    with h5py.File(path, "r+") as file:
        write_second(file, spoil(second_of(path, sinks)))
    certificate = verify_file(path, rows=rows)
    names = [check.name for check in certificate.checks]
    for name in (MAP, RECEIVED, TOP_KEYS, TOP_WEIGHTS):
        assert f"rows of {name}" in names
    return {check.name for check in certificate.checks if not check.passed}


@pytest.mark.parametrize("sinks", [None, SINKS])
@pytest.mark.parametrize("rows", [None, 1, 20])
def test_what_is_right_passes(tmp_path, sinks, rows):
    assert failed(tmp_path, sinks=sinks, rows=rows) == set()


def changed(name, change):
    """The same with one array changed."""

    def spoil(second):
        array = second.arrays[name].copy()
        change(array)
        return replace(second, arrays=second.arrays | {name: array})

    return spoil


def swap(array, axis):
    first, second = (np.take(array, n, axis).copy() for n in (0, 1))
    at = [slice(None)] * array.ndim
    for n, values in ((0, second), (1, first)):
        at[axis] = n
        array[tuple(at)] = values


def scale(array):
    array *= np.float32(1.001)


def lose(array):
    """The weight of one pair of 1,830, in one head."""
    array[2, 8, 0] -= np.float32(1e-3)


@pytest.mark.parametrize(
    ("name", "change", "checks"),
    [
        (MAP, lambda a: swap(a[:, 5:], 2), {"rows of /record/map", "sums of /record/map and /record/received"}),
        (MAP, lambda a: swap(a, 1), {"rows of /record/map"}),
        (MAP, scale, {"rows of /record/map", "sums of /record/map", "sums of /record/map and /record/received"}),
        (MAP, lose, {"rows of /record/map", "sums of /record/map", "sums of /record/map and /record/received"}),
        (RECEIVED, scale, {"sums of /record/received", "sums of /record/map and /record/received"}),
        (
            RECEIVED,
            lambda a: swap(a[:, 6:], 1),
            {"rows of /record/received", "sums of /record/map and /record/received"},
        ),
        (RECEIVED, lambda a: swap(a, 1), {"rows of /record/received"}),
        (TOP_WEIGHTS, scale, {"rows of /record/top_weights"}),
        (TOP_KEYS, lambda a: swap(a[:, 1:, 3:], 2), {"rows of /record/top_weights"}),
        (TOP_KEYS, lambda a: a[:, 2].fill(-1), {"rows of /record/top_weights", "rows of /record/top_keys"}),
        (TOP_ROWS, lambda a: a.fill(20), {"rows of /record/top_weights"}),
    ],
)
def test_each_fault_is_found(tmp_path, name, change, checks):
    found = failed(tmp_path, changed(name, change))
    assert checks <= found


def test_a_key_that_is_left_out_is_found(tmp_path):
    """Row 59 without its best key: all weights that are named are right."""

    def spoil(second):
        keys, weights = second.arrays[TOP_KEYS].copy(), second.arrays[TOP_WEIGHTS].copy()
        for array, missing in ((keys, -1), (weights, 0)):
            array[:, 2] = np.concatenate([array[:, 2, 1:], np.full((4, 1), missing)], 1)
        return replace(second, arrays=second.arrays | {TOP_KEYS: keys, TOP_WEIGHTS: weights})

    assert failed(tmp_path, spoil) == {"rows of /record/top_keys"}


@pytest.mark.parametrize("field", ["pairs_asked", "pairs_attended"])
def test_a_lost_pair_is_found(tmp_path, field):
    short = failed(tmp_path, lambda second: replace(second, **{field: second.pairs_asked - 1}))
    assert short == {"pairs of the map pass"}


def test_a_changed_bit_is_found_by_its_digest(tmp_path):
    path = write_run(tmp_path, Case(attention=f'mask = "causal"\nscale = 0.5\n{RECORD}'))
    with h5py.File(path, "r+") as file:
        write_second(file, second_of(path, None))
        for name in (MAP, RECEIVED, TOP_ROWS, TOP_KEYS, TOP_WEIGHTS):
            digest = file[name].attrs["blake2b"]
            file[name].attrs["blake2b"] = digest[::-1]
    names = {check.name for check in verify_file(path, rows=1).checks if not check.passed}
    assert names == {f"digest of {name}" for name in (MAP, RECEIVED, TOP_ROWS, TOP_KEYS, TOP_WEIGHTS)}
