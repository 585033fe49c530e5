"""The command line: help, exit codes, what goes to stdout and what to stderr."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ringmpi import __version__, cli
from ringmpi.checkpoint.lifecycle import Again
from ringmpi.config import load_config
from ringmpi.errors import BackendError, ConfigError, ExactnessError, MaskError, RingError, ShapeError, StorageError

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "h5py", "mpi4py", "pydantic", "rich", "ml_dtypes", "tomli_w")
SMALLEST = '[input]\nfile = "in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[output]\nfile = "out.h5"\n'


def ringmpi(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ringmpi", *arguments],
        capture_output=True,
        cwd=ROOT,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=60,
    )


def report_of(rank, code=0):
    """Stands in for the report of a run."""
    return SimpleNamespace(rank=rank, exit_code=code, config=SimpleNamespace(output=SimpleNamespace(file="out.h5")))


@pytest.fixture
def run_call(monkeypatch):
    """Stands in for ringmpi.job.run and the summary of its report: records the call, and does `act`."""
    call = SimpleNamespace(asked=[], report=report_of(rank=0), act=lambda path, overrides: None)

    def run(path, **options):
        call.asked.append((path, options))
        call.act(path, options["overrides"])
        return call.report.exit_code, call.report if call.report.rank == 0 else None

    summary = ModuleType("ringmpi.cli.summary")
    summary.show = lambda report, console: console.print("the summary")
    summary.as_dict = lambda report: {"exit_code": report.exit_code}
    stand_in = ModuleType(cli.RUN_MODULE)
    stand_in.run = run
    monkeypatch.setitem(sys.modules, cli.RUN_MODULE, stand_in)
    monkeypatch.setitem(sys.modules, "ringmpi.cli.summary", summary)
    monkeypatch.setattr(cli, "summary", summary, raising=False)
    return call


def failing(error):
    """An `act` that raises."""

    def act(path, overrides):
        raise error

    return act


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Stands in for a certificate."""

    passed: bool

    def lines(self):
        return ["pairs attended 10 of 10: ok", "rows: worst in /ausgänge/q"]

    def as_dict(self):
        return {"passed": self.passed, "rows": [{"ratio": 0.5}]}


@pytest.fixture
def verify_call(monkeypatch):
    """Stands in for ringmpi.analysis.verify."""
    call = ModuleType("ringmpi.analysis.verify")
    call.asked, call.verdict = [], Verdict(passed=True)

    def verify_file(path, *, rows, seed, input_path):
        call.asked.append((path, rows, seed) if input_path is None else (path, rows, seed, input_path))
        if isinstance(call.verdict, Exception):
            raise call.verdict
        return call.verdict

    call.verify_file = verify_file
    monkeypatch.setitem(sys.modules, "ringmpi.analysis.verify", call)
    return call


# Help


