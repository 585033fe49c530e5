"""`ringmpi inspect` of a directory of checkpoints: what generations there are, and where a run would go on."""

import json

import numpy as np
import pytest

from ringmpi import cli
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.manifest import Manifest, RankFile
from ringmpi.storage.rank_state import StateArray, write_rank_state


@pytest.fixture
def directory(tmp_path):
    """Two generations of two ranks, and what was left of a third."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for number in (1, 2):
        files = []
        checkpoints.begin(number)
        for rank in range(2):
            rows = StateArray([range(rank * 5, rank * 5 + 5)], np.zeros((1, 2, 5), np.float32))
            written = write_rank_state(checkpoints.rank_path(number, rank), {"row_max": rows}, {})
            files.append(RankFile(**written._asdict(), pairs=7, absorbed=()))
        manifest = Manifest(
            generation=number,
            created="2026-01-01T00:00:00+00:00",
            ringmpi="1",
            identity={"pairs_asked": 2468},
            layout={},
            progress={"stage": "backward", "step": 0, "pairs": {"forward": 1234, "backward": 5 * number}},
            attempts=({"started": "", "ranks": 2},) * number,
            files=tuple(files),
        )
        checkpoints.publish(manifest, keep=number - 1)
    checkpoints.begin(3)
    return checkpoints.directory


@pytest.fixture
def inspect(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        code = cli.exit_code(["inspect", *map(str, arguments)])
        return code, capsys.readouterr().out

    return call


@pytest.mark.parametrize("way", ["", "generation-000002", "generation-000001/manifest.json"])
def test_generations_are_listed_whichever_way_one_comes(inspect, directory, way):
    code, out = inspect(directory / way, "--check")
    assert code == 1
    for part in (
        "1,234 of 2,468 forward, 10 of 2,468 backward",
        "2026-01-01T00:00:00+00:00",
        "generation 3: ",
        "manifest.json is missing: this generation was not finished",
        "goes on from generation 2; its files have the digests that were written",
    ):
        assert part in out


def test_damage_is_named_where_files_are_read(inspect, directory):
    path = directory / "generation-000002" / "rank-00001.h5"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "goes on from generation 2; --check reads the files too" in inspect(directory)[1]
    code, out = inspect(directory, "--check")
    assert code == 1
    assert "rank-00001.h5 is damaged" in out
    assert "goes on from generation 1" in out


def test_the_same_for_machines(inspect, directory):
    (directory / "REQUEUE").touch()
    code, out = inspect(directory, "--json")
    found = json.loads(out)
    assert (code, found["kind"], found["newest"]) == (1, "ringmpi-checkpoints", 2)
    assert [each["generation"] for each in found["generations"]] == [3, 2, 1]
    assert found["generations"][1]["manifest"]["progress"]["pairs"] == {"forward": 1234, "backward": 10}
    assert found["notes"] == ["REQUEUE: the run has been stopped, and wants to go on"]


def test_nothing_wrong_is_no_failure(inspect, directory):
    (directory / "generation-000003").rmdir()
    assert inspect(directory, "--check")[0] == 0
    for path in directory.glob("*/manifest.json"):
        path.unlink()
    code, out = inspect(directory)
    assert code == 1
    assert "No generation can be used: ringmpi run --resume starts from the beginning." in out


def test_a_directory_that_a_finished_run_has_left_is_no_failure(inspect, tmp_path):
    (tmp_path / "LOCK").touch()
    code, out = inspect(tmp_path)
    assert code == 0
    assert "there is no unfinished run here" in out
    (tmp_path / "other").touch()
    assert inspect(tmp_path)[0] != 0


def test_no_cell_is_cut_where_the_width_is_not_known(inspect, directory, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = inspect(directory)[1]
    assert "2026-01-01T00:00:00+00:00  backward" in out
    assert "1,234 of 2,468 forward, 10 of 2,468 backward" in out
    assert not any(line.endswith(" ") for line in out.splitlines())
