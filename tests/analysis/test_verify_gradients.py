"""`verify` of an output with gradients: it passes what is right, sees each fault, and names dataset and rows."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from ringmpi.analysis import recompute
from ringmpi.analysis.verify import verify_file
from ringmpi.core.dtypes import bfloat16
from tests.analysis.test_verify import check_of, failed, text_of
from tests.analysis.written import LENGTH, Case, write_run

GRADIENTS = '[backward]\ngrad_output = "do"'
WITH_UPSTREAM = f'{GRADIENTS}\ngrad_log_sum_exp = "dlse"'
NAMES = ("grad_query", "grad_key", "grad_value")
CASES = [
    Case(backward=GRADIENTS),
    Case(backward=WITH_UPSTREAM, dtype=np.float64, attention="mask = {window = [9, 0]}", sharding="contiguous"),
    Case(backward=GRADIENTS, dtype=np.float16, sharding="striped", batch=(2,)),
    Case(
        backward=GRADIENTS,
        dtype=bfloat16,
        attention='mask = {documents = {query = "lengths", within = "causal"}}\ndropout = 0.2\nseed = 3',
        sharding="balanced",
    ),
    Case(
        backward=WITH_UPSTREAM,
        attention='mask = "full"\nsoftcap = 2.0\nsink_logits = [0.5, -inf, 1, 2]\nalibi = "slopes"',
    ),
    Case(backward=GRADIENTS, dtype=bfloat16, attention="mask = {keys = [50, 50]}", ranks=1),
    Case(backward=GRADIENTS, attention='mask = {any = ["causal", {sinks = 3}]}', size=5.0, ranks=7),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, 16, LENGTH])
def test_a_right_file_is_verified(tmp_path, case, rows):
    certificate = verify_file(write_run(tmp_path, case), rows=rows)
    assert certificate.passed, certificate.lines()
    for name in NAMES:
        text = text_of(certificate, f"rows of /{name}")
        assert f"{rows} of {LENGTH} rows recomputed" in text
        assert ("as they are in the file" in text) == (rows < LENGTH and name != "grad_query")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("head", "row", "channel"), [(0, 0, 0), (1, 37, 2), (1, LENGTH - 1, 1)])
def test_one_changed_number_is_seen_wherever_it_is_and_found(tmp_path, name, head, row, channel):
    path = write_run(tmp_path, Case(backward=GRADIENTS))
    with h5py.File(path, "r+") as file:
        file[name][head, row, channel] += 1e-2
    certificate = verify_file(path, rows=1)
    assert failed(certificate) == {f"digest of /{name}", f"rows of /{name}"}
    text = text_of(certificate, f"rows of /{name}")
    assert f"at head {head}, position {row}, channel {channel}" in text
    assert f"rows beyond tolerance: 1, at positions {row}" in text


@pytest.mark.parametrize("name", NAMES)
def test_two_swapped_rows_are_seen_and_found(tmp_path, name):
    path = write_run(tmp_path, Case(backward=GRADIENTS))
    with h5py.File(path, "r+") as file:
        rows = file[name][...]
        rows[:, [20, 40]] = rows[:, [40, 20]]
        file[name][...] = rows
    certificate = verify_file(path, rows=1)
    assert failed(certificate) == {f"digest of /{name}", f"rows of /{name}"}
    assert "rows beyond tolerance: 2, at positions 20, 40" in text_of(certificate, f"rows of /{name}")


def test_another_grad_output_is_named_and_no_gradient_fits_it(tmp_path):
    path = write_run(tmp_path, Case(backward=GRADIENTS, checksums=True))
    with h5py.File(tmp_path / "input.h5", "r+") as file:
        file["do"][...] *= 2
    certificate = verify_file(path, rows=4)
    assert failed(certificate) == {"input", *(f"rows of /{name}" for name in NAMES)}
    assert "different numbers in grad_output" in text_of(certificate, "input")


def test_an_input_without_grad_output_is_named(tmp_path):
    path = write_run(tmp_path, Case(backward=GRADIENTS))
    with h5py.File(tmp_path / "input.h5", "r+") as file:
        del file["do"]
    certificate = verify_file(path)
    assert failed(certificate) == {"input", "question"}
    assert "has no dataset 'do'" in text_of(certificate, "question")


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("rows", [4, LENGTH])
def test_wrong_arithmetic_is_seen_by_few_rows_though_the_digest_is_right(tmp_path, which, rows):
    def spoil(*gradients):
        gradients[which][...] *= np.float32(1 + 1e-3)

    certificate = verify_file(write_run(tmp_path, Case(backward=GRADIENTS, spoil_gradients=spoil)), rows=rows)
    name = f"rows of /{NAMES[which]}"
    assert failed(certificate) == {name}
    assert check_of(certificate, name).facts["wrong_rows"] >= rows // 2


def test_a_key_gradient_that_lacks_one_rank_is_seen(tmp_path):
    """As if the sum of one rank had been lost on its way home: the terms of a third of the rows are missing."""

    def spoil(_query, key, value):
        key[:, :, 5] *= np.float32(0.7)
        value[:, :, 5] *= np.float32(0.7)

    certificate = verify_file(write_run(tmp_path, Case(backward=GRADIENTS, spoil_gradients=spoil)), rows=LENGTH)
    assert failed(certificate) == {"rows of /grad_key", "rows of /grad_value"}
    assert text_of(certificate, "rows of /grad_key").endswith("rows beyond tolerance: 1, at positions 5")


def spoil_normaliser(output, log_sum_exp):
    log_sum_exp[0, 1, 30] += np.float32(1e-2)


def test_a_wrong_log_sum_exp_is_no_excuse_where_all_rows_are_recomputed(tmp_path):
    """Gradients made from it agree with the file; recomputed from the input alone they would not."""
    path = write_run(tmp_path, Case(backward=GRADIENTS, spoil=spoil_normaliser))
    few, every = (verify_file(path, rows=rows) for rows in (LENGTH - 1, LENGTH))
    assert "rows of /grad_value" in failed(few)  # the gradients of this file are right, and do not fit its log_sum_exp
    assert failed(every) == {"rows of /log_sum_exp"}


@pytest.mark.parametrize("attribute", ["pairs_asked", "pairs_attended"])
def test_every_recorded_count_of_the_backward_pass_must_agree(tmp_path, attribute):
    path = write_run(tmp_path, Case(backward=GRADIENTS))
    with h5py.File(path, "r+") as file:
        file["timeline_backward"].attrs[attribute] += 1
    assert failed(verify_file(path, rows=1)) == {"pairs of the backward pass"}


def test_the_counters_of_the_backward_steps_must_sum_to_the_total(tmp_path):
    path = write_run(tmp_path, Case(backward=GRADIENTS))
    with h5py.File(path, "r+") as file:
        file["timeline_backward/pairs_attended"][1, 1] += 1
    assert failed(verify_file(path, rows=1)) == {"pairs of the backward pass"}


def test_keys_held_twice_are_seen(tmp_path):
    path = write_run(tmp_path, Case(backward=GRADIENTS, sharding="contiguous"))
    with h5py.File(path, "r+") as file:
        file["key_shards"][1, 1] -= 1
    assert failed(verify_file(path)) == {"key shards"}


def test_gradients_that_were_taken_out_of_the_file_are_missed(tmp_path):
    path = write_run(tmp_path, Case(backward=GRADIENTS))
    with h5py.File(path, "r+") as file:
        for name in (*NAMES, "key_shards", "timeline_backward"):
            del file[name]
    certificate = verify_file(path, rows=1)
    assert failed(certificate) == {"shape"}
    assert "the options ask for" in text_of(certificate, "shape")


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_small_slabs_and_blocks_come_to_the_same_verdict(tmp_path, case, monkeypatch):
    path = write_run(tmp_path, case)
    monkeypatch.setattr(recompute, "SLAB_KEYS", 7)
    monkeypatch.setattr("ringmpi.analysis.recompute_gradients.WORK_BYTES", 4 * 7 * 16 * 8 * 11)
    for rows in (13, LENGTH):
        certificate = verify_file(path, rows=rows)
        assert certificate.passed, certificate.lines()
    with h5py.File(path, "r+") as file:
        file["grad_key"][1, 41, 1] += 1e-2
    assert "rows beyond tolerance: 1, at positions 41" in text_of(verify_file(path, rows=1), "rows of /grad_key")


def test_rows_that_see_none_of_the_keys_are_not_read(tmp_path, monkeypatch):
    path = write_run(tmp_path, Case(backward=GRADIENTS, attention="mask = {window = [4, 0]}"))
    read = []
    monkeypatch.setattr(recompute, "SLAB_KEYS", 10)
    whole = verify_file.__globals__["rows_of_file"]

    def counted(*arguments):
        rows = whole(*arguments)
        return lambda positions: read.append(len(positions)) or rows(positions)

    monkeypatch.setattr("ringmpi.analysis.verify.rows_of_file", counted)
    assert verify_file(path, rows=1, seed=5).passed
    assert 0 < sum(read) <= 20
