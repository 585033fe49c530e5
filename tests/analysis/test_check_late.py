"""What was recorded after the forward pass, verified: each fault is found by the check that is made for it."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi import Mask, attention_map
from ringmpi.analysis.certify import certify_file
from ringmpi.analysis.verify import verify_file
from ringmpi.core.problem import pose_problem
from ringmpi.core.sharding import Sharding
from ringmpi.core.top_keys import ChosenRows, top_keys_of
from ringmpi.storage.account import LateRecord, PassTimeline
from ringmpi.storage.late_record import write_late_record
from ringmpi.storage.record_layout import RECEIVED, RECORDED_MAP, TOP_KEYS, TOP_ROWS, TOP_WEIGHTS
from tests.analysis.written import LENGTH, Case, write_run

BLOCK, ROWS, COUNT = 7, [0, 13, 59], 5
RECORD = f"[record]\nrows = false\nmap_block = {BLOCK}\nreceived = true\ntop_rows = {ROWS}\ntop_keys = {COUNT}\n"
SINKS = [0.5, 0.0, 2.0, -1.0]


def late_record_of(path, sinks, rows=ROWS):
    """By the product itself: what is tried here is how it is judged."""
    with h5py.File(path) as file:
        log_sum_exp = file["log_sum_exp"][...]
    with h5py.File(path.with_name("input.h5")) as file:
        q, k = file["q"][...], file["k"][...]
    found = attention_map(q, k, log_sum_exp, block=BLOCK, mask=Mask.causal(), scale=0.5, backend="numpy")
    whole = Sharding.contiguous(LENGTH, 1)
    problem = pose_problem((q, k, k), mask=Mask.causal(), queries=whole, keys=whole, scale=0.5)
    best = top_keys_of(problem, 0, ChosenRows(np.array(rows), q[None][:, :, rows]), k[None], COUNT)
    weights = best.weights(log_sum_exp[None][:, :, rows]).astype(np.float32)
    arrays = {RECORDED_MAP: found.map, RECEIVED: found.received, TOP_ROWS: np.array(rows)}
    arrays |= {TOP_KEYS: best.weighed(log_sum_exp[None][:, :, rows])[0], TOP_WEIGHTS: weights[0]}
    steps = np.zeros((3, 3))
    counts = np.zeros((3, 3), np.int64)
    counts[0, 0] = found.pairs
    timeline = PassTimeline(steps, steps, steps, counts * 0, counts * 0, counts)
    return LateRecord(timeline, found.pairs, found.pairs, arrays, BLOCK, LENGTH)


def failed(tmp_path, spoil=lambda late: late, *, sinks=None, rows=None, **case):
    """Names of the checks that fail on an output whose arrays, digests with them, `spoil` has made others."""
    logits = f"sink_logits = {sinks}\n" if sinks else ""
    path = write_run(tmp_path, Case(attention=f'mask = "causal"\nscale = 0.5\n{logits}{RECORD}', **case))
    with h5py.File(path, "r+") as file, np.errstate(invalid="ignore"):
        write_late_record(file, spoil(late_record_of(path, sinks)))
    certificate = verify_file(path, rows=rows)
    names = [check.name for check in certificate.checks]
    for name in (RECORDED_MAP, RECEIVED, TOP_KEYS, TOP_WEIGHTS):
        assert f"rows of {name}" in names
    return {check.name for check in certificate.checks if not check.passed}


def test_an_element_is_named_by_the_axes_of_its_array(tmp_path):
    path = write_run(tmp_path, Case(attention=f'mask = "causal"\nscale = 0.5\n{RECORD}'))
    with h5py.File(path, "r+") as file:
        write_late_record(file, late_record_of(path, None))
    said = {check.name: check.text for check in verify_file(path).checks}
    assert ", key block " in said[f"rows of {RECORDED_MAP}"]
    assert ", nth " in said[f"rows of {TOP_WEIGHTS}"]
    assert ", channel " in said["rows of /output"]


@pytest.mark.parametrize("sinks", [None, SINKS])
@pytest.mark.parametrize("rows", [None, 1, 20])
def test_what_is_right_passes(tmp_path, sinks, rows):
    assert failed(tmp_path, sinks=sinks, rows=rows) == set()


def changed(name, change):
    """The same with one array changed."""

    def spoil(late):
        array = late.arrays[name].copy()
        change(array)
        return replace(late, arrays=late.arrays | {name: array})

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
        (
            RECORDED_MAP,
            lambda a: swap(a[:, 5:], 2),
            {"rows of /record/map", "sums of /record/map and /record/received"},
        ),
        (RECORDED_MAP, lambda a: swap(a, 1), {"rows of /record/map"}),
        (
            RECORDED_MAP,
            scale,
            {"rows of /record/map", "sums of /record/map", "sums of /record/map and /record/received"},
        ),
        (
            RECORDED_MAP,
            lose,
            {"rows of /record/map", "sums of /record/map", "sums of /record/map and /record/received"},
        ),
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
        (TOP_ROWS, lambda a: a.fill(20), {"rows of /record/top_weights", "positions of /record/top_rows"}),
    ],
)
def test_each_fault_is_found(tmp_path, name, change, checks):
    found = failed(tmp_path, changed(name, change))
    assert checks <= found


def test_a_key_that_is_left_out_is_found(tmp_path):
    """Row 59 without its top key: all weights that are named are right."""

    def spoil(late):
        keys, weights = late.arrays[TOP_KEYS].copy(), late.arrays[TOP_WEIGHTS].copy()
        for array, missing in ((keys, -1), (weights, 0)):
            array[:, 2] = np.concatenate([array[:, 2, 1:], np.full((4, 1), missing)], 1)
        return replace(late, arrays=late.arrays | {TOP_KEYS: keys, TOP_WEIGHTS: weights})

    assert failed(tmp_path, spoil) == {"rows of /record/top_keys"}


def test_rows_that_nobody_asked_for_are_found(tmp_path):
    """Their keys and weights are right: they are of other rows than RUN.toml names."""
    path = write_run(tmp_path, Case(attention=f'mask = "causal"\nscale = 0.5\n{RECORD}'))
    with h5py.File(path, "r+") as file:
        write_late_record(file, late_record_of(path, None, [5, 20, 40]))
    certificate, evidence = certify_file(path, None)
    assert {check.name: check.text for check in certificate.checks if not check.passed} == {
        f"positions of {TOP_ROWS}": f"{TOP_ROWS}: positions 5, 20, 40, but the run was asked for 0, 13, 59"
    }
    assert evidence.output[TOP_ROWS].shape == (3,)


@pytest.mark.parametrize("field", ["pairs_asked", "pairs_attended"])
def test_a_lost_pair_is_found(tmp_path, field):
    short = failed(tmp_path, lambda late: replace(late, **{field: late.pairs_asked - 1}))
    assert short == {"pairs of the map pass"}


def test_a_changed_bit_is_found_by_its_digest(tmp_path):
    path = write_run(tmp_path, Case(attention=f'mask = "causal"\nscale = 0.5\n{RECORD}'))
    with h5py.File(path, "r+") as file:
        write_late_record(file, late_record_of(path, None))
        for name in (RECORDED_MAP, RECEIVED, TOP_ROWS, TOP_KEYS, TOP_WEIGHTS):
            digest = file[name].attrs["blake2b"]
            file[name].attrs["blake2b"] = digest[::-1]
    names = {check.name for check in verify_file(path, rows=1).checks if not check.passed}
    assert names == {f"digest of {name}" for name in (RECORDED_MAP, RECEIVED, TOP_ROWS, TOP_KEYS, TOP_WEIGHTS)}


@pytest.mark.parametrize("cancel", [10.0, 100.0])
def test_scores_that_cancel_are_judged_by_what_they_are_made_of(tmp_path, cancel):
    """Row 0 has one key: its weight is e^(score - log_sum_exp as the kernel rounds it), and the plain formula has 1."""
    assert failed(tmp_path, cancel=cancel) == set()


@pytest.mark.parametrize("cancel", [0.0, 10.0])
def test_a_lost_pair_of_ordinary_weight_is_found(tmp_path, cancel):
    """One of 60 keys of one row of 7, as if the pass had not met it."""

    def lose_one(late):
        arrays = {name: late.arrays[name].copy() for name in (RECORDED_MAP, RECEIVED)}
        arrays[RECORDED_MAP][1, 8, 3] -= np.float32(1 / 60 / (LENGTH - 8 * BLOCK))
        arrays[RECEIVED][1, 3 * BLOCK] -= np.float32(1 / 60)
        return replace(late, arrays=late.arrays | arrays)

    found = failed(tmp_path, lose_one, cancel=cancel)
    assert found >= {"sums of /record/map", "rows of /record/map", "rows of /record/received"}


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_rows_that_meet_nan_or_inf_have_no_top_keys(tmp_path, special):
    """Query 13 of head 1; and key 59, which row 59 of two heads sees alone."""

    def spoil_input(name, array):
        if name == "q":
            array[1, 13] = special
        if name == "k":
            array[1, 59] = special

    seen = {}

    def look(late):
        seen.update(late.arrays)
        return late

    assert failed(tmp_path, look, spoil_input=spoil_input) == set()
    unknown = np.zeros((4, 3), bool)
    unknown[1, 1] = unknown[2:, 2] = True
    assert (np.isnan(seen[TOP_WEIGHTS]) == unknown[..., None]).all()
    assert (seen[TOP_KEYS][unknown] == -1).all()
    assert (seen[TOP_KEYS][:, 1:][~unknown[:, 1:]] >= 0).all()
    (tmp_path / "named").mkdir()
    named = changed(TOP_KEYS, lambda keys: keys[1, 1].__setitem__(slice(None), np.arange(COUNT)))
    assert failed(tmp_path / "named", named, spoil_input=spoil_input) == {"rows of /record/top_keys"}
