"""`[ring] reproducible = true`: the numbers of the output file have the same bits on any number of real ranks."""

import json

import h5py
import numpy as np
import pytest

from ringmpi.backends import get_backend
from ringmpi.errors import BackendError

RESULTS = ("output", "log_sum_exp", "grad_query", "grad_key", "grad_value")
OPTIONS = """
[attention]
mask = {any = [{window = [150, 0]}, {sinks = 3}]}
softcap = 5.0
[backend]
name = "native"
[backward]
grad_output = "do"
[ring]
reproducible = true
block = 64
sharding = """


@pytest.fixture(scope="module", autouse=True)
def native():
    try:
        get_backend("native")
    except BackendError as error:
        pytest.skip(f"the native backend is not here: {error}")


def test_outputs_and_gradients_have_the_same_bits_on_1_2_and_3_ranks(mpirun, job, tmp_path):
    grad_output = np.random.default_rng(7).standard_normal((4, 698, 16), np.float32)
    found = {}
    for ranks, sharding in ((1, "contiguous"), (2, "striped"), (3, "zigzag")):
        path = job(698, options=f'{OPTIONS}"{sharding}"', extra={"do": grad_output})
        done = mpirun(ranks, "run", path, "--json", "--force")
        assert done.code == 0, done.err + done.out
        report = json.loads(done.out)
        assert report["certificate"]["passed"]
        assert report["schedule"] == "broadcast"
        with h5py.File(tmp_path / "out.h5") as file:
            found[ranks] = {name: file[name][...].tobytes() for name in RESULTS}
    assert found[1] == found[2] == found[3]
