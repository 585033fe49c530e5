"""`ringmpi inspect`: what people and machines see, and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from ringmpi import cli
from ringmpi.storage.layout import DATASETS
from tests.analysis.written import Case, write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return write_run(tmp_path, Case())


@pytest.fixture
def inspect(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        code = cli.exit_code(["inspect", *map(str, arguments)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def test_an_output_is_shown_with_shapes_dtypes_units_meaning_and_origin(inspect, path):
    code, out, err = inspect(path)
    assert (code, err) == (0, "")
    for part in (
        "out.h5: output of ringmpi, layout version 2, ",
        "output  float32  [query_heads 4, query_length 60, value_dim 3]  units of value",
        "attention output; 0 where a query saw no key",
        "attend_seconds  float64  [ranks 3, steps 3]  s",
        "shards  int64  [ranges 6, (rank start stop step)]  positions",
        'sharding = "zigzag"',
        "ranks           3 on node",
        "pairs           attended 7,320 of 7,320 asked: exact",
        "No damage found in the headers; --check reads the arrays too.",
    ):
        assert part in out


def test_check_says_what_it_has_compared(inspect, path):
    code, out, _ = inspect(path, "--check")
    assert code == 0
    assert "No damage found: every array can be read and has the digests that were written." in out


def test_damage_comes_last_and_ends_with_1(inspect, path):
    with h5py.File(path, "r+") as file:
        del file["shards"]
        file["timeline"].attrs["pairs_attended"] = 1
    code, out, _ = inspect(path)
    assert code == 1
    assert "attended 1 of 7,320 asked: NOT EXACT" in out
    first, second = out.splitlines()[-2:]
    assert first.startswith("DAMAGED: /shards is missing")
    assert second == "DAMAGED: NOT EXACT: attended 1 pairs of 7320 asked"
    assert "No damage" not in out


@pytest.mark.parametrize("content", [None, b"", b"numbers"])
def test_what_cannot_be_opened_ends_with_3(inspect, tmp_path, content):
    if content is not None:
        (tmp_path / "x.h5").write_bytes(content)
    code, out, err = inspect(tmp_path / "x.h5")
    assert (code, out) == (3, "")
    assert err.startswith(f"ringmpi: error: cannot open {tmp_path}/x.h5: ")


def test_a_truncated_file_ends_with_3_and_says_so(inspect, path):
    path.write_bytes(path.read_bytes()[:-1])
    code, _, err = inspect(path)
    assert code == 3
    assert "cut off" in err


def test_json_has_everything(inspect, path):
    code, out, _ = inspect(path, "--json", "--check")
    shown = json.loads(out)
    assert code == 0
    assert (shown["kind"], shown["problems"], shown["checked"]) == ("ringmpi-output", [], True)
    assert shown["pairs"] == {"pairs_asked": 7320, "pairs_attended": 7320, "query_slabs": 4}
    assert shown["provenance"]["hosts"] == ["node"] * 3
    entries = {entry["path"]: entry for entry in shown["entries"]}
    assert entries["/output"]["shape"] == [4, 60, 3]
    assert entries["/output"]["axes"] == ["query_heads", "query_length", "value_dim"]
    assert all(entries[layout.path]["meaning"] == layout.meaning for layout in DATASETS)


def test_an_input_gives_what_to_write_into_run_toml(inspect, tmp_path):
    code, out, _ = inspect(write_run(tmp_path, Case()).with_name("input.h5"))
    assert code == 0
    assert "not written by ringmpi" in out
    assert "Could be query, key or value: k, q, v" in out
    assert "q, k, v: 4 query heads on 2 key heads, 60 queries, 60 keys, head_dim 5, value_dim 3, float32" in out
    assert f'[input]\n  file = "{tmp_path}/input.h5"\n  query = "q"\n  key = "k"\n  value = "v"' in out


def test_json_of_an_input(inspect, tmp_path):
    shown = json.loads(inspect(write_run(tmp_path, Case()).with_name("input.h5"), "--json")[1])
    assert shown["could_be_input"] == ["k", "q", "v"]
    assert shown["inputs"][0]["fits"] is True
    assert shown["provenance"] is None


def test_a_foreign_file_is_shown_as_it_is(inspect, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/b"] = np.zeros((2, 3), int)
        file["a/b"].attrs["note"] = "\x1b[31mred\n" + "long " * 30
        file["one"] = 3
        for n in range(45):
            file[f"many/{n}"] = 0
    code, out, _ = inspect(tmp_path / "x.h5")
    assert code == 0
    assert "b  int64  [2, 3]" in out
    assert "one  int64  one value" in out
    assert "@note = \\x1b[31mred" in out
    assert "\x1b" not in out
    assert "and 5 more (--json lists all)" in out
    assert "No array in it could be query, key or value" in out


def test_a_directory_without_arrays_ends_with_3(inspect, tmp_path):
    (tmp_path / "notes.txt").touch()
    assert inspect(tmp_path)[0] == 3


def test_axes_that_look_swapped_are_doubted_as_a_run_doubts_them(inspect, tmp_path):
    for name in "qkv":
        np.save(tmp_path / f"{name}.npy", np.zeros((1000, 8, 64), np.float32))
    code, out, _ = inspect(tmp_path)
    assert code == 0
    assert "1,000 query heads, 8 positions, head_dim 64: arrays are [heads, length, head_dim]; are axes swapped?" in out


def test_a_name_is_shown_where_the_terminal_has_no_unicode(path):
    done = subprocess.run(
        [sys.executable, "-m", "ringmpi", "inspect", path],
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PATH": ""},
    )
    assert done.returncode == 0
    assert b"+-- log_sum_exp" in done.stdout


def test_it_needs_no_mpi(path):
    program = (
        "import sys; from ringmpi.cli import exit_code; code = exit_code(sys.argv[1:]);"
        "sys.exit(9 if 'mpi4py' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", program, "inspect", path], capture_output=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0
