"""Contenders on a GPU, which is emulated: what they compute, and what is said of their times."""

import sys
from pathlib import Path

import numpy as np
import pytest

import ringmpi.backends
from ringmpi import cli
from ringmpi.bench.child import Child, NoAnswerError
from ringmpi.bench.kernel import Timed, bench_kernel
from ringmpi.bench.peers import own_cuda
from ringmpi.bench.questions import Case
from ringmpi.bench.report import read_report
from ringmpi.bench.ring_report import problem_of
from ringmpi.core.reference import dense_attention
from ringmpi.core.tolerance import finite_scale
from tests.tolerances import assert_gradients, assert_within

ROOT = Path(__file__).parents[2]
EMULATED = (
    "import sys; sys.path.insert(0, {root!r}); import tests.cuda.run_emulated; "
    "from ringmpi.bench.worker import main; main()"
)


@pytest.fixture
def emulated_python(tmp_path):
    """A Python whose GPU is emulated; it is started as `python -m ringmpi.bench.worker CONTENDER THREADS`."""
    path = tmp_path / "python"
    program = EMULATED.format(root=str(ROOT))
    path.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" -c "{program}" "$@"\n')
    path.chmod(0o755)
    return path


def benched(tmp_path, *arguments):
    path = tmp_path / "report.json"
    assert cli.exit_code(["bench", *arguments, "--json", str(path)]) == 0
    return read_report(path)


@pytest.mark.parametrize("mask", ["full", "causal", "window:5", "documents:3"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_it_computes_what_ringmpi_computes_however_often_it_runs(monkeypatch, mask, dtype, backward):
    monkeypatch.setitem(ringmpi.backends._OPENERS, "cuda", ("tests.cuda.emulated", "emulated"))
    case = Case(4, 2, 33, 16, mask, dtype, backward=backward)
    question, scoring = case.question(), problem_of(case, 1, "contiguous").scoring
    q, k, v, upstream = (array[None] for array in (question.q, question.k, question.v, question.grad_output))
    prepared = own_cuda.prepare("cuda", question, backward=backward, threads=1)
    prepared.run()
    pairs = prepared.run()
    assert prepared.pairs(pairs) == question.allowed().sum() * 4
    found = [array[None] for array in prepared.read(pairs)]
    if backward:
        assert_gradients((*found, None, None), upstream, q, k, v, question.allowed(), scoring)
        return
    naive, reference = (
        dense_attention(q, k, v, question.allowed(), scoring, dtype=wide)[0]
        for wide in ((np.float32, np.float64) if dtype == "float32" else (np.float64, np.longdouble))
    )
    assert_within(found[0], naive, reference, finite_scale(v))


def test_times_on_a_gpu_stand_beside_no_processor(capsys, tmp_path, emulated_python):
    arguments = ["--shapes", "2/1x40x8", "--mask", "causal", "--backward", "--rounds", "2"]
    arguments += ["--contenders", "cuda,numpy", "--peer-python", f"cuda={emulated_python}"]
    report = benched(tmp_path, "kernel", *arguments)
    rows = {(row.subject["pass"], row.subject["contender"]): row for row in report.rows}
    for which in ("forward", "backward"):
        on_gpu, own = rows[which, "ringmpi cuda"], rows[which, "ringmpi numpy"]
        assert set(on_gpu.figures) == {"TF/s", "wall"}
        assert (on_gpu.subject["threads"], own.subject["threads"]) == ("GPU", "1")
        assert {"GF/s", "of sgemm"} <= set(own.figures)
        assert "wall ratio" not in own.figures
    assert report.settings["contenders"]["cuda"]["GPU"] == "emulated"
    assert (report.main, "GPU" in report.machine) == ("GF/s", True)
    assert "from an idle GPU until it is idle again" in capsys.readouterr().out


def test_alone_it_has_no_ceilings(tmp_path, emulated_python):
    arguments = ["--shapes", "1x16x8", "--mask", "full", "--rounds", "1", "--contenders", "cuda"]
    report = benched(tmp_path, "kernel", *arguments, "--peer-python", f"cuda={emulated_python}")
    assert [row.subject["contender"] for row in report.rows] == ["ringmpi cuda"]
    assert report.main == "TF/s"


def test_ratios_on_a_gpu_are_those_of_wall_seconds_there(monkeypatch):
    timed = {
        "cuda": Timed(None, 1e12, wall=[1, 2], cpu=[9, 9]),
        "torch-cuda": Timed(None, 1e12, wall=[2, 3], cpu=[1, 1]),
        "native": Timed(None, 1e12, wall=[10, 10], cpu=[10, 10]),
    }
    monkeypatch.setattr("ringmpi.bench.kernel._measured", lambda *told: timed)
    report = bench_kernel([Case(1, 1, 8, 8)], [1], list(timed), rounds=2, pythons={})
    rows = {row.subject["contender"]: row.figures for row in report.rows}
    assert rows["torch-cuda"]["wall ratio"].samples == [2, 1.5]
    assert rows["ringmpi cuda"]["TF/s"].samples == [1, 0.5]
    assert "wall ratio" not in rows["ringmpi cuda"]
    assert "CPU ratio" not in rows["ringmpi native"]


def test_hard_questions_are_put_to_it_too(tmp_path, emulated_python):
    path, cases = tmp_path / "report.json", "rows without keys,hidden NaN,sinks"
    arguments = ["--cases", cases, "--contenders", "cuda", "--peer-python", f"cuda={emulated_python}"]
    assert cli.exit_code(["bench", "exactness", *arguments, "--json", str(path)]) == 0
    assert {row.verdict for row in read_report(path).rows} == {"right"}


@pytest.mark.parametrize("bench", ["kernel", "exactness"])
def test_without_a_gpu_it_is_refused_and_told_what_is_missing(monkeypatch, capsys, bench):
    monkeypatch.setattr("ringmpi.backends.cuda.opening.find_spec", lambda name: None)
    assert cli.exit_code(["bench", bench, "--contenders", "naive,cuda"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert 'cuda: backend "cuda" needs CuPy, which is not installed: pip install' in told


def test_a_python_without_a_gpu_is_named_as_missing(tmp_path):
    """Asked in a process of its own, it is no error of the benchmark."""
    path = tmp_path / "python"
    hidden = "import sys; sys.modules['cupy'] = None; from ringmpi.bench.worker import main; main()"
    path.write_text(f'#!/bin/sh\nshift 2\nCUDA_VISIBLE_DEVICES= exec "{sys.executable}" -c "{hidden}" "$@"\n')
    path.chmod(0o755)
    with Child("cuda", 1, str(path)) as child, pytest.raises(NoAnswerError, match='backend "cuda"') as error:
        child.prepare(Case(1, 1, 1, 1))
    assert error.value.kind == "absent"
