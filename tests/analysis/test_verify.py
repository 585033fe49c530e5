"""`verify` passes what is right and sees each kind of fault, in the check that is there for it."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

from ringmpi.analysis import recompute
from ringmpi.analysis.verify import verify_file
from ringmpi.core.dtypes import bfloat16
from ringmpi.errors import ConfigError, StorageError
from tests.analysis.written import LENGTH, Case, write_run

DIGESTS = {"digest of /output", "digest of /log_sum_exp"}
ROWS = {"rows of /output", "rows of /log_sum_exp"}
CASES = [
    Case(),
    Case(dtype=np.float64, attention="mask = {window = [9, 0]}", sharding="contiguous"),
    Case(dtype=np.float16, sharding="striped", batch=(2,)),
    Case(dtype=bfloat16, attention='mask = {documents = {query = "lengths", within = "causal"}}', sharding="balanced"),
    Case(dtype=">f4", attention='mask = "full"\nsoftcap = 2.0\nsink_logits = [0.5, -inf, 1, 2]\nalibi = "slopes"'),
    Case(dtype=bfloat16, attention="mask = {keys = [50, 50]}", ranks=1),
    Case(attention='mask = {any = ["causal", {sinks = 3}]}\nscale = 0.5', size=50.0, ranks=7),
]


def failed(certificate):
    return {check.name for check in certificate.checks if not check.passed}


def check_of(certificate, name):
    return next(check for check in certificate.checks if check.name == name)


def text_of(certificate, name):
    return check_of(certificate, name).text


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, 16, LENGTH, 10**9])
def test_a_right_file_is_verified(tmp_path, case, rows):
    certificate = verify_file(write_run(tmp_path, case), rows=rows)
    assert certificate.passed, certificate.lines()
    assert f"{min(rows, LENGTH)} of {LENGTH} rows recomputed" in text_of(certificate, "rows of /output")


def test_the_certificate_counts_pairs_as_the_mask_does(tmp_path):
    certificate = verify_file(write_run(tmp_path, Case(batch=(2,))), rows=3)
    pairs = LENGTH * (LENGTH + 1) // 2
    assert certificate.lines()[4] == f"pairs attended {pairs:,} of {pairs:,} x 4 heads x batch 2: ok"
    facts = check_of(certificate, "pairs").facts
    assert facts["pairs_attended"] == facts["pairs_attended_by_steps"] == 8 * pairs


@pytest.mark.parametrize(("row", "head", "channel"), [(0, 0, 0), (37, 3, 2), (LENGTH - 1, 1, 1)])
def test_one_changed_number_is_seen_wherever_it_is_and_found(tmp_path, row, head, channel):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["output"][head, row, channel] += 1e-2
    certificate = verify_file(path, rows=1)
    assert failed(certificate) == {"digest of /output", "rows of /output"}
    text = text_of(certificate, "rows of /output")
    assert f"at head {head}, position {row}, channel {channel}" in text
    assert f"rows beyond tolerance: 1, at positions {row}" in text


def test_two_swapped_rows_are_seen_and_found(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        for name in ("output", "log_sum_exp"):
            rows = file[name][...]
            rows[:, [20, 40]] = rows[:, [40, 20]]
            file[name][...] = rows
    certificate = verify_file(path, rows=1)
    assert failed(certificate) == DIGESTS | ROWS
    assert "rows beyond tolerance: 2, at positions 20, 40" in text_of(certificate, "rows of /output")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_one_changed_log_sum_exp_is_seen_and_found(tmp_path, value):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["log_sum_exp"][2, 11] = value
    certificate = verify_file(path, rows=1)
    assert failed(certificate) == {"digest of /log_sum_exp", "rows of /log_sum_exp"}
    assert "at head 2, position 11" in text_of(certificate, "rows of /log_sum_exp")


def test_a_changed_last_bit_is_seen_and_said_to_be_below_the_tolerance(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["output"][1, 50, 0] = np.nextafter(file["output"][1, 50, 0], np.float32(9))
    certificate = verify_file(path)
    assert failed(certificate) == {"digest of /output"}
    assert text_of(certificate, "rows of /output").endswith("the change is smaller than the tolerance")
    assert "change" not in text_of(certificate, "rows of /log_sum_exp")


def test_a_change_is_searched_for_in_the_sample_only_where_all_rows_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr("ringmpi.analysis.verify.SEARCH_SCORES", 4 * LENGTH * LENGTH - 1)
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["output"][1, 50, 0] = np.nextafter(file["output"][1, 50, 0], np.float32(9))
    text = text_of(verify_file(path, rows=8), "rows of /output")
    assert f"8 of {LENGTH} rows recomputed" in text
    assert text.endswith("the change is, if any, in rows not recomputed")


def spoil_all(output, log_sum_exp):
    output *= np.float32(1 + 1e-4)


def spoil_normaliser(output, log_sum_exp):
    log_sum_exp += np.float32(1e-3)


@pytest.mark.parametrize(
    ("spoil", "name"), [(spoil_all, "rows of /output"), (spoil_normaliser, "rows of /log_sum_exp")]
)
def test_wrong_arithmetic_is_seen_by_few_rows_though_the_digest_is_right(tmp_path, spoil, name):
    certificate = verify_file(write_run(tmp_path, Case(spoil=spoil)), rows=4)
    assert failed(certificate) == {name}
    assert "rows beyond tolerance: 4" in text_of(certificate, name)
    facts = check_of(certificate, name).facts
    assert facts["worst_at"][2] in facts["wrong_positions"]


def test_a_pair_that_was_not_attended_to_is_seen(tmp_path):
    certificate = verify_file(write_run(tmp_path, Case(pairs_short=1)))
    assert failed(certificate) == {"pairs"}
    assert "pairs attended 7,319 (sum over ring steps 7,319), asked 7,320" in text_of(certificate, "pairs")


@pytest.mark.parametrize("attribute", ["pairs_asked", "pairs_attended", "query_slabs"])
def test_every_recorded_count_must_agree(tmp_path, attribute):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["timeline"].attrs[attribute] += 1
    assert failed(verify_file(path, rows=1)) == {"pairs"}


def test_the_counters_of_the_ring_steps_must_sum_to_the_total(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["timeline/pairs_attended"][1, 1] += 1
    assert failed(verify_file(path, rows=1)) == {"pairs"}


def test_a_configuration_with_another_mask_does_not_fit_the_counts(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        text = file["provenance"].attrs["configuration"]
        file["provenance"].attrs["configuration"] = text.replace('"causal"', '"full"')
    assert failed(verify_file(path)) == {"pairs", *ROWS}


def test_a_changed_input_is_named(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(tmp_path / "input.h5", "r+") as file:
        file["v"][...] *= 2
    certificate = verify_file(path)
    assert failed(certificate) == {"input", "rows of /output"}
    assert f"input {tmp_path / 'input.h5'} is not the file that the run read" in text_of(certificate, "input")


def test_an_input_of_another_size_is_named(tmp_path):
    path = write_run(tmp_path, Case())
    status = (tmp_path / "input.h5").stat()
    with (tmp_path / "input.h5").open("ab") as file:
        file.write(b"\0")
    os.utime(tmp_path / "input.h5", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert failed(verify_file(path)) == {"input"}


def test_a_missing_input_is_named_and_what_needs_none_is_still_checked(tmp_path):
    path = write_run(tmp_path, Case())
    (tmp_path / "input.h5").unlink()
    certificate = verify_file(path)
    assert failed(certificate) == {"input", "question"}
    assert "input.h5 is gone" in text_of(certificate, "input")
    assert {check.name for check in certificate.checks if check.passed} == {*DIGESTS, "shards"}


def test_an_input_without_the_arrays_of_the_run_is_named(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(tmp_path / "input.h5", "r+") as file:
        del file["v"]
    certificate = verify_file(path)
    assert failed(certificate) == {"input", "question"}
    assert "has no dataset 'v'" in text_of(certificate, "question")


def test_an_input_of_other_lengths_does_not_fit_the_output(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(tmp_path / "input.h5", "r+") as file:
        for name in "qkv":
            shorter = file[name][:, :-1]
            del file[name]
            file[name] = shorter
    assert failed(verify_file(path)) == {"input", "pairs", "shape"}


def test_rows_held_twice_are_seen(tmp_path):
    path = write_run(tmp_path, Case(sharding="contiguous"))
    with h5py.File(path, "r+") as file:
        file["shards"][1, 1] -= 1
    certificate = verify_file(path)
    assert failed(certificate) == {"shards"}
    assert "do not make up 60 rows" in text_of(certificate, "shards")


def test_rows_outside_the_sequence_are_seen_and_not_looked_for(tmp_path):
    path = write_run(tmp_path, Case(sharding="contiguous"))
    with h5py.File(path, "r+") as file:
        file["shards"][2, 2] += 5
    assert failed(verify_file(path, rows=10**9)) == {"shards"}


def test_a_moved_input_is_found_by_its_configured_path(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    write_run(tmp_path / "there", Case())
    (tmp_path / "there").rename(tmp_path / "here")
    assert "input" in failed(verify_file(tmp_path / "here/out.h5"))
    monkeypatch.chdir(tmp_path / "here")
    assert verify_file("out.h5").passed


def test_no_rows_are_recomputed_when_none_are_asked_for(tmp_path):
    certificate = verify_file(write_run(tmp_path, Case()), rows=0)
    assert certificate.passed
    assert not ROWS & {check.name for check in certificate.checks}


@pytest.mark.parametrize(("options", "message"), [({"rows": -1}, "rows = -1; must be"), ({"seed": -3}, "seed = -3")])
def test_negative_options_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        verify_file(tmp_path / "out.h5", **options)


def test_a_file_of_something_else_is_refused(tmp_path):
    write_run(tmp_path, Case())
    with pytest.raises(StorageError, match="not a ringmpi output file"):
        verify_file(tmp_path / "input.h5")


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_small_slabs_and_blocks_come_to_the_same_verdict(tmp_path, case, monkeypatch):
    path = write_run(tmp_path, case)
    whole = verify_file(path, rows=LENGTH)
    monkeypatch.setattr(recompute, "SLAB_KEYS", 7)
    monkeypatch.setattr(recompute, "WORK_BYTES", 4 * 7 * 16 * 11)
    assert verify_file(path, rows=LENGTH).passed
    with h5py.File(path, "r+") as file:
        file["output"][3, 41, 1] += 1e-2
    found = verify_file(path, rows=1)
    assert whole.passed
    assert "at head 3, position 41, channel 1" in text_of(found, "rows of /output")
    assert "rows beyond tolerance: 1, at positions 41" in text_of(found, "rows of /output")


def test_keys_that_no_row_sees_are_not_read(tmp_path, monkeypatch):
    path = write_run(tmp_path, Case(attention="mask = {window = [4, 0]}"))
    read = []
    whole = recompute._read_slab
    monkeypatch.setattr(recompute, "SLAB_KEYS", 10)
    monkeypatch.setattr(recompute, "_read_slab", lambda *args: read.append(args[-1]) or whole(*args))
    assert verify_file(path, rows=1, seed=5).passed
    assert sum(map(len, read)) <= 20
