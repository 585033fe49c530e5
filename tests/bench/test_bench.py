"""`ringmpi bench` from the command line to table and file, with tiny problems. No time is judged."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

import ringmpi
from ringmpi import cli
from ringmpi.bench.child import Child, NoAnswerError
from ringmpi.bench.exactness import verdict_on
from ringmpi.bench.hard import HARD
from ringmpi.bench.machine import PINS
from ringmpi.bench.peers.own import mask_of
from ringmpi.bench.questions import Case
from ringmpi.bench.report import Report, read_report
from ringmpi.cli import commands

ROOT = Path(__file__).parents[2]


def benched(capsys, tmp_path, *arguments) -> tuple[Report, str]:
    """The report that was written, and what was shown."""
    path = tmp_path / "report.json"
    assert cli.exit_code(["bench", *arguments, "--json", str(path)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return read_report(path), told.out


@pytest.fixture
def broken_python(tmp_path):
    """A Python that has no peer, or anything else."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 'no such library' >&2\nexit 3\n")
    path.chmod(0o755)
    return path


def test_kernel_times_backends_ceilings_and_peers_and_names_those_that_are_missing(capsys, tmp_path, broken_python):
    arguments = ["--shapes", "2/1x40x8", "--mask", "causal", "--backward", "--rounds", "2"]
    arguments += ["--contenders", "numpy,naive,torch", "--peer-python", f"torch={broken_python}"]
    report, shown = benched(capsys, tmp_path, "kernel", *arguments)
    rows = {(row.subject["pass"], row.subject["contender"]): row for row in report.rows}
    assert {"ringmpi numpy", "naive", "sgemm"} <= {contender for _, contender in rows}
    for (_, contender), row in rows.items():
        assert all(len(figure.samples) == 2 for figure in row.figures.values())
        assert contender in ("naive", "sgemm", "fma", "exp", "exp2") or row.figures["GF/s"].median > 0
    assert rows["forward", "naive"].figures["CPU ratio"].median > 0
    assert rows["backward", "naive"].note == "no backward pass"
    assert rows["backward", "naive"].figures == {}
    assert report.absent["torch"] == "it ended with 3: no such library"
    assert "not measured: torch: it ended with 3" in shown
    assert report.machine["cores"]["CPUs allowed"] >= 1
    assert report.settings["contenders"]["naive"]["numpy"]


def test_work_over_time_is_what_is_shown(capsys, tmp_path):
    arguments = ["--shapes", "1x64x8", "--mask", "full", "--contenders", "naive", "--rounds", "3"]
    report, _ = benched(capsys, tmp_path, "kernel", *arguments)
    [row] = [row for row in report.rows if row.subject["contender"] == "naive"]
    assert row.figures["GF/s"].unit == "GF/s"
    sgemm = next(row for row in report.rows if row.subject["contender"] == "sgemm")
    shares = [a / b for a, b in zip(row.figures["GF/s"].samples, sgemm.figures["GF/s"].samples, strict=True)]
    assert row.figures["of sgemm"].samples == pytest.approx(shares)


def test_a_contender_that_crashes_in_a_round_has_no_figures_and_stops_nobody(capsys, tmp_path, broken_python):
    ready, ran = '{"about": {"it": "1"}, "amount": 0}', '{"wall": 1, "cpu": 1}'
    lines = [f"read order; echo '{answer}'" for answer in (ready, ran, ran)]
    broken_python.write_text("\n".join(["#!/bin/sh", *lines, "read order; exit 5"]))
    arguments = ["--contenders", "naive,torch", "--peer-python", f"torch={broken_python}", "--rounds", "2"]
    report, _ = benched(capsys, tmp_path, "kernel", "--shapes", "1x16x8", "--mask", "full", *arguments)
    rows = {row.subject["contender"]: row for row in report.rows}
    assert (rows["torch"].note, rows["torch"].figures) == ("failed: it ended with 5", {})
    assert len(rows["naive"].figures["wall"].samples) == 2


def test_exactness_tells_right_from_wrong(capsys, tmp_path):
    cases = "full,rows without keys,hidden NaN,sinks,one pair dropped"
    report, shown = benched(capsys, tmp_path, "exactness", "--cases", cases, "--contenders", "numpy,naive")
    verdicts = {(row.subject["case"], row.subject["contender"]): row.verdict for row in report.rows}
    assert verdicts == {
        ("full", "numpy"): "right",
        ("full", "naive"): "right",
        ("rows without keys", "numpy"): "right",
        ("rows without keys", "naive"): "wrong",
        ("hidden NaN", "numpy"): "right",
        ("hidden NaN", "naive"): "wrong",
        ("sinks", "numpy"): "right",
        ("sinks", "naive"): "not supported",
        ("one pair dropped", "numpy"): "noticed",
        ("one pair dropped", "naive"): "not noticed",
    }
    assert "4,194,303 pairs attended to, 4,194,304 asked" in shown


