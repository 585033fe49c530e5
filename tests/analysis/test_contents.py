"""What a file is and what is wrong with it, for files whole and damaged."""

import h5py
import numpy as np
import pytest

from ringmpi.analysis.candidates import triples
from ringmpi.analysis.conformity import departures
from ringmpi.analysis.contents import examine
from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage.layout import ATTRIBUTES, DATASETS, SHARD_DATASETS
from ringmpi.storage.tree import Entry, read_tree
from tests.analysis.written import Case, write_run
from tests.storage.samples import BFLOAT16, make_arrays, write_parts


@pytest.fixture(params=[Case(), Case(batch=(2,), dtype=BFLOAT16), Case(ranks=2, sharding="striped", dtype=np.float64)])
def path(tmp_path, request):
    return write_run(tmp_path, request.param)


@pytest.fixture
def plain(tmp_path):
    return write_run(tmp_path, Case())


def change(path, action):
    with h5py.File(path, "r+") as file:
        action(file)


def replaced(name, values):
    """An action that gives a dataset other values, shape or dtype; its attributes stay."""

    def act(file):
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = values
        file[name].attrs.update(attributes)

    return act


def of_the_file(path, changing):
    """The problems after a change, headers only and with --check."""
    change(path, changing)
    return examine(path).problems, examine(path, check=True).problems


def test_a_whole_output_has_no_problem(path):
    for check in (False, True):
        contents = examine(path, check=check)
        assert (contents.problems, contents.kind, contents.checked) == ((), "ringmpi-output", check)
        assert contents.account.counts.pairs_asked == contents.account.counts.pairs_attended
        assert {entry.path for entry in contents.entries} >= {layout.path for layout in DATASETS}
        assert contents.size_bytes == path.stat().st_size


def test_what_became_of_the_input_is_said(plain, tmp_path):
    source = tmp_path / "input.h5"
    assert examine(plain).notes == (f"input {source} is there, unchanged",)
    source.write_bytes(source.read_bytes() + b"0")
    assert "ringmpi verify tells" in examine(plain).notes[0]
    source.unlink()
    contents = examine(plain)
    assert (contents.notes, contents.problems) == ((f"input {source} is missing now",), ())


@pytest.mark.parametrize("layout", DATASETS, ids=lambda layout: layout.path)
def test_a_missing_dataset_is_named_and_the_rest_shown(plain, layout):
    def remove(file):
        del file[layout.path]

    for problems in of_the_file(plain, remove):
        assert problems == (f"{layout.path} is missing ({layout.meaning})",)
    assert len(examine(plain).entries) == 1 + 2 + len(DATASETS) - 1


@pytest.mark.parametrize("layout", ATTRIBUTES, ids=lambda layout: f"{layout.path}@{layout.name}")
def test_a_missing_attribute_is_named(plain, layout):
    change(plain, lambda file: file[layout.path].attrs.pop(layout.name))
    problems = examine(plain).problems
    assert problems[0] == f"attribute {layout.name} of {layout.path} is missing ({layout.meaning})"
    assert len(problems) == 1 + (layout.name in ("pairs_asked", "pairs_attended"))


