"""What every test gets: silent NaN is an error, examples are the same in every CI run, one source of random numbers."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

MPI_TESTS = Path(__file__).parent / "mpi"
LAB_TESTS = Path(__file__).parent / "lab"

hypothesis.settings.register_profile("fast", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("emulated", deadline=None, max_examples=8, derandomize=True, print_blob=True)
CHOSEN = (
    "emulated" if os.environ.get("EMULATED") else "ci" if "CI" in os.environ else "fast"
)  # kernels of a GPU take time
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", CHOSEN))


@pytest.fixture(autouse=True)
def _floating_point_errors_raise() -> Iterator[None]:
    """Exp of a very negative score may underflow to 0; every other floating-point surprise fails the test."""
    with np.errstate(all="raise", under="ignore"):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """The same random numbers in every run of a test."""
    return np.random.default_rng(20231003)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests of tests/lab start a cluster, as root: only make test-lab asks for them."""
    parser.addoption("--lab", action="store_true", help="collect tests/lab (root; Linux)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/mpi to tests/run_mpi.sh: without mpirun its tests would run on one rank and prove nothing."""
    under_mpirun = config.pluginmanager.hasplugin("pytest_mpi.plugin")
    left_out = {MPI_TESTS: not under_mpirun, LAB_TESTS: not config.getoption("--lab")}
    return True if left_out.get(collection_path) else None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say where the tests on real ranks are."""
    if config.pluginmanager.hasplugin("pytest_mpi.plugin"):
        return None
    return "tests/mpi needs mpirun, tests/lab needs root; both are left out here: make test-mpi test-lab"