def test_a_dropped_pair_is_noticed_by_its_count_alone():
    case = HARD["one pair dropped"]
    question = case.question()
    lost = ringmpi.attention(question.q, question.k, question.v, mask=mask_of(question.mask, 2048, 2048))
    assert verdict_on(case, lost.output, lost.pairs)[0] == "noticed"
    assert verdict_on(case, lost.output, 2048**2)[0] == "not noticed"
    assert verdict_on(case, lost.output, None)[0] == "not noticed"
    assert verdict_on(case, lost.output + np.float32(0.01), None)[0] == "noticed"


def test_io_times_shards_and_merge_beside_plain_files(capsys, tmp_path):
    report, _ = benched(
        capsys, tmp_path, "io", "--folder", str(tmp_path), "--size", "1", "--shards", "3", "--rounds", "2"
    )
    steps = ["plain write", "shards", "merge", "checkpoint", "plain read", "check", "read"]
    assert [row.subject["step"] for row in report.rows] == steps
    assert all(row.figures["speed"].median > 0 for row in report.rows)
    compared = {row.subject["step"] for row in report.rows if "of plain" in row.figures}
    assert compared == {step for step in steps if "plain" not in step}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_picture_is_drawn_of_the_main_figure(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "bench.png"
    benched(
        capsys, tmp_path, "kernel", "--shapes", "1x16x8", "--contenders", "naive", "--rounds", "2", "--plot", str(path)
    )
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_plot_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = ["io", "--folder", str(tmp_path), "--size", "1", "--rounds", "1", "--plot", str(tmp_path / "x.png")]
    assert cli.exit_code(["bench", *arguments]) == 2
    assert "python -m pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel", "--shapes", "8x64"], "expected HEADSxLENGTHxDIM"),
        (["kernel", "--mask", "causl"], "choose full, causal, window:W"),
        (["kernel", "--threads", "0"], "whole numbers from 1"),
        (["kernel", "--contenders", "cupid"], "choose from native, numpy, cuda"),
        (["ring", "--peer", "torch-cuda"], "computes on one GPU; bench kernel times it"),
        (["kernel", "--peer-python", "torch=/nothing/here"], "PEER=PATH of a Python"),
        (["kernel", "--peer-python", "torch"], "PEER=PATH of a Python"),
        (["exactness", "--cases", "easy"], "there are: full, causal"),
        (["ring", "--peer", "tensorflow"], "choose from"),
        (["hop", "--ranks", "1"], "x>=2"),
        (["io", "--folder", "/nothing/here"], "does not exist"),
    ],
)
def test_what_cannot_be_is_refused_with_2(capsys, arguments, message):
    assert cli.exit_code(["bench", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from ringmpi.cli import exit_code; code = exit_code(['bench', 'ring', '--help']);"
        "sys.exit(code or any(name in sys.modules for name in ('numpy', 'h5py', 'pydantic', 'rich', 'mpi4py')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_of_another_form_is_no_report(capsys, tmp_path):
    report, _ = benched(capsys, tmp_path, "io", "--folder", str(tmp_path), "--size", "1", "--rounds", "1")
    with pytest.raises(ValidationError, match="surprise"):
        Report.model_validate(report.model_dump() | {"surprise": 1})


def test_children_run_on_the_threads_that_they_are_told_and_without_pins(monkeypatch, tmp_path):
    """A child that tells its environment in place of an answer."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nread line\necho "{\\"refused\\": \\"$OMP_NUM_THREADS $OPENBLAS_CORETYPE.\\"}"\n')
    python.chmod(0o755)
    monkeypatch.setenv(PINS[0], "Prescott")
    with Child("naive", 3, str(python)) as child, pytest.raises(NoAnswerError, match=r"^3 \.$"):
        child.prepare(Case(1, 1, 1, 1))


def test_children_end_with_their_parent_however_it_ends(tmp_path):
    """Between orders they are stopped, and would not see it go."""
    program = (
        "from ringmpi.bench.child import Child; from ringmpi.bench.questions import Case\n"
        "child = Child('naive', 1); child.prepare(Case(1, 1, 1, 1)); print(child.pid, flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True, **pipes) as parent:
        child = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        if not state(child):
            pytest.skip("this system does not show processes in /proc")
        assert within_20_s(lambda: state(child) == "T")
        parent.kill()
    assert within_20_s(lambda: state(child) in ("", "Z"))


def state(stat):
    """As the kernel has it: T stopped, Z ended and not yet buried; empty: gone."""
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def within_20_s(holds):
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shapes", ""], "is an empty list; the default is 8x4096x64"),
        (["--threads", "99999"], "this process may run on"),
        (["--peer-python", "bogus=/bin/sh"], "unknown contenders bogus; choose from native"),
    ],
)
def test_what_would_measure_nothing_is_refused(arguments, told):
    done = CliRunner().invoke(commands, ["bench", "kernel", *arguments])
    assert done.exit_code == 2
    assert told in done.output
