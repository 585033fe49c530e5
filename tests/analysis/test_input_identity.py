"""`verify` accepts an input that was moved, copied or touched, and names the array that changed."""

from __future__ import annotations

import os
import shutil

import h5py
import numpy as np
import pytest

from ringmpi.analysis.verify import verify_file
from ringmpi.asking.question import check_unchanged, question_of
from ringmpi.config import parse_config
from ringmpi.core.dtypes import bfloat16
from ringmpi.errors import StorageError
from ringmpi.storage.inputs import Inputs
from tests.analysis.written import Case, write_run

CASES = [Case(checksums=True), Case(checksums=True, dtype=bfloat16, batch=(2,)), Case(checksums=True, dtype=">f8")]


def input_check(path):
    (check,) = (check for check in verify_file(path, rows=2).checks if check.name == "input")
    return check


def touch(path):
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_copy_is_the_same_input(tmp_path, case):
    path = write_run(tmp_path, case)
    shutil.copyfile(tmp_path / "input.h5", tmp_path / "copy.h5")
    (tmp_path / "copy.h5").replace(tmp_path / "input.h5")
    touch(tmp_path / "input.h5")
    check = input_check(path)
    assert check.passed
    assert "was moved or touched, and holds the numbers that the run read" in check.text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_input_stored_in_another_form_is_the_same(tmp_path, case):
    path = write_run(tmp_path, case)
    with h5py.File(tmp_path / "input.h5") as old, h5py.File(tmp_path / "new.h5", "w") as new:
        for name in old:
            if name in "qkv" and case.dtype is not bfloat16:
                new.create_dataset(name, data=old[name][...], chunks=True, compression="gzip")
            else:
                old.copy(name, new)
    (tmp_path / "new.h5").replace(tmp_path / "input.h5")
    assert input_check(path).passed


@pytest.mark.parametrize(("name", "array"), [("q", "query"), ("k", "key"), ("v", "value")])
def test_the_array_that_changed_is_named(tmp_path, name, array):
    path = write_run(tmp_path, Case(checksums=True))
    with h5py.File(tmp_path / "input.h5", "r+") as file:
        file[name][1, 7, 2] *= -1
    touch(tmp_path / "input.h5")
    check = input_check(path)
    assert not check.passed
    assert check.text.endswith(f"changed since the run read it: different numbers in {array}")


def test_without_recorded_checksums_another_time_of_change_is_another_file(tmp_path):
    path = write_run(tmp_path, Case())
    touch(tmp_path / "input.h5")
    check = input_check(path)
    assert not check.passed
    assert "is not the file that the run read" in check.text


def test_an_input_that_cannot_be_read_any_more_has_no_contents(tmp_path):
    path = write_run(tmp_path, Case(checksums=True))
    (tmp_path / "input.h5").write_text("hello")
    failed = {check.name for check in verify_file(path).checks if not check.passed}
    assert failed == {"input", "question"}


@pytest.fixture
def asked(tmp_path):
    """A configuration, its input, and what a run would have recorded of it."""
    path = tmp_path / "in.h5"
    write_input(path, seed=1)
    config = parse_config(f'[input]\nfile = "{path}"\nquery = "q"\nkey = "k"\nvalue = "v"\n[output]\nfile = "o.h5"')
    with Inputs(path) as inputs:
        return config, path, inputs.identity() | question_of(config, inputs).checksums()


def write_input(path, seed):
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for name in "qkv":
            file[name] = rng.standard_normal((2, 30, 4))


def test_an_input_that_was_touched_or_written_again_during_the_run_is_unchanged(asked):
    config, path, recorded = asked
    check_unchanged(config, recorded)
    touch(path)
    check_unchanged(config, recorded)
    write_input(path, seed=1)
    check_unchanged(config, recorded)


def test_an_input_that_changed_in_place_during_the_run_is_refused_by_array(asked):
    config, path, recorded = asked
    with h5py.File(path, "r+") as file:
        file["k"][0, 0, 0] += 1
    touch(path)
    with pytest.raises(StorageError, match="changed during the run: key may not be"):
        check_unchanged(config, recorded)


def test_an_input_that_was_replaced_during_the_run_is_refused(asked, tmp_path):
    config, path, recorded = asked
    write_input(tmp_path / "new.h5", seed=2)
    (tmp_path / "new.h5").replace(path)
    with pytest.raises(StorageError, match="query and key and value may not"):
        check_unchanged(config, recorded)


def test_of_arrays_that_were_not_read_whole_nobody_can_say(asked):
    config, path, recorded = asked
    touch(path)
    with pytest.raises(StorageError, match="key and value may not"):
        check_unchanged(config, {k: v for k, v in recorded.items() if k not in ("key", "value")})
