"""Which library is chosen, and that one source makes a library for vectors of any width."""

import os
import shutil
import subprocess

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.backends.native import shared_library
from ringmpi.backends.native.attend import NativeBackend
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import meet
from ringmpi.errors import BackendError, ShapeError
from tests.backends.dense import arrays
from tests.backends.natives import ISAS, native

COMPILER = shutil.which(os.environ.get("CXX", "g++"))
pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


def test_the_widest_is_chosen_and_the_variable_chooses_another():
    assert shared_library.choose(None, {}) == ISAS[0]
    assert shared_library.choose(None, {"RINGMPI_NATIVE": "portable"}) == "portable"
    assert shared_library.choose(ISAS[0], {"RINGMPI_NATIVE": "portable"}) == ISAS[0]


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(BackendError, match='"sve" were requested; available here are .*portable. Choose one of these'):
        NativeBackend(isa="sve")


def test_a_library_that_cannot_be_loaded_is_told(tmp_path, monkeypatch):
    name = shared_library.built()["portable"].name
    (tmp_path / name).write_bytes(b"no library")
    monkeypatch.setattr(shared_library, "FOLDER", tmp_path)
    with pytest.raises(BackendError, match="cannot be loaded .*install ringmpi again"):
        NativeBackend()


def test_work_beyond_the_arrays_is_refused():
    q = np.ones((1, 1, 8, 4), np.float32)
    work = meet(Mask.full().resolve(9, 9), range(9), range(9))
    with pytest.raises(ShapeError, match="rows up to 9 and keys up to 9, but there are 8 queries and 8 keys"):
        native(ISAS[0]).attend(q, q, q, work, Scoring(1.0))


def test_instruction_sets_agree_up_to_rounding(rng):
    q, k, v = rng.standard_normal((3, 1, 2, 150, 40), dtype=np.float32)
    work = meet(Mask.causal().resolve(150, 150), range(150), range(150))
    found = [native(isa).attend(q, k, v, work, Scoring(0.2)) for isa in ISAS]
    for partial, pairs in found:
        assert pairs == found[0][1]
        for x, y in zip(arrays(partial), arrays(found[0][0]), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(COMPILER is None or "avx2" not in ISAS, reason="needs a compiler and AVX2")
def test_vectors_wider_than_those_of_the_processor_give_the_same(tmp_path, monkeypatch, rng):
    """64 bytes on AVX2: what a compiler makes of vector types on a narrower machine, ARM's for example."""
    q, k, v = rng.standard_normal((3, 1, 2, 150, 40), dtype=np.float32)
    work = meet(Mask.causal().resolve(150, 150), range(150), range(150))
    expected, pairs = native("avx2").attend(q, k, v, work, Scoring(0.2))
    built, sources = shared_library.built(), map(str, shared_library.FOLDER.glob("*.cpp"))
    flags = "-std=c++17 -O1 -fPIC -shared -pthread -Wno-psabi -fno-trapping-math -mavx2 -mfma -DRINGMPI_VECTOR_BYTES=64"
    subprocess.run([COMPILER, *flags.split(), *sources, "-o", tmp_path / built["avx2"].name], check=True)
    shutil.copy(built["portable"], tmp_path)
    monkeypatch.setattr(shared_library, "FOLDER", tmp_path)
    found, found_pairs = NativeBackend(isa="avx2").attend(q, k, v, work, Scoring(0.2))
    assert found_pairs == pairs
    for x, y in zip(arrays(found), arrays(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