@pytest.mark.parametrize(
    ("changing", "message"),
    [
        (replaced("output", np.zeros((4, 60), "f4")), "/output has 2 axes [4, 60]; expected (batch), query_heads"),
        (replaced("log_sum_exp", np.zeros((4, 59), "f4")), "/log_sum_exp has 59 query_length, /output has 60"),
        (replaced("log_sum_exp", np.zeros((4, 60))), "/log_sum_exp holds float64; expected float32 for an output of"),
        (replaced("output", np.zeros((4, 60, 3), "i4")), "/output holds int32; expected one of float16, bfloat16"),
        (replaced("shards", np.zeros((1, 3), int)), "/shards has 3 rank start stop step, its layout has 4"),
        (replaced("provenance/hosts", ["a"]), "/provenance/ring_order has 3 ranks, /provenance/hosts has 1"),
        (replaced("provenance/hosts", [1, 2, 3]), "/provenance/hosts holds int64; expected string"),
        (replaced("timeline/wait_seconds", np.zeros((3, 9))), "/timeline/wait_seconds has 9 steps, /timeline/attend"),
        (replaced("timeline/bytes_sent", np.zeros((3, 3))), "/timeline/bytes_sent holds float64; expected int64"),
        (lambda file: file.move("shards", "x/shards"), "/shards is missing"),
        (lambda file: (file.move("shards", "y"), file.create_group("shards")), "/shards is a group, not a dataset"),
        (lambda file: file["timeline"].attrs.update(query_slabs="4"), "attribute query_slabs of /timeline is '4'"),
        (lambda file: file["provenance"].attrs.update(versions="{"), "cannot read the provenance of"),
        (replaced("shards", np.array([[0, 0, 60, 1], [1, 5, 6, 1]])), "do not make up 60 rows"),
        (lambda file: file["timeline"].attrs.update(pairs_attended=7), "NOT EXACT: attended 7 pairs"),
        (replaced("timeline/pairs_attended", np.zeros((3, 3), int)), "NOT EXACT: attended"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_every_damage_is_named(plain, changing, message):
    for problems in of_the_file(plain, changing):
        assert any(message in problem for problem in problems), problems


def test_pairs_are_judged_where_the_record_is_lost(plain):
    def lose(file):
        del file["shards"]
        file["timeline"].attrs["pairs_attended"] = 7

    problems, _ = of_the_file(plain, lose)
    assert any(problem.startswith("NOT EXACT: attended 7 pairs of") for problem in problems)


@pytest.mark.parametrize("name", ["output", "log_sum_exp"])
def test_a_changed_number_is_found_by_check_alone(plain, name):
    def change_one(file):
        file[name][0, 3] += 1

    without, checked = of_the_file(plain, change_one)
    assert without == ()
    assert len(checked) == 1
    assert f"/{name} was changed after it was written" in checked[0]


def test_an_output_that_lost_its_mark_is_still_known_by_what_it_has(plain):
    change(plain, lambda file: file.attrs.clear())
    contents = examine(plain)
    assert contents.kind == "ringmpi-output"
    assert any("attribute schema of / is missing" in problem for problem in contents.problems)


def test_another_layout_version_is_shown_and_not_judged(plain):
    def later(file):
        file.attrs["schema_version"] = 99
        del file["shards"]

    change(plain, later)
    contents = examine(plain)
    assert (contents.kind, contents.problems, contents.account) == ("foreign", (), None)
    assert "layout version 99; this ringmpi knows version 2" in contents.notes[0]


def test_a_cut_file_cannot_be_opened(plain):
    plain.write_bytes(plain.read_bytes()[:-100])
    with pytest.raises(StorageError, match="cut off"):
        examine(plain)


@pytest.fixture
def shard(tmp_path, rng):
    return write_parts(tmp_path / "out.h5", Sharding.zigzag(10, 2), *make_arrays(rng, (2, 10, 4), BFLOAT16))[1]


def test_a_shard_file_is_known(shard):
    for check in (False, True):
        contents = examine(shard, check=check)
        assert (contents.kind, contents.problems) == ("ringmpi-shard", ())
        assert "has not merged" in contents.notes[0]
    found = {entry.path for entry in contents.entries if entry.kind == "dataset"}
    assert found == {layout.path for layout in SHARD_DATASETS}


def test_a_damaged_shard_file_is_named(shard):
    problems, _ = of_the_file(shard, replaced("shards", np.array([[0, 3, 1]])))
    assert "its arrays and positions differ in length" in problems[0]
    problems, _ = of_the_file(shard, replaced("log_sum_exp", np.zeros((1, 2, 4), "f4")))
    assert any("/log_sum_exp has 4 rows, /output has 5" in problem for problem in problems)


def test_an_input_shows_what_could_be_asked_for(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for layer in (2, 10):
            file[f"layer{layer}/q"] = np.zeros((4, 6, 8), "f2")
            file[f"layer{layer}/k"] = file[f"layer{layer}/v"] = np.zeros((2, 6, 8), "f2")
        file["tokens"] = np.zeros(6, int)
    contents = examine(tmp_path / "in.h5", check=True)
    assert (contents.kind, contents.problems) == ("foreign", ())
    assert [(triple.query, triple.fits) for triple in contents.triples] == [("layer2/q", True), ("layer10/q", True)]
    assert "4 query heads on 2 key heads, 6 queries, 6 keys, head_dim 8" in contents.triples[0].text


@pytest.mark.parametrize(
    ("shapes", "dtypes", "text"),
    [
        (((4, 6, 8), (3, 6, 8), (3, 6, 8)), "fff", "do not divide into groups"),
        (((4, 6, 8), (2, 6, 8), (2, 5, 8)), "fff", "key has length 6 and value 5"),
        (((4, 6, 8), (2, 6, 8), (2, 6, 8)), "fed", "dtypes float16, float32, float64; all must be the same"),
    ],
)
def test_arrays_that_do_not_fit_together_are_told_why(shapes, dtypes, text):
    names = zip(("Query", "Key", "Value"), shapes, dtypes, strict=True)
    entries = [Entry(f"/{name}", "dataset", shape, np.dtype(dtype).name) for name, shape, dtype in names]
    (triple,) = triples(entries)
    assert not triple.fits
    assert text in triple.text


def test_two_of_three_make_no_triple():
    assert list(triples([Entry(f"/{name}", "dataset", (2, 3, 4), "float32") for name in "qk"])) == []


def test_other_kinds_of_inputs_are_examined_too(tmp_path, rng):
    arrays = {name: rng.standard_normal((2, 6, 8)).astype("f4") for name in "qkv"}
    np.savez(tmp_path / "in.npz", **arrays, tokens=np.arange(6))
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for path, query in ((tmp_path / "in.npz", "q"), (tmp_path, "q.npy")):
        contents = examine(path, check=True)
        assert (contents.problems, [triple.query for triple in contents.triples]) == ((), [query])
        assert contents.triples[0].fits


def test_a_packed_input_with_a_changed_byte_is_found_by_check(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        data = file.create_dataset("q", data=np.arange(64.0), chunks=(16,), compression="gzip", fletcher32=True)
        place = data.id.get_chunk_info(1)
    with (tmp_path / "in.h5").open("r+b") as raw:
        raw.seek(place.byte_offset + 8)
        raw.write(b"\xff\xff\xff\xff")
    assert examine(tmp_path / "in.h5").problems == ()
    assert "dataset /q" in examine(tmp_path / "in.h5", check=True).problems[0]


def test_files_as_they_are_written_depart_from_no_layout(path, shard):
    assert list(departures(read_tree(path), DATASETS, ATTRIBUTES)) == []
    assert list(departures(read_tree(shard), SHARD_DATASETS, ATTRIBUTES[:2])) == []


def test_an_output_with_gradients_has_all_of_them_or_is_damaged(tmp_path):
    path = write_run(tmp_path, Case(backward='[backward]\ngrad_output = "do"'))
    contents = examine(path, check=True)
    assert contents.problems == ()
    assert contents.layouts["/grad_key"].axes == ("(batch)", "key_heads", "key_length", "head_dim")
    assert "/grad_key" not in examine(write_run_without(tmp_path)).layouts
    with h5py.File(path, "r+") as file:
        file["grad_value"][1, 2, 1] += 1
        file["timeline_backward"].attrs["pairs_attended"] -= 1
    problems = examine(path, check=True).problems
    assert any("/grad_value was changed after it was written" in problem for problem in problems)
    assert any(problem.startswith("NOT EXACT: backward pass attended") for problem in problems)
    with h5py.File(path, "r+") as file:
        del file["grad_query"]
        del file["timeline_backward/wait_seconds"]
    problems = examine(path).problems
    assert any(problem.startswith("/grad_query is missing (gradient of") for problem in problems)
    assert any(problem.startswith("/timeline_backward/wait_seconds is missing") for problem in problems)
    assert any(problem.startswith("NOT EXACT: backward pass attended") for problem in problems)  # by its attributes


def write_run_without(tmp_path):
    """An output of a run without [backward]."""
    (tmp_path / "plain").mkdir()
    return write_run(tmp_path / "plain", Case())
