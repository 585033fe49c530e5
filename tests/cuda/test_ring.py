"""A run on three ranks whose kernels are those of the GPU, emulated: the file that it writes is verified."""

import h5py
import numpy as np
import pytest

from tests.cuda.emulated import EMULATED
from tests.launched.conftest import mpirun  # noqa: F401

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")
PROGRAM = ("-m", "tests.cuda.run_emulated")
JOB = """
[input]
file = "in.h5"
query = "q"
key = "k"
value = "v"
[attention]
mask = "causal"
[backend]
name = "numpy"
[output]
file = "out.h5"
"""


def test_three_ranks_attend_exactly(mpirun, tmp_path, rng):  # noqa: F811
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, heads in (("q", 4), ("k", 2), ("v", 2)):
            file[name] = rng.standard_normal((heads, 200, 64)).astype(np.float16)
    (tmp_path / "job.toml").write_text(JOB)
    done = mpirun(3, "run", "job.toml", program=PROGRAM, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "attended 80,400 of 80,400 asked: exact" in done.out
    verified = mpirun(1, "verify", "out.h5", "--rows", "200", cwd=tmp_path)
    assert verified.code == 0, verified.out + verified.err
