"""`ringmpi analyze`: what it answers, what it refuses, what it says is missing."""

import json

import pytest

from ringmpi.cli import exit_code
from ringmpi.report import rendering
from tests.analysis.written import Case, write_run


@pytest.fixture
def output(tmp_path):
    return write_run(tmp_path, Case(ranks=2))


def test_paths_are_written_as_json(output, tmp_path, capsys):
    assert exit_code(["analyze", str(output), "-o", str(tmp_path / "report"), "--json", "--verify", "4"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["report"] == str(tmp_path / "report/report.html")
    assert str(tmp_path / "report/timeline.svg") in answer["files"]
    assert answer["verified"] is True
    assert any(line.endswith("[record] rows = true") for line in answer["missing"])


def test_an_output_that_is_wrong_is_reported_and_ends_with_1(tmp_path, capsys):
    def spoil(output, log_sum_exp):
        output[0, 1, 3] += 1

    path = write_run(tmp_path, Case(ranks=2, spoil=spoil))
    assert exit_code(["analyze", str(path), "-o", str(tmp_path / "report"), "--verify", "60"]) == 1
    said = capsys.readouterr().out.splitlines()[-2]
    assert "NOT verified" in said
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert said in page
    assert '<b class="bad">FAILED</b>' in page


def test_people_read_where_it_is_and_what_is_not_in_it(output, tmp_path, capsys):
    assert exit_code(["analyze", str(output), "-o", str(tmp_path / "report")]) == 0
    *missing, last = capsys.readouterr().out.splitlines()
    assert missing
    assert all(line.startswith("not in it: ") for line in missing)
    assert last.startswith(f"{tmp_path}/report/report.html (")


def test_without_a_directory_it_is_refused(output, capsys):
    assert exit_code(["analyze", str(output)]) == 2
    assert "--output" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert exit_code(["analyze", str(tmp_path / "none.h5"), "-o", str(tmp_path / "report")]) == 3
    assert "none.h5" in capsys.readouterr().err


@pytest.mark.parametrize("name", rendering.NEEDED)
def test_without_a_library_it_says_what_to_install(output, tmp_path, monkeypatch, capsys, name):
    def import_module(wanted):
        assert wanted == name
        raise ImportError(wanted)

    monkeypatch.setattr(rendering, "import_module", import_module)
    monkeypatch.setattr(rendering, "NEEDED", (name,))
    assert exit_code(["analyze", str(output), "-o", str(tmp_path / "report")]) == 2
    said = f"ringmpi analyze needs {name}, which is not installed. Run: python -m pip install {name}"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "report").exists()
