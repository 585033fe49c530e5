"""`ringmpi verify --certificate` and `--against`: files, messages, exit codes."""

from __future__ import annotations

import json

import pytest

from ringmpi.cli import exit_code
from tests.analysis.written import Case, write_run
from tests.storage.test_lock import holder


@pytest.fixture
def run(capsys):
    """The command in this process: exit code, stdout, stderr."""

    def call(*arguments):
        code = exit_code(["verify", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_a_certificate_is_written_and_checked(tmp_path, run):
    path, cert = write_run(tmp_path, Case(checksums=True)), tmp_path / "cert.json"
    code, out, _ = run(path, "--rows", "all", "--certificate", cert)
    assert code == 0
    assert "60 of 60 rows recomputed" in out
    assert json.loads(cert.read_text())["certificate"]["sample"]["positions"] == "all"
    code, out, err = run(path, "--against", cert)
    assert (code, err) == (0, "")
    assert "certificate cert.json has the digest that was written: ok" in out
    assert "rows of /output matches the certificate, worst ratio" in out
    cert.write_text(cert.read_text().replace('"verified"', '"not verified"'))
    code, out, _ = run(path, "--against", cert, "--json")
    assert code == 1
    failed = [check["name"] for check in json.loads(out)["checks"] if not check["passed"]]
    assert failed == ["certificate", "certified checks"]


def test_a_certificate_is_overwritten_by_force_alone(tmp_path, run):
    path, cert = write_run(tmp_path, Case()), tmp_path / "cert.json"
    assert run(path, "--certificate", cert)[0] == 0
    before = cert.read_text()
    code, out, err = run(path, "--certificate", cert, "--rows", 3)
    assert (code, out) == (3, "")
    assert "exists and would be overwritten. To check against it, give --against" in err
    assert cert.read_text() == before
    assert run(path, "--certificate", cert, "--rows", 3, "--force")[0] == 0
    assert len(json.loads(cert.read_text())["certificate"]["sample"]["positions"]) == 3


def test_an_input_that_was_moved_is_given_by_input(tmp_path, run):
    path = write_run(tmp_path, Case())
    (tmp_path / "input.h5").rename(tmp_path / "moved.h5")
    code, out, _ = run(path)
    assert code == 1
    assert "If it was moved, give its new place with --input PATH: FAILED" in out
    code, out, _ = run(path, "--input", tmp_path / "moved.h5")
    assert code == 0, out


def test_of_two_certificates_with_one_name_the_second_is_refused(tmp_path, run):
    path, cert = write_run(tmp_path, Case()), tmp_path / "cert.json"
    other = holder(cert)
    try:
        code, out, err = run(path, "--certificate", cert, "--force")
    finally:
        other.communicate()
    assert (code, out) == (3, "")
    assert f"is being written by another run (process {other.pid} on " in err
    assert not cert.exists()


def test_a_certificate_that_cannot_be_written_is_an_error(tmp_path, run):
    path = write_run(tmp_path, Case())
    code, _, err = run(path, "--certificate", tmp_path / "no" / "cert.json")
    assert code == 3
    assert "cannot lock" in err


@pytest.mark.parametrize("victim", ["out.h5", "input.h5", "notes.json", "broken.json"])
def test_what_is_no_certificate_is_not_overwritten_by_force(tmp_path, run, victim):
    path = write_run(tmp_path, Case())
    (tmp_path / "notes.json").write_text('{"schema": "mine"}')
    (tmp_path / "broken.json").write_text("{")
    before = (tmp_path / victim).read_bytes()
    code, out, err = run(path, "--certificate", tmp_path / victim, "--force")
    assert (code, out) == (3, "")
    assert "is not a ringmpi certificate, so --force does not replace it" in err
    assert (tmp_path / victim).read_bytes() == before
