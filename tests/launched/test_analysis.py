"""ringmpi.analysis of what real ranks have written: merged, virtual, and with every part that can be recorded."""

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.errors import StorageError

LENGTH, BLOCK = 150, 16
OPTIONS = f"""layout = "LAYOUT"
[attention]
mask = {{window = [39, 0], offset = -2}}
[record]
sinks = 3
map_block = {BLOCK}
received = true
top_rows = [0, 5, 149]
top_keys = 4
"""


@pytest.mark.parametrize("layout", ["merged", "virtual"])
def test_all_that_was_recorded_is_read(mpirun, job, tmp_path, layout):
    done = mpirun(3, "run", job(LENGTH, options=OPTIONS.replace("LAYOUT", layout)))
    assert done.code == 0, done.err
    path = tmp_path / "out.h5"
    with h5py.File(path) as file:
        stored = {name: file[f"record/{name}"][...].astype(np.float64) for name in file["record"]}
    for name in ("entropy", "distance", "sinks"):
        found = getattr(analysis, name)(path, bins=5)
        assert (found.rows == [28, 30, 30, 30, 30]).all()  # the first two queries see no key
        np.testing.assert_allclose(found.mean[:, 0], stored[name][:, 2:30].mean(axis=1))
        np.testing.assert_allclose(found.mean[:, 4], stored[name][:, 120:].mean(axis=1))
    received = analysis.received(path, bins=LENGTH)
    np.testing.assert_array_equal(received.mean, stored["received"])
    whole, coarse = analysis.recorded_map(path), analysis.recorded_map(path, cells=3)
    np.testing.assert_array_equal(whole.weights, stored["map"])
    assert whole.key_edges.tolist() == [*range(0, LENGTH, BLOCK), LENGTH]
    rows = np.array([14, *[16] * 8, 6])  # that see a key, by block of queries
    by_hand = np.array([(rows[i : i + 4] @ stored["map"][:, i : i + 4]) / rows[i : i + 4].sum() for i in (0, 4, 8)])
    np.testing.assert_allclose(coarse.weights, np.add.reduceat(by_hand, [0, 4, 8], axis=2).transpose(1, 0, 2))
    top = analysis.top_keys(path)
    assert top.rows.tolist() == [0, 5, 149]
    assert (top.keys[:, 0] == -1).all()
    np.testing.assert_array_equal(top.weights[:, 2], stored["top_weights"][:, 2])
    assert len(analysis.summary(path).recorded) == 10


def test_what_the_ranks_did_is_read(mpirun, job, tmp_path):
    assert mpirun(3, "run", job(LENGTH, options=OPTIONS.replace("LAYOUT", "merged"))).code == 0
    path = tmp_path / "out.h5"
    found = analysis.summary(path)
    assert list(found.pass_seconds) == ["forward", "map"]
    assert (found.exact, found.ranks, found.key_length) == (True, 3, LENGTH)
    for which in found.pass_seconds:
        pairs = analysis.balance(path, which).pairs
        assert pairs.sum() == found.pairs_asked
        assert analysis.timeline(path, which).seconds.max() == pytest.approx(found.pass_seconds[which])
    slow = analysis.slow_rank(path)
    assert slow.pass_seconds == pytest.approx(sum(found.pass_seconds.values()), rel=0.2)  # starts differ a little
    assert 0 <= slow.cost_seconds < slow.pass_seconds
    assert analysis.memory(path).largest > 1 << 20


def test_real_runs_make_a_strong_scaling_study(mpirun, job, tmp_path):
    path, outputs = job(LENGTH), []
    for ranks in (1, 2, 3):
        outputs.append(tmp_path / f"{ranks}.h5")
        assert mpirun(ranks, "run", path, "--set", f"output.file={outputs[-1]}").code == 0
    found = analysis.scaling(outputs)
    assert (found.kind, found.ranks.tolist()) == ("strong", [1, 2, 3])
    assert found.speedup[0] == 1


def test_a_shard_file_that_is_gone_is_named(mpirun, job, tmp_path):
    assert mpirun(2, "run", job(LENGTH, options=OPTIONS.replace("LAYOUT", "virtual"))).code == 0
    for part in tmp_path.glob("out.h5.part-*-00001"):
        part.unlink()
    with pytest.raises(StorageError, match="sources are missing"):
        analysis.entropy(tmp_path / "out.h5")
