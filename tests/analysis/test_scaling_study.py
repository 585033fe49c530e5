"""Strong and weak scaling, found from lengths and ranks."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.errors import ConfigError
from ringmpi.storage.computed_by import write_computed_by
from tests.analysis.recorded_output import set_attempts, set_timeline
from tests.analysis.written import Case, write_run
from tests.storage.test_computed_by import COMPUTED


def write(folder, ranks, seconds, *, length=None, threads=None, backend="native", **case):
    """An output of so many ranks, whose pass took so long. length: as if it had so many queries. threads: of a rank."""
    folder = folder / f"{ranks}-{threads}-{seconds}"
    folder.mkdir()
    path = write_run(folder, Case(ranks=ranks, sharding="contiguous", **case))
    attend = np.full((ranks, ranks), seconds / ranks)
    set_timeline(path, attend_seconds=attend)
    if threads is not None:
        alike = {name: (value,) * ranks for name, value in (("threads", threads), ("backend", backend))}
        with h5py.File(path, "r+") as file:
            write_computed_by(file, replace(COMPUTED, arithmetic=("",) * ranks, node_cores=(8,) * ranks, **alike))
    if length is not None:
        with h5py.File(path, "r+") as file:
            file["timeline"].attrs["pairs_attended"] = length * (length + 1) // 2 * 4
            for name in ("output", "log_sum_exp"):
                kept, tail, dtype = dict(file[name].attrs), file[name].shape[2:], file[name].dtype
                del file[name]
                file[name] = np.zeros((4, length, *tail), dtype)
                file[name].attrs.update(kept)
    return path


def test_one_length_is_strong_scaling(tmp_path):
    paths = [write(tmp_path, ranks, seconds) for ranks, seconds in ((4, 3.0), (1, 8.0), (2, 4.0))]
    found = analysis.scaling(paths)
    assert found.kind == "strong"
    assert found.ranks.tolist() == [1, 2, 4]
    np.testing.assert_allclose(found.seconds, [8, 4, 3])
    np.testing.assert_allclose(found.speedup, [1, 2, 8 / 3])
    np.testing.assert_allclose(found.efficiency, [1, 1, 2 / 3])
    columns, rows = found.table()
    assert columns == ("path", "ranks", "cores", "length", "pairs", "seconds", "speedup", "efficiency")
    assert rows[2][:4] == (str(paths[0]), 4, 4, 60)


def test_one_length_a_rank_is_weak_scaling(tmp_path):
    paths = [write(tmp_path, ranks, seconds, length=30 * ranks) for ranks, seconds in ((1, 1.0), (2, 2.0), (4, 5.0))]
    found = analysis.scaling(paths)
    assert found.kind == "weak"
    per_rank = [length * (length + 1) / 2 / ranks for ranks, length in ((1, 30), (2, 60), (4, 120))]
    rates = np.array(per_rank) / [1, 2, 5]
    np.testing.assert_allclose(found.efficiency, rates / rates[0])


def test_several_runs_on_the_fewest_ranks_are_a_base_together(tmp_path):
    paths = [write(tmp_path, ranks, seconds) for ranks, seconds in ((1, 8.0), (1, 8.5), (2, 4.0))]
    rates = 1 / np.array([8, 8.5, 4])
    np.testing.assert_allclose(analysis.scaling(paths).speedup, rates / rates[:2].mean())


def test_efficiency_is_by_cores(tmp_path):
    """Twice as fast on two ranks with two threads each: on four times as many cores as one rank with one thread."""
    found = analysis.scaling([write(tmp_path, 1, 8.0, threads=1), write(tmp_path, 2, 4.0, threads=2)])
    assert (found.unit, found.cores.tolist()) == ("core", [1, 4])
    np.testing.assert_allclose(found.speedup, [1, 2])
    np.testing.assert_allclose(found.efficiency, [1, 0.5])
    assert "pairs per second per core (a thread of a rank)" in found.caption


def test_as_many_cores_on_more_ranks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"1 rank .* 2 ranks .* had 2 threads in all.* OMP_NUM_THREADS=1"):
        analysis.scaling([write(tmp_path, 1, 8.0, threads=2), write(tmp_path, 2, 8.0, threads=1)])


@pytest.mark.parametrize(("threads", "backend"), [(None, "native"), (2, "cuda")])
def test_where_threads_say_nothing_ranks_are_counted_and_that_is_said(tmp_path, threads, backend):
    runs = [
        write(tmp_path, 1, 8.0, threads=4, backend=backend),
        write(tmp_path, 2, 4.0, threads=threads, backend=backend),
    ]
    found = analysis.scaling(runs)
    assert (found.unit, found.cores.tolist()) == ("rank", [1, 2])
    assert "threads are not in all of these outputs, or GPUs worked" in found.caption


def test_neither_is_refused_with_lengths_and_ranks(tmp_path):
    paths = [write(tmp_path, 1, 1.0, length=30), write(tmp_path, 2, 1.0, length=45)]
    with pytest.raises(ConfigError, match=r"neither strong nor weak scaling: queries on ranks are 30 on 1 .*45 on 2"):
        analysis.scaling(paths)


def test_too_few_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="outputs: 2, all of runs on 2 ranks; expected runs on at least two numbers"):
        analysis.scaling([write(tmp_path, 2, 1.0), write(tmp_path, 2, 2.0)])
    with pytest.raises(ConfigError, match="outputs: 0; expected"):
        analysis.scaling([])


def test_runs_of_other_problems_are_refused_by_name(tmp_path):
    causal = write(tmp_path, 1, 1.0)
    with pytest.raises(ConfigError, match=r"differ in attention.mask: causal and full"):
        analysis.scaling([causal, write(tmp_path, 2, 1.0, attention='mask = "full"')])
    with pytest.raises(ConfigError, match=r"differ in dtype: float32 and float64"):
        analysis.scaling([causal, write(tmp_path, 3, 1.0, dtype=np.float64)])


def test_an_output_that_was_stopped_and_went_on_is_refused_by_name(tmp_path):
    """Its seconds are those of its last attempt, its pairs those of all: it would look faster than it was."""
    paths = [write(tmp_path, 1, 8.0), write(tmp_path, 2, 1.0)]
    set_attempts(paths[1], ranks=(3, 4, 2))
    assert analysis.summary(paths[1]).part_timed == "the last of 3 attempts"
    with pytest.raises(
        ConfigError, match=r"2-None-1.0/out.h5: its seconds cover the last of 3 attempts, its pairs everything"
    ):
        analysis.scaling(paths)


def test_an_output_whose_state_was_kept_and_that_was_never_stopped_is_as_others(tmp_path):
    paths = [write(tmp_path, 1, 8.0), write(tmp_path, 2, 4.0)]
    set_attempts(paths[1], ranks=(2,))
    assert analysis.scaling(paths).speedup[1] == 2


def test_an_output_without_seconds_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no seconds"):
        analysis.scaling([write(tmp_path, 1, 0.0), write(tmp_path, 2, 1.0)])
