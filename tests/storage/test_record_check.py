"""What an output says of its record in attributes and shapes is checked when it is opened, by whatever opens it."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.analysis.contents import examine
from ringmpi.analysis.verify import verify_file
from ringmpi.errors import StorageError
from ringmpi.storage.export.writing import export_file
from ringmpi.storage.results import Results
from tests.analysis.recorded_output import add, write_recorded
from tests.analysis.written import Case


@pytest.fixture
def path(tmp_path):
    """Float64, as the plain formula has it."""
    return write_recorded(tmp_path, Case(dtype=np.float64, sharding="contiguous")).path


def attribute(name, key, value):
    def damage(file):
        file[f"record/{name}"].attrs[key] = value

    return damage


def replaced(name, change):
    def damage(file):
        array, kept = file[f"record/{name}"][...], dict(file[f"record/{name}"].attrs)
        del file[f"record/{name}"]
        add(file, f"/record/{name}", np.ascontiguousarray(change(array)))
        file[f"record/{name}"].attrs.update({key: kept[key] for key in kept if key != "blake2b"})

    return damage


def asked(options):
    def damage(file):
        file["provenance"].attrs["configuration"] += f"\n[record]\n{options}\n"

    return damage


WHOLE = "expected a whole number from "
DAMAGES = {
    "block 17": (attribute("map", "block", np.int64(17)), "/record/map has 9 x 9 blocks, but 60 queries"),
    "block 1": (attribute("map", "block", np.int64(1)), "/record/map has 9 x 9 blocks"),
    "block 0": (attribute("map", "block", np.int64(0)), f"block of /record/map is 0; {WHOLE}1"),
    "block -3": (attribute("map", "block", np.int64(-3)), f"block of /record/map is -3; {WHOLE}1"),
    "block 2^62": (attribute("map", "block", np.int64(1 << 62)), f"block of /record/map is 46.*; {WHOLE}1 to 2.53"),
    "block x": (attribute("map", "block", "x"), f"block of /record/map is 'x'; {WHOLE}1"),
    "block 7.0": (attribute("map", "block", 7.0), f"block of /record/map is 7.0; {WHOLE}1"),
    "block [7, 7]": (attribute("map", "block", [7, 7]), "block of /record/map is array"),
    "other keys": (attribute("map", "key_length", np.int64(61)), "the numbers of keys disagree"),
    "sinks 0": (attribute("sinks", "keys", np.int64(0)), "keys of /record/sinks is 0"),
    "a wider map": (replaced("map", lambda a: np.repeat(a, 2, axis=2)), "/record/map has 9 x 18 blocks"),
    "a flat map": (replaced("map", lambda a: a[0]), "/record/map .* has 2 axes"),
    "a map of bits": (replaced("map", lambda a: a.astype(np.int64)), "/record/map is int64; expected floating"),
    "fewer received": (replaced("received", lambda a: a[:, :-1]), "the numbers of keys disagree.* /record/received 59"),
    "fewer rows": (replaced("top_rows", lambda a: a[:2]), "/record/top_keys, .* 2 rows"),
    "other rows": (replaced("top_rows", lambda a: a + 1), "/record/top_rows has positions from 1 to 60 of 60"),
    "rows in a table": (replaced("top_rows", lambda a: a[None]), r"/record/top_rows is \[1, 3\]"),
    "keys by number": (replaced("top_keys", lambda a: a * 1.0), "/record/top_keys is float64; expected whole"),
    "asked for 99 sinks": (asked("sinks = 99\nmap_block = 7"), "/record/sinks@keys is 4, .* asked for .* sinks = 99"),
    "asked for 8 blocks": (asked("map_block = 8"), "/record/map@block is 7, .* asked for .* map_block = 8"),
    "asked for 6 keys": (asked("map_block = 7\ntop_rows = [0]\ntop_keys = 6"), "last axis of /record/top_keys is 5"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_named(path, damage):
    change, says = DAMAGES[damage]
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(StorageError, match=says), Results(path):
        pass


def test_what_fits_is_opened(path):
    with h5py.File(path, "r+") as file:
        asked("map_block = 7\nreceived = true\ntop_rows = [0, 13, 59]\ntop_keys = 5")(file)
    with Results(path) as results:
        assert set(results.late) == {f"/record/{name}" for name in ("map", "received", "top_keys", "top_weights")}


@pytest.mark.parametrize("as_dataset", [False, True])
def test_whatever_opens_it_says_so(path, tmp_path, as_dataset):
    """A wrong block; or a dataset where the group was."""
    with h5py.File(path, "r+") as file:
        if as_dataset:
            del file["record"]
            file["record"] = 1.0
        else:
            file["record/map"].attrs["block"] = np.int64(17)
    said = "/record is not a group" if as_dataset else "/record/map has 9 x 9 blocks"
    uses = (
        verify_file,
        analysis.summary,
        analysis.recorded_map,
        lambda path: export_file(path, tmp_path / "out.nc"),
        lambda path: export_file(path, tmp_path / "arrays"),
    )
    for use in uses:
        with pytest.raises(StorageError, match=said):
            use(path)
    assert any(said in problem for problem in examine(path).problems), examine(path).problems
