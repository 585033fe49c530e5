"""`ringmpi export`: what it says and how it ends."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ringmpi.cli import exit_code
from ringmpi.cli.export import FORMATS
from ringmpi.storage.export.writing import WRITERS
from tests.analysis.written import Case, write_run


@pytest.fixture
def run(capsys):
    """The command in this process: exit code, stdout, stderr."""

    def call(*arguments):
        code = exit_code(["export", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_it_says_what_it_wrote(tmp_path, run):
    path = write_run(tmp_path, Case())
    code, out, err = run(path, tmp_path / "out.nc")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "log_sum_exp [head 4, position 60] float32",
        "output [head 4, position 60, channel 3] float32",
        "shards [shard_range 6, column 4] int64",
        f"wrote {tmp_path / 'out.nc'}: 3 arrays as netcdf",
    ]


def test_for_machines(tmp_path, run):
    path = write_run(tmp_path, Case(dtype=np.float64))
    code, out, _ = run(path, tmp_path / "arrays", "--json")
    found = json.loads(out)
    assert (code, found["format"], found["destination"]) == (0, "npy", str(tmp_path / "arrays"))
    assert found["arrays"]["output"] == {"dims": {"head": 4, "position": 60, "channel": 3}, "dtype": "float64"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["out.h5", "out.csv"], 2, "stands for no format"),
        (["none.h5", "out.nc"], 3, "No such file"),
        (["input.h5", "out.nc"], 3, "is not a ringmpi output file"),
        (["out.h5", "input.h5", "--format", "netcdf", "--force"], 3, "is not an export of this format"),
    ],
)
def test_what_cannot_be_is_told(tmp_path, run, monkeypatch, arguments, code, says):
    write_run(tmp_path, Case())
    monkeypatch.chdir(tmp_path)
    ended, out, err = run(*arguments)
    assert (ended, out) == (code, "")
    assert says in err


def test_the_formats_of_the_help_are_those_that_there_are():
    assert set(FORMATS) == set(WRITERS)
