"""What tests of kernels share."""

import pytest

from ringmpi.backends.numpy.attend import NumpyBackend
from tests.backends.natives import ISAS, native
from tests.cuda.emulated import EMULATED, emulated


@pytest.fixture(params=["emulated"] if EMULATED else ["numpy", *ISAS])
def kernel(request):
    """Makes a backend; tile sizes are for NumPy's, whose tiles are a choice."""
    if request.param == "emulated":
        return emulated
    if request.param == "numpy":
        return NumpyBackend
    return lambda threads=1, **tiles: native(request.param, threads)
