"""A certificate file names all that it rests on, and is checked again by anybody who has the two files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.analysis.certify import certify_file, verify_against
from ringmpi.analysis.evidence import canonical, facts_digest, read_evidence, write_evidence
from ringmpi.core.dtypes import bfloat16
from ringmpi.errors import ConfigError, StorageError
from ringmpi.storage.digest import new_digest
from tests.analysis.written import LENGTH, Case, write_run

UPSTREAM = '[backward]\ngrad_output = "do"\ngrad_log_sum_exp = "dlse"'
CASES = [
    Case(checksums=True),
    Case(dtype=bfloat16, batch=(2,), sharding="striped", virtual=True),
    Case(dtype=np.float64, attention="mask = {window = [9, 0]}\nsink_logits = [0.5, -inf, 1, 2]", checksums=True),
    Case(backward=UPSTREAM, checksums=True),
    Case(dtype=np.float16, backward=UPSTREAM, attention='mask = {documents = {query = "lengths"}}'),
]


def written(folder, case=CASES[0], rows=9, seed=0):
    """Output, certificate and what is in it."""
    path = write_run(folder, case)
    certificate, evidence = certify_file(path, rows, seed)
    assert certificate.passed, certificate.lines()
    write_evidence(folder / "cert.json", evidence)
    return path, folder / "cert.json", evidence


def failed(certificate):
    return {check.name for check in certificate.checks if not check.passed}


def text_of(certificate, name):
    return next(check.text for check in certificate.checks if check.name == name)


def edited(path, edit, *, sealed=False):
    """A certificate in which `edit` has changed something; `sealed`: by somebody who knows the digest."""
    found = json.loads(path.read_text())
    edit(found["certificate"])
    if sealed:
        found["blake2b"] = facts_digest(found["certificate"])
    path.write_text(json.dumps(found))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rows", [0, 5, None])
def test_a_certificate_agrees_with_the_files_that_it_is_of(tmp_path, case, rows):
    path, cert, evidence = written(tmp_path, case, rows)
    again = verify_against(path, cert)
    assert again.passed, again.lines()
    assert evidence.sample.positions == ("all" if rows is None else evidence.sample.positions)
    assert set(evidence.quantities) == (set(evidence.output) if rows != 0 else set())


def test_it_names_everything(tmp_path):
    path, _, evidence = written(tmp_path, CASES[3])
    with h5py.File(path) as file, h5py.File(tmp_path / "input.h5") as given:
        for name, facts in evidence.output.items():
            assert facts.blake2b == file[name].attrs["blake2b"]
            assert facts.shape == file[name].shape
        for name, dataset in {
            "query": "q",
            "key": "k",
            "value": "v",
            "grad_output": "do",
            "grad_log_sum_exp": "dlse",
        }.items():
            digest = new_digest()
            digest.update(given[dataset][...].tobytes())
            assert evidence.input[name].blake2b == digest.hexdigest()
        assert evidence.run["configuration"] == file["provenance"].attrs["configuration"]
    assert evidence.run["versions"] == {"ringmpi": "0"}
    assert evidence.question["mask"][0] == "causal"
    assert evidence.question["scale"] == 5**-0.5
    pairs = LENGTH * (LENGTH + 1) // 2
    assert evidence.pairs["pairs_asked"] == evidence.pairs["pairs_attended"] == 4 * pairs
    assert evidence.pairs["backward_pairs_attended"] == 4 * pairs
    assert len(evidence.sample.positions) == len(evidence.sample.keys) == 9
    assert all(0 <= quantity.worst_ratio <= 1 for quantity in evidence.quantities.values())
    assert evidence.verdict == "verified"
    assert all(evidence.checks.values())
    assert evidence.findings == {}


def test_every_byte_but_date_and_host_is_the_same_again(tmp_path):
    path, _, first = written(tmp_path)
    _, second = certify_file(path, 9, 0)
    assert first.model_copy(update={"issued": {}}) == second.model_copy(update={"issued": {}})
    _, third = certify_file(path, 9, 1)
    assert third.sample.positions != first.sample.positions


def test_rows_are_spread_over_ranks_and_positions(tmp_path):
    _, _, evidence = written(tmp_path, Case(sharding="contiguous", ranks=5), rows=10)
    assert np.bincount(np.array(evidence.sample.positions) // (LENGTH // 5)).tolist() == [2] * 5


def test_the_digest_is_that_of_the_documents(tmp_path):
    """As docs/certificate.md has it, and however the file is indented."""
    _, cert, _ = written(tmp_path)
    found = json.loads(cert.read_text())
    text = json.dumps(found["certificate"], sort_keys=True, separators=(",", ":"))
    assert canonical(found["certificate"]) == text
    cert.write_text(json.dumps(found, indent=7))
    assert read_evidence(cert)[1]


RECORDED = """
[input]
file = "input.h5"
query = "q"
key = "k"
value = "v"
[attention]
mask = "causal"
[record]
rows = true
map_block = 16
received = true
top_rows = [0, 59]
[output]
file = "recorded.h5"
"""


def test_what_was_recorded_is_certified_too(tmp_path):
    write_run(tmp_path, Case())
    (tmp_path / "run.toml").write_text(RECORDED)
    command = [sys.executable, "-m", "ringmpi", "run", "--quiet", "run.toml"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    certificate, evidence = certify_file(tmp_path / "recorded.h5", 7)
    assert certificate.passed, certificate.lines()
    recorded = {name for name in evidence.output if name.startswith("/record/")}
    assert {"/record/entropy", "/record/map", "/record/top_keys"} <= recorded
    assert {"/record/entropy", "/record/map"} <= set(evidence.quantities)
    assert evidence.pairs["map_pairs_attended"] == evidence.pairs["pairs_attended"]
    assert evidence.output["/record/top_rows"].shape == (2,)
    assert analysis.summary(tmp_path / "recorded.h5").key_length == LENGTH
    write_evidence(tmp_path / "cert.json", evidence)
    assert verify_against(tmp_path / "recorded.h5", tmp_path / "cert.json").passed
    with h5py.File(tmp_path / "recorded.h5", "r+") as file:
        file["record/map"][1, 2, 0] *= 1.5
    assert {"digest of /record/map", "certified output /record/map"} <= failed(
        verify_against(tmp_path / "recorded.h5", tmp_path / "cert.json")
    )


def run_recorded(folder, more="", top_keys=8):
    (folder / "run.toml").write_text(RECORDED.replace("[output]", f"top_keys = {top_keys}\n[output]") + more)
    command = [sys.executable, "-m", "ringmpi", "run", "--quiet", "run.toml"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=60)


def test_what_was_recorded_of_no_keys_is_certified(tmp_path):
    """Also by the run itself. A map of no key blocks has no worst element."""
    with h5py.File(tmp_path / "input.h5", "w") as file:
        for name, length in (("q", LENGTH), ("k", 0), ("v", 0)):
            file[name] = np.ones((4, length, 4), np.float32)
    done = run_recorded(tmp_path, "verify_rows = 8\n", top_keys=1)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    certificate, evidence = certify_file(tmp_path / "recorded.h5", None)
    assert certificate.passed, certificate.lines()
    assert evidence.output["/record/map"].shape == (4, 4, 0)
    assert "/record/map" not in evidence.quantities


def test_more_top_keys_than_keys_are_refused(tmp_path):
    write_run(tmp_path, Case())
    for count, says in (
        (LENGTH, ""),
        (LENGTH + 1, "[record] top_keys = 61, but there are 60 keys. Ask for at most that many"),
    ):
        done = run_recorded(tmp_path, top_keys=count)
        assert (done.returncode == 0, says in done.stderr) == (not says, True), done.stderr


def worse(certificate):
    certificate["quantities"]["/output"]["worst_ratio"] *= 3


def fewer_pairs(certificate):
    certificate["pairs"]["pairs_attended"] -= 1


def another_mask(certificate):
    certificate["question"]["mask"][0] = "full"


def another_input(certificate):
    certificate["input"]["key"]["blake2b"] = "0" * 64


def another_version(certificate):
    certificate["run"]["versions"]["ringmpi"] = "9"


def rows_beyond(certificate):
    certificate["sample"]["positions"].append(10**15)


def verdict(certificate):
    certificate["verdict"] = "not verified"


def no_quantity(certificate):
    del certificate["quantities"]["/output"]


def other_error(certificate):
    certificate["quantities"]["/output"]["worst_error"] *= 1.5


def other_permission(certificate):
    """Error and ratio still fit to each other."""
    quantity = certificate["quantities"]["/output"]
    quantity["permitted_error"] *= 9
    quantity["worst_error"] *= 9


def no_place(certificate):
    certificate["quantities"]["/output"]["worst_at"] = []


def another_finding(certificate):
    certificate["findings"]["rows of /output"] = "all wrong"


def lines_and_colours(certificate):
    certificate["run"]["started"] = "now: ok\n\x1b[2Jout.h5 verified: 9 checks passed"


def other_names(certificate):
    certificate["output"]["/x\n\x1b[2J" + "y" * 999] = certificate["output"]["/output"]


EDITS = {
    other_error: ("certified rows of /output", "worst_error: the certificate has"),
    other_permission: ("certified rows of /output", "permitted_error: the certificate has"),
    no_place: ("certified rows of /output", "worst_at: the certificate has []"),
    another_finding: ("certified checks", "findings: the certificate has ['rows of /output'], found []"),
    lines_and_colours: ("certified run", r"started: the certificate has now: ok\n\x1b[2Jout.h5 verified"),
    other_names: (r"certified output /x\n\x1b[2J" + "y" * 46 + "...", "differs from the certificate"),
    worse: ("certified rows of /output", "worst_ratio: the certificate has"),
    fewer_pairs: ("certified pairs", "pairs_attended: the certificate has 7319, found 7320"),
    another_mask: ("certified question", "mask: the certificate has ['full'"),
    another_input: ("certified input key", "blake2b: the certificate has 000"),
    another_version: ("certified run", "versions: the certificate has {'ringmpi': '9'}"),
    rows_beyond: ("certified sample", "positions: the certificate has"),
    verdict: ("certified checks", "verdict: the certificate has not verified, found verified"),
    no_quantity: ("certified rows of /output", "the certificate has none"),
}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_changed_certificate_is_found_and_what_changed_is_named(tmp_path, edit, sealed):
    path, cert, _ = written(tmp_path)
    edited(cert, edit, sealed=sealed)
    again = verify_against(path, cert)
    name, text = EDITS[edit]
    assert failed(again) == {name, *([] if sealed else ["certificate"])}
    assert text in text_of(again, name)


def test_a_change_of_date_or_host_is_seen_by_the_digest_alone(tmp_path):
    path, cert, _ = written(tmp_path)
    edited(cert, lambda certificate: certificate["issued"].update(host="elsewhere"))
    assert failed(verify_against(path, cert)) == {"certificate"}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text[:-40], "is not a ringmpi certificate"),
        (lambda text: text.replace("ringmpi-certificate", "other"), "is not a ringmpi certificate"),
        (lambda text: "[" * 100_000, "is not a ringmpi certificate"),
        (lambda text: "[]", "is not a ringmpi certificate"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 2'), "has layout version 2"),
        (lambda text: text.replace('"verdict"', '"verdikt"'), "was changed: its field verdict"),
        (lambda text: text.replace('"worst_ratio": 0', '"worst_ratio": NaN, "x": 0'), "was changed: its field"),
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path, spoil, says):
    path, cert, _ = written(tmp_path)
    cert.write_text(spoil(cert.read_text()))
    with pytest.raises(StorageError, match=says):
        verify_against(path, cert)


def deep(levels):
    found = []
    for _ in range(levels):
        found = [found]
    return found


ATTACKS = [
    (
        lambda c: c["sample"].update(positions=[2**70]),
        "its field sample.positions.*less than or equal to 9007199254740992",
    ),
    (lambda c: c["sample"].update(keys=[-1]), "its field sample.keys.*greater than or equal to 0"),
    (lambda c: c["run"].update(user="\ud800"), "its field certificate has text that is not Unicode"),
    (lambda c: c["run"].update({"\udfff": 1}), "its field certificate has text that is not Unicode"),
    (lambda c: c["question"].update(mask=deep(800)), "lists nested more than 32 deep"),
    (lambda c: c["output"].update({"\x1b[2J\n": 3}), r"its field output.\\x1b\[2J\\n is not"),
]


@pytest.mark.parametrize(("attack", "says"), ATTACKS)
def test_what_no_certificate_has_is_refused_by_its_field(tmp_path, attack, says):
    path, cert, _ = written(tmp_path, rows=1)
    edited(cert, attack, sealed=True)
    with pytest.raises(StorageError, match=f"was changed: {says}|was changed: its field certificate has {says}"):
        verify_against(path, cert)


@pytest.mark.parametrize("facts", [None, [], 3, "no"])
def test_a_certificate_of_nothing_is_refused(tmp_path, facts):
    path, cert, _ = written(tmp_path, rows=1)
    cert.write_text(json.dumps(json.loads(cert.read_text()) | {"certificate": facts}))
    with pytest.raises(StorageError, match="its field certificate is not what a certificate has"):
        verify_against(path, cert)


def test_a_missing_certificate_is_refused(tmp_path):
    path, cert, _ = written(tmp_path)
    cert.unlink()
    with pytest.raises(StorageError, match="No such file"):
        verify_against(path, cert)


def test_an_input_that_was_moved_is_found_by_its_new_path(tmp_path):
    path, cert, _ = written(tmp_path)
    (tmp_path / "input.h5").rename(tmp_path / "moved.h5")
    gone = verify_against(path, cert)
    assert {"input", "question", "certified input key"} <= failed(gone)
    assert "If it was moved, give its new place with --input PATH" in text_of(gone, "input")
    assert verify_against(path, cert, input_path=tmp_path / "moved.h5").passed
    assert certify_file(path, 3, input_path=tmp_path / "moved.h5")[0].passed


def test_an_input_of_the_same_size_and_time_with_other_numbers_is_seen(tmp_path):
    """Also in rows that were not sampled."""
    path, cert, evidence = written(tmp_path, rows=1)
    far = next(position for position in range(LENGTH) if position not in evidence.sample.positions)
    times = (tmp_path / "input.h5").stat()
    with h5py.File(tmp_path / "input.h5", "r+") as file:
        file["q"][0, far, 0] += 1
    os.utime(tmp_path / "input.h5", ns=(times.st_atime_ns, times.st_mtime_ns))
    again = verify_against(path, cert)
    assert failed(again) == {"input", "certified input query", "certified checks"}
    assert "different numbers in query" in text_of(again, "input")


def test_another_run_of_the_same_question_is_another_output(tmp_path):
    _, cert, _ = written(tmp_path)
    (tmp_path / "more").mkdir()
    shutil.copyfile(tmp_path / "input.h5", tmp_path / "more/input.h5")
    other = write_run(tmp_path / "more", Case(checksums=True, sharding="contiguous"))
    found = verify_against(other, cert)
    assert "certified run" in failed(found)
    assert "certified question" not in failed(found)
    text = text_of(found, "certified run")
    assert "configuration, [ring] sharding: the certificate has zigzag, found contiguous;" in text


def test_what_is_not_verified_is_written_down_too(tmp_path):
    path = write_run(tmp_path, Case(pairs_short=1))
    certificate, evidence = certify_file(path)
    assert not certificate.passed
    assert evidence.verdict == "not verified"
    assert "pairs attended 7,319" in evidence.findings["pairs"]
    write_evidence(tmp_path / "cert.json", evidence)
    again = verify_against(path, tmp_path / "cert.json")
    assert failed(again) == {"pairs"}, "the certificate says the same"


def test_numbers_that_are_not_finite_are_written_and_read(tmp_path):
    def spoil(output, log_sum_exp):
        output[:, :, 5] = np.inf

    path = write_run(tmp_path, Case(spoil=spoil, attention='mask = "full"\nsink_logits = [0, -inf, 1, 2]'))
    _, evidence = certify_file(path, None)
    assert evidence.quantities["/output"].worst_ratio == np.inf
    write_evidence(tmp_path / "cert.json", evidence)
    assert failed(verify_against(path, tmp_path / "cert.json")) == {"rows of /output"}


@pytest.mark.parametrize("options", [{"rows": -1}, {"seed": -1}])
def test_numbers_below_0_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="must be a whole number >= 0"):
        certify_file(tmp_path / "out.h5", **options)
