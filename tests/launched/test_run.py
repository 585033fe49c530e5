"""`mpirun -n P ringmpi run`: files in, files out, counted and verified."""

import json

import h5py
import ml_dtypes
import numpy as np
import pytest

from tests.launched.conftest import ROOT


def passed(done):
    assert done.code == 0, done.err + done.out
    report = json.loads(done.out)
    assert report["certificate"]["passed"]
    assert report["pairs_attended"] == report["pairs_asked"]
    return report


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_dtype_on_three_ranks(mpirun, job, dtype):
    report = passed(mpirun(3, "run", job(698, dtype=dtype, options='[attention]\nmask = "causal"'), "--json"))
    assert report["pairs_asked"] == 698 * 699 // 2 * 4


@pytest.mark.parametrize("sharding", ["auto", "contiguous", "zigzag", "striped", "balanced"])
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
def test_every_sharding_and_schedule(mpirun, job, sharding, schedule):
    options = f'[attention]\nmask = {{window = [99, 0]}}\n[ring]\nsharding = "{sharding}"\nschedule = "{schedule}"'
    passed(mpirun(3, "run", job(698, options=options, heads=(2, 1)), "--json"))


def test_a_prime_length(mpirun, job):
    options = '[attention]\nmask = "causal"'
    assert passed(mpirun(3, "run", job(4099, options=options, heads=(1, 1)), "--json"))["pairs_asked"] == 4099 * 2050


def test_documents_from_a_dataset(mpirun, job):
    lengths = np.array([0, 5, 0, 97, 1, 0, 41])
    options = '[attention]\nmask = {documents = {query = "lengths", within = "causal"}}'
    report = passed(mpirun(3, "run", job(144, options=options, extra={"lengths": lengths}), "--json"))
    assert report["pairs_asked"] == (lengths * (lengths + 1) // 2).sum() * 4


def test_every_score_option_is_read(mpirun, job):
    options = (
        '[attention]\nmask = {causal = "end"}\nscale = 0.5\nsoftcap = 4.0\n'
        'sink_logits = "sinks"\nalibi = [0.5, 0.25, 0.125, 0.0]'
    )
    passed(mpirun(3, "run", job(50, 77, options=options, extra={"sinks": np.linspace(-1, 2, 4)}), "--json"))


@pytest.mark.parametrize(("query_length", "key_length"), [(0, 0), (1, 1), (2, 9), (9, 2), (0, 5), (5, 0)])
def test_fewer_positions_than_ranks(mpirun, job, query_length, key_length):
    done = mpirun(4, "run", job(query_length, key_length), "--json")
    assert passed(done)["pairs_asked"] == query_length * key_length * 4
    assert "queries on 4 ranks: some ranks have none" in done.err or query_length >= 4


def test_a_mask_that_allows_nothing_runs_and_is_said(mpirun, job, tmp_path):
    done = mpirun(2, "run", job(20, options="[attention]\nmask = {keys = [7, 7]}"), "--json")
    assert passed(done)["pairs_asked"] == 0
    assert "the mask allows no pair" in done.err
    with h5py.File(tmp_path / "out.h5") as file:
        assert not file["output"][...].any()
        assert np.isneginf(file["log_sum_exp"][...]).all()


def test_the_output_is_in_the_callers_order_whatever_the_rank_count(mpirun, job, tmp_path):
    path = job(301, options='[attention]\nmask = "causal"', dtype=np.float64)
    outputs = []
    for ranks in (1, 2, 5):
        passed(mpirun(ranks, "run", path, "--json", "--force"))
        with h5py.File(tmp_path / "out.h5") as file:
            outputs.append(file["output"][...])
    assert np.abs(outputs[1] - outputs[0]).max() < 1e-14
    assert np.abs(outputs[2] - outputs[0]).max() < 1e-14


def test_the_table_says_what_a_person_wants_to_know(mpirun, job):
    done = mpirun(2, "run", job(64), COLUMNS="200")
    assert done.code == 0
    for part in ("2 ranks on 1 node", "1 of 2", "attended 16,384 of 16,384 asked: exact", "verified", "out.h5", "MiB"):
        assert part in done.out
    assert "ringmpi: 2 ranks" in done.err


def test_a_path_with_a_blank_and_a_foreign_letter_under_lang_c(mpirun, job, tmp_path):
    place = tmp_path / "my données"
    place.mkdir()
    path = job(40)
    path.rename(place / "run me.toml")
    done = mpirun(2, "run", "run me.toml", "--set", "output.file=é out.h5", "--json", cwd=place, LANG="C", LC_ALL="C")
    passed(done)
    assert (place / "é out.h5").exists()


def test_no_shard_files_are_left(mpirun, job, tmp_path):
    passed(mpirun(3, "run", job(64), "--json"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.h5", "out.h5", "run.toml"]


def test_the_demo_runs_on_another_rank_count_and_mask(mpirun, tmp_path):
    done = mpirun(
        2, "run", "jobs/demo.toml", "--set", "attention.mask={window=[255,0]}", "--set",
        f"output.file={tmp_path}/demo.h5", "--json", cwd=ROOT,
    )  # fmt: skip
    assert passed(done)["pairs_asked"] == (256 * 2048 - 256 * 255 // 2) * 9


REFUSED = [
    (["--set", "input.file=absent.h5"], 3, "absent.h5"),
    (["--set", "input.query=nowhere"], 3, "nowhere"),
    (["--set", "input.query=k", "--set", "input.key=q", "--set", "input.value=q"], 2, "do not divide into groups"),
    (["--set", "attention.mask={documents={query=[3,4]}}"], 2, "document query lengths sum to 7"),
    (["--set", "ring.sharding=zigzack"], 2, "zigzag"),
    (["--set", "attention.sink_logits=[1.0]"], 2, "sink_logits has shape (1,)"),
    (["--set", "output.file=/proc/none/out.h5"], 3, "/proc/none"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_bad_input_is_refused_once_by_all_ranks(mpirun, job, arguments, code, message):
    done = mpirun(3, "run", job(64), *arguments)
    assert done.code == code
    assert message in done.err
    assert done.err.count("ringmpi: error:") == 1
    assert "Traceback" not in done.err


def test_an_existing_output_is_kept_unless_forced(mpirun, job, tmp_path):
    (tmp_path / "out.h5").write_text("precious")
    done = mpirun(2, "run", job(30))
    assert done.code == 3
    assert "--force" in done.err
    assert (tmp_path / "out.h5").read_text() == "precious"
    passed(mpirun(2, "run", job(30), "--json", "--force"))


def test_a_summary_says_what_is_odd_with_all_its_brackets(mpirun, job):
    done = mpirun(1, "run", job(3, heads=(40, 40)))
    assert done.code == 0, done.err
    assert "arrays are [heads, length, head_dim]" in " ".join(done.out.split())
