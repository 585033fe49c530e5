"""A whole report of a small output: the page is whole in itself, its tables hold the numbers of the plain formula."""

import csv
import json
import os
import re

import h5py
import numpy as np
import pytest

from ringmpi.analysis.verify import verify_file
from ringmpi.errors import StorageError
from ringmpi.report.beside import Beside
from ringmpi.report.writing import write_report
from tests.analysis.recorded_output import BLOCK, FIRST_KEYS, block_map, set_attempts, write_recorded
from tests.analysis.written import LENGTH, Case, write_run
from tests.report.parsed import Parsed, faults
from tests.tolerances import assert_same_means

LARGEST = 3_000_000  # bytes of a page
ATTACK = '<script>alert("$x^2$ & {{ 7 * 7 }}")</script>'
FIGURES = {"map", "entropy", "distance", "sinks", "received", "top-keys", "timeline", "slow-rank", "overlap", "balance"}
FIGURES |= {"memory"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The report, its directory, the output and the weights."""
    folder = tmp_path_factory.mktemp("run")
    with np.errstate(all="warn"):
        recorded = write_recorded(folder)
        path, weights = recorded.path, recorded.weights
        with h5py.File(path, "r+") as file:
            times = np.random.default_rng(0).uniform(1, 2, file["timeline/attend_seconds"].shape)
            file["timeline/attend_seconds"][...], file["timeline/flight_seconds"][...] = times, times
            file["timeline/wait_seconds"][...] = times / 4
            file["timeline/pairs_attended"][...] = file["timeline"].attrs["pairs_attended"] // times.size
            file["timeline/peak_memory_bytes"][...] = 1 << 20
        return write_report([path], folder / "report"), folder / "report", path, weights


def read_page(written):
    return written.page.read_text(encoding="utf-8")


def read_csv(directory, name):
    with (directory / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_is_whole_in_itself(made):
    text = read_page(made[0])
    assert faults(text) == []
    assert len(text.encode()) < LARGEST
    assert len(made[0].missing) == 1
    assert "ringmpi verify" in made[0].missing[0]


def test_every_figure_is_there_on_the_page_and_as_files(made):
    written, directory = made[:2]
    assert {path.name for path in directory.iterdir()} == {
        *(path.name for path in (*written.beside, written.page)),
        "report-files.json",
    }
    page = Parsed(read_page(written))
    assert {name for name in page.ids() if name.startswith("figure-")} == {f"figure-{name}" for name in FIGURES}
    for name in FIGURES:
        for kind, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
            assert (directory / name).with_suffix(kind).read_bytes().startswith(start)
    linked = {a["href"] for a in page.named("a") if not a["href"].startswith("#")}
    assert linked <= {path.name for path in written.beside}


def test_pictures_have_the_colours_of_the_theme(made):
    svg = re.findall(r"<svg.*?</svg>", read_page(made[0]), re.DOTALL)
    assert len(svg) == 2 * len(FIGURES) - 1  # of the map, a still one for readers without scripts
    assert all("var(--ink)" in text for text in svg)
    assert not any("#01fe" in text for text in svg)
    assert [found for text in svg for found in re.findall(".{50}(?:font-family|DejaVu).{50}", text)] == []


def test_tables_hold_the_numbers_of_the_plain_formula(made):
    _, directory, _, weights = made
    heads = read_csv(directory, "heads")
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    assert_same_means([float(line["entropy"]) for line in heads], -(weights * logs).sum(2).mean(1), LENGTH)
    assert_same_means([float(line["sinks"]) for line in heads], weights[..., :FIRST_KEYS].sum(2).mean(1), LENGTH)
    received = read_csv(directory, "received")
    found = np.array([float(line["mean"]) for line in received if line["head"] == "head 2"])
    assert_same_means(found, weights[2].sum(0), LENGTH)


def test_the_map_in_the_table_is_that_of_the_plain_formula(made):
    _, directory, _, weights = made
    blocks = block_map(weights, BLOCK)
    found = np.zeros((len(blocks) + 1, *blocks.shape[1:]))
    names = ["mean of heads", *(f"head {head}" for head in range(len(blocks)))]
    for line in read_csv(directory, "map"):
        place = int(line["query_start"]) // BLOCK, int(line["key_start"]) // BLOCK
        found[(names.index(line["head"]), *place)] = float(line["weight"])
    assert_same_means(found[1:], blocks, LENGTH)
    assert_same_means(found[0], blocks.mean(0), LENGTH)


def test_the_same_output_gives_the_same_bytes(made, tmp_path):
    written, _, path, _ = made
    again = write_report([path], tmp_path)
    assert [p.read_bytes() for p in again.beside] == [p.read_bytes() for p in written.beside]
    assert read_page(again) == read_page(written)


def test_what_was_not_recorded_is_named_with_its_option(tmp_path):
    path = write_run(tmp_path, Case(ranks=2))
    written = write_report([path], tmp_path / "report", rows=8)
    text = read_page(written)
    assert faults(text) == []
    for option in ("rows = true", "map_block = 256", "received = true", "top_rows = [0, 100]"):
        assert sum(line.endswith(f"[record] {option}") for line in written.missing) == 1
        assert f"<code>[record] {option}</code>" in text
    assert f"verified: {len(verify_file(path, rows=8).checks)} checks passed" in text
    assert "<canvas" not in text


def test_names_from_a_file_are_shown_as_they_are(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        about = file["provenance"].attrs
        about["configuration"] = about["configuration"].replace('"q"', json.dumps(ATTACK))
        about["command_line"] = ATTACK
        about["versions"] = json.dumps({ATTACK: ATTACK})
        about["input_identity"] = json.dumps(json.loads(about["input_identity"]) | {"path": ATTACK})
        file["provenance/hosts"][...] = [ATTACK] * 3
    text = read_page(write_report([path], tmp_path / "report"))
    assert faults(text) == []
    page = Parsed(text)
    assert len(page.named("script")) == 1
    assert ATTACK in page.texts["dd"]
    assert ATTACK in page.texts["pre"]


def test_files_of_an_earlier_report_go_and_others_stay(made, tmp_path):
    directory = tmp_path / "report"
    write_report([made[2]], directory)
    (directory / "mine.csv").write_text("mine")
    outside = tmp_path / "outside.csv"
    outside.write_text("mine")
    about = json.loads((directory / "report-files.json").read_text())
    about["files"].append("../outside.csv")
    (directory / "report-files.json").write_text(json.dumps(about))
    assert (directory / "entropy.csv").exists()
    written = write_report([write_run(tmp_path, Case(ranks=2))], directory)
    kept = {path.name for path in directory.iterdir()}
    assert kept == {*(path.name for path in (*written.beside, written.page)), "report-files.json", "mine.csv"}
    assert "entropy.csv" not in kept
    assert outside.exists()


@pytest.mark.parametrize(
    "text", ['{"files": ["mine.csv"]}', "[]", "no json", '{"written_by": "me", "files": ["mine.csv"]}']
)
def test_a_list_that_is_not_of_a_report_removes_nothing(tmp_path, text):
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "report-files.json").write_text(text)
    Beside(tmp_path)
    assert (tmp_path / "mine.csv").exists()


def test_text_figure_and_table_agree(made):
    """On units, and on how many keys there are; a table that is cut short links to the whole one."""
    text = read_page(made[0])
    assert "The largest rank held 1 MiB" in text
    assert "libraries included, in MiB" in text
    assert "largest memory, MiB" in text
    assert len(re.findall(r'href="top-keys.csv"', text)) == 3  # of the figure, of the table, and of what it leaves out
    assert any("Time per pair, by rank" in caption for caption in re.findall("<figcaption>.*?</figcaption>", text))


def test_a_row_without_top_keys_is_said_to_meet_nan(tmp_path):
    path = write_recorded(tmp_path).path
    with h5py.File(path, "r+") as file:
        file["record/top_keys"][0, 1], file["record/top_weights"][0, 1] = -1, np.nan
    text = read_page(write_report([path], tmp_path / "report"))
    assert text.count("meets NaN") == 1
    assert "sees no key" not in text


def test_the_certificate_says_no_more_of_pairs_than_a_count_can(tmp_path):
    path = write_run(tmp_path, Case(ranks=2))
    counted = read_page(write_report([path], tmp_path / "counted"))
    assert "another that was met twice would cancel" in counted
    assert "no pair was dropped" not in counted + read_page(write_report([path], tmp_path / "verified", rows=8))


def test_an_output_that_fails_its_checks_is_not_called_exact_at_the_top(tmp_path):
    """Its pairs are all there; one of its numbers is wrong."""
    path = write_run(tmp_path, Case(ranks=2))
    assert 'class="good">yes<small>' in read_page(write_report([path], tmp_path / "whole", rows=8))
    with h5py.File(path, "r+") as file:
        file["output"][0, 30, 0] += 1
    failed = write_report([path], tmp_path / "report", rows=8)
    head = read_page(failed).partition("</header>")[0].partition("<header>")[2]
    assert "<p>Attention of 4 query heads" in head
    first = re.search("<div><dt>(.*?)</dt><dd class=(.*?)>(.*?)<small>(.*?)</small>", head).groups()
    assert first == ("Verified", '"bad"', "NO", failed.certificate.count)
    assert re.fullmatch(r"\d of \d+ checks failed", failed.certificate.count)


def test_a_run_with_a_batch_and_gradients(tmp_path):
    case = Case(batch=(2,), backward="[backward]\ngrad_output = 'do'")
    text = read_page(write_report([write_run(tmp_path, case)], tmp_path / "report"))
    assert faults(text) == []
    assert "2 batch entries of 4 query heads" in text
    assert "Timeline, backward pass" in text


def test_outputs_beside_each_other(tmp_path):
    paths = []
    for ranks in (1, 2, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        paths.append(write_run(folder, Case(ranks=ranks)))
        with h5py.File(paths[-1], "r+") as file:
            file["timeline/attend_seconds"][...] = 1.25 / ranks**2
    written = write_report(paths, tmp_path / "report")
    text = read_page(written)
    assert faults(text) == []
    assert "Strong scaling" in text
    lines = read_csv(tmp_path / "report", "scaling")
    assert [float(line["efficiency"]) for line in lines] == [1.0, 1.0, 1.0]
    assert [line["output"] for line in read_csv(tmp_path / "report", "outputs")] == [str(path) for path in paths]


def test_outputs_that_do_not_scale_are_compared_alone(tmp_path):
    path = write_run(tmp_path, Case())
    written = write_report([path, path], tmp_path / "report")
    assert any("at least two numbers of ranks" in line for line in written.missing)
    assert faults(read_page(written)) == []


def test_times_of_a_run_that_was_stopped_are_said_to_be_of_its_last_attempt(tmp_path):
    path = write_run(tmp_path, Case(ranks=2))
    set_attempts(path, ranks=(3, 4, 2))
    written = write_report([path, path], tmp_path / "report")
    text = read_page(written)
    assert "<small>the last of 3 attempts; passes: forward" in text
    assert "Here, in overlap, balance and memory: the last of 3 attempts, not those before it." in text
    assert any("its seconds cover the last of 3 attempts" in line for line in written.missing)


@pytest.mark.parametrize("damage", ["none", "empty", "cut", "foreign"])
def test_a_file_that_is_no_output_is_refused(tmp_path, damage):
    path = write_run(tmp_path, Case())
    whole = path.read_bytes()
    if damage == "foreign":
        path = tmp_path / "input.h5"
    else:
        path.write_bytes({"none": whole, "empty": b"", "cut": whole[: len(whole) // 2]}[damage])
    path = tmp_path / "nothing.h5" if damage == "none" else path
    with pytest.raises(StorageError, match=path.name):
        write_report([path], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path):
    path = write_run(tmp_path, Case())
    (tmp_path / "report").write_text("a file")
    with pytest.raises(StorageError, match="report"):
        write_report([path], tmp_path / "report")


def test_an_output_whose_name_is_no_utf_8_is_escaped(tmp_path):
    """As Linux allows; the page, the tables and the list are UTF-8 all the same."""
    path = tmp_path / os.fsdecode(b"n\xff.h5")
    output = write_run(tmp_path, Case())
    try:
        output.rename(path)
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    written = write_report([path], tmp_path / "report")
    assert "n\\udcff.h5" in read_page(written)
    assert any("n\\udcff.h5" in row["value"] for row in read_csv(tmp_path / "report", "run"))