SUBCOMMANDS = ("run", "verify", "inspect", "export", "info")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([name, "--help"] for name in SUBCOMMANDS), ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    program = (
        "import sys; from ringmpi.cli import exit_code; code = exit_code(sys.argv[1:]);"
        f"print(*(module for module in {HEAVY} if module in sys.modules), file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert done.stdout


def test_help_names_subcommands_and_exit_codes():
    text = ringmpi("--help").stdout
    for part in (
        "run ",
        "verify ",
        "mpirun -n 4 ringmpi run run.toml",
        "Exit codes:",
        "0    all is well",
        "3    a resource",
    ):
        assert part in text


def test_help_of_run_says_units_defaults_and_an_example():
    text = " ".join(ringmpi("run", "--help").stdout.split())
    for part in (
        "--timeout SECONDS",
        "[default: 600.0]",
        "0: wait forever",
        "Example: mpirun -n 4 ringmpi run run.toml",
    ):
        assert part in text
    for option in ("--set KEY=VALUE", "--force", "--json", "--quiet"):
        assert option in text


def test_help_of_verify_says_units_defaults_and_an_example():
    text = " ".join(ringmpi("verify", "--help").stdout.split())
    for part in (
        "--rows N|all",
        "default: 64",
        "--seed S",
        "default: 0",
        "Example: ringmpi verify out.h5 --rows 256",
        "--json",
    ):
        assert part in text


def test_smallest_file_in_the_help_is_a_configuration(tmp_path):
    text = ringmpi("run", "--help").stdout
    path = tmp_path / "run.toml"
    path.write_text(text[text.index("[input]") : text.index("Options:")])
    assert load_config(path).output.file == "out.h5"


def test_version_goes_to_stdout():
    done = ringmpi("--version")
    assert (done.returncode, done.stdout) == (0, f"ringmpi {__version__}\n")


# Usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runn"], "No such command 'runn'"),
        (["run"], "Missing argument 'RUN_TOML'"),
        (["run", "a.toml", "b.toml"], "unexpected extra argument"),
        (["run", "a.toml", "--resum"], "No such option"),
        (["run", "a.toml", "--timeout", "-1"], "-1.0 s; it must be finite and >= 0; 0 waits forever."),
        (["run", "a.toml", "--timeout", "nan"], "nan s; it must be finite and >= 0"),
        (["run", "a.toml", "--timeout", "inf"], "inf s; it must be finite and >= 0"),
        (["run", "a.toml", "--timeout", "soon"], "'soon' is not a valid float"),
        (["verify"], "Missing argument 'OUT_H5'"),
        (["verify", "a.h5", "--rows", "-1"], "'-1'; it must be a whole number >= 0, or all."),
        (["verify", "a.h5", "--rows", "many"], "'many'; it must be a whole number >= 0, or all."),
        (["verify", "a.h5", "--against", "c.json", "--rows", "5"], "leave out --rows"),
        (["verify", "a.h5", "--against", "c.json", "--seed", "0"], "leave out --seed"),
        (["verify", "a.h5", "--against", "c.json", "--certificate", "d.json"], "leave out --certificate"),
        (["verify", "a.h5", "--force"], "--force is for --certificate"),
        (["export", "a.h5"], "Missing argument 'DESTINATION'"),
        (["export", "a.h5", "a", "--format", "csv"], "'csv' is not one of 'npy', 'zarr', 'netcdf'"),
        (["verify", "a.h5", "--seed", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_usage_error_ends_with_2(arguments, said, capsys, run_call, verify_call):
    assert cli.exit_code(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert run_call.asked == []
    assert verify_call.asked == []


def test_no_subcommand_shows_the_help():
    done = ringmpi()
    assert "Commands:" in done.stdout + done.stderr


# run


def test_run_passes_its_options_on(run_call):
    line = "run a.toml --set attention.mask=full --set ring.sharding=zigzag --force --timeout 0 --quiet"
    assert cli.exit_code(line.split()) == 0
    overrides = ("attention.mask=full", "ring.sharding=zigzag")
    options = {"overrides": overrides, "again": Again(resume=False, force=True), "timeout": 0.0, "quiet": True}
    assert run_call.asked == [(Path("a.toml"), options)]


def test_run_has_these_defaults(run_call):
    assert cli.exit_code(["run", "a.toml"]) == 0
    options = {"overrides": (), "again": Again(), "timeout": 600.0, "quiet": False}
    assert run_call.asked == [(Path("a.toml"), options)]


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("rank", [0, 3])
def test_exit_code_of_the_report_is_the_exit_code(run_call, rank, code):
    run_call.report = report_of(rank, code)
    assert cli.exit_code(["run", "a.toml"]) == code


@pytest.mark.parametrize(("options", "written"), [([], "the summary\n"), (["--json"], '{"exit_code": 0}\n')])
def test_first_rank_alone_writes_the_result(run_call, capsys, options, written):
    for rank, expected in ((0, written), (1, "")):
        run_call.report = report_of(rank)
        cli.exit_code(["run", "a.toml", *options])
        assert capsys.readouterr() == (expected, "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ExactnessError("9 pairs of 10"), 1),
        (ConfigError("scale = -1"), 2),
        (ShapeError("key has 3 heads"), 2),
        (MaskError("too many slices"), 2),
        (BackendError("no such backend"), 3),
        (RingError("rank 3 is late"), 3),
        (StorageError("out.h5: disk full"), 3),
    ],
)
def test_error_is_one_line_on_stderr_and_its_exit_code(run_call, capsys, error, code):
    run_call.act = failing(error)
    assert cli.exit_code(["run", "a.toml"]) == code
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"ringmpi: error: {error}\n")


def test_error_that_another_rank_tells_is_not_told_twice(run_call, capsys):
    error = RingError("rank 3 is late")
    error.said_elsewhere = True
    run_call.act = failing(error)
    assert cli.exit_code(["run", "a.toml"]) == 3
    assert capsys.readouterr() == ("", "")


def test_every_problem_of_a_configuration_is_a_line_of_its_own(run_call, capsys, tmp_path):
    path = tmp_path / "läufe.toml"
    path.write_text(SMALLEST + "[attention]\nscale = -1\n", encoding="utf-8")
    run_call.act = load_config
    assert cli.exit_code(["run", str(path), "--set", "ring.sharding=zigzg"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"ringmpi: error: {path}: [attention] scale = -1: must be a finite number > 0")
    assert second.startswith('ringmpi: error: --set ring.sharding=zigzg: [ring] sharding = "zigzg": must be "auto"')


def test_error_without_a_message_still_says_something(run_call, capsys):
    run_call.act = failing(RingError)
    assert cli.exit_code(["run", "a.toml"]) == 3
    assert capsys.readouterr().err == "ringmpi: error: stopped without a message\n"


def test_fault_of_the_program_goes_to_the_hook_and_ends_with_3(run_call, monkeypatch):
    seen = []
    monkeypatch.setattr(
        sys, "excepthook", lambda kind, error, trace: seen.append((kind, str(error), trace is not None))
    )
    run_call.act = failing(ZeroDivisionError("a fault"))
    assert cli.exit_code(["run", "a.toml"]) == 3
    assert seen == [(ZeroDivisionError, "a fault", True)]


def test_interrupt_from_the_keyboard_ends_with_130(run_call, capsys):
    run_call.act = failing(KeyboardInterrupt)
    assert cli.exit_code(["run", "a.toml"]) == 130
    assert capsys.readouterr().err.strip() == "ringmpi: error: stopped from the keyboard"


# verify


def test_verify_prints_one_line_a_check(verify_call, capsys):
    assert cli.exit_code(["verify", "out.h5", "--rows", "9", "--seed", "3"]) == 0
    assert verify_call.asked == [(Path("out.h5"), 9, 3)]
    told = capsys.readouterr()
    assert (told.out.splitlines(), told.err) == (Verdict(passed=True).lines(), "")


def test_verify_samples_64_rows_with_seed_0(verify_call):
    cli.exit_code(["verify", "out.h5"])
    assert verify_call.asked == [(Path("out.h5"), 64, 0)]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_failed_certificate_ends_with_1(verify_call, options):
    verify_call.verdict = Verdict(passed=False)
    assert cli.exit_code(["verify", "out.h5", *options]) == 1


def test_verify_writes_one_json_object(verify_call, capsys):
    assert cli.exit_code(["verify", "out.h5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"passed": True, "rows": [{"ratio": 0.5}]}


def test_damaged_file_ends_with_3(verify_call, capsys):
    verify_call.verdict = StorageError("out.h5: not an HDF5 file")
    assert cli.exit_code(["verify", "out.h5"]) == 3
    assert capsys.readouterr() == ("", "ringmpi: error: out.h5: not an HDF5 file\n")


def test_a_working_directory_that_was_deleted_is_one_sentence(verify_call, capsys, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    verify_call.verdict = FileNotFoundError(2, "No such file or directory")  # as Path.resolve gives it then
    assert cli.exit_code(["verify", "out.h5"]) == 3
    said = "ringmpi: error: the working directory was deleted. Change to one that exists.\n"
    assert capsys.readouterr() == ("", said)


# Locales


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0"}])
def test_help_and_errors_need_no_locale(locale):
    assert ringmpi("run", "--help", **locale).returncode == 0
    done = ringmpi("run", "läufe.toml", "--läufe", **locale)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_name_that_stdout_cannot_show_is_escaped(tmp_path):
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(
        "import sys, types\n"
        "certificate = types.SimpleNamespace(passed=True, lines=lambda: ['\\u5165'])\n"
        "module = types.ModuleType('ringmpi.analysis.verify')\n"
        "module.verify_file = lambda path, rows, seed, input_path: certificate\n"
        "sys.modules['ringmpi.analysis.verify'] = module\n"
        "from ringmpi.cli import main\n"
        "main()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, stand_in, "verify", "out.h5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "iso-8859-1", "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u5165\n", "")


def test_dtypes_of_options_are_those_that_attention_takes():
    from ringmpi.cli.dtypes import DTYPES
    from ringmpi.core.dtypes import SUPPORTED

    assert [str(dtype) for dtype in SUPPORTED] == list(DTYPES)
