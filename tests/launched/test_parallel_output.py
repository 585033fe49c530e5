"""[output] writer = "parallel": one file that all ranks write, with the numbers of the merged one; or a refusal."""

import h5py
import numpy as np
import pytest

PARALLEL = ("--set", 'output.writer="parallel"')
with_mpi = pytest.mark.skipif(not h5py.get_config().mpi, reason="h5py is built without MPI: tests/lab/parallel_hdf5.sh")


@pytest.mark.skipif(h5py.get_config().mpi, reason="h5py is built with MPI")
def test_an_h5py_without_mpi_is_named_before_the_work(mpirun, job):
    done = mpirun(2, "run", job(40), *PARALLEL)
    assert done.code == 3
    assert '[output] writer = "parallel" needs an h5py that is built with MPI' in done.err
    assert done.err.count("ringmpi: error:") == 1
    assert "Traceback" not in done.err


def test_no_file_of_ranks_can_be_shown_where_all_write_one(mpirun, job):
    done = mpirun(1, "run", job(40), *PARALLEL, "--set", 'output.layout="virtual"')
    assert done.code == 2
    assert 'writer = "parallel" with layout = "virtual"' in done.err


@with_mpi
@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("length", [90, 2])  # on 3 ranks: one has nothing
def test_its_numbers_are_those_of_the_merged_file(mpirun, job, tmp_path, sharding, length):
    extra = {"g": np.random.default_rng(2).standard_normal((4, length, 16), np.float32)}
    options = f'[ring]\nsharding = "{sharding}"\n[attention]\nmask = "causal"\n[backward]\ngrad_output = "g"\n'
    path = job(length, options=options, extra=extra)
    found = []
    for writer in ((), PARALLEL):
        done = mpirun(3, "run", path, "--force", *writer)
        assert done.code == 0, done.err
        with h5py.File(tmp_path / "out.h5") as file:
            names = ("output", "log_sum_exp", "grad_query", "grad_key", "grad_value")
            found.append([(file[name][...].tobytes(), file[name].attrs["blake2b"]) for name in names])
        assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.h5"]
    assert found[0] == found[1]
