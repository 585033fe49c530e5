"""`ringmpi plan`: what it prints, what it refuses, and that it starts no MPI."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import h5py
import numpy as np
import pytest

from ringmpi import cli
from ringmpi.planner.machines import Rates

ROOT = Path(__file__).parents[2]
CAUSAL = ["--set", "attention.mask=causal"]
SIZED = ["plan", "--length", "4e5", "--heads", "1", "--head-dim", "64", *CAUSAL]


@pytest.fixture
def run_toml(tmp_path):
    """A RUN.toml whose input has 9 query heads on 3 key heads, 698 positions and documents."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["q"] = np.zeros((9, 698, 64), np.float32)
        file["k"] = file["v"] = np.zeros((3, 698, 64), np.float32)
        file["lengths"] = np.array([600, 98])
    path = tmp_path / "run.toml"
    path.write_text(
        f'[input]\nfile = "{tmp_path}/in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n'
        f'[attention]\nmask = "causal"\n[output]\nfile = "{tmp_path}/out.h5"\n'
    )
    return path


def planned(capsys, *arguments):
    """Exit code 0, and the JSON that was written."""
    assert cli.exit_code([*map(str, arguments), "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return json.loads(told.out)


def printed(capsys, *arguments):
    assert cli.exit_code([*map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_plan_needs_no_mpi(run_toml):
    program = (
        "import sys; sys.modules['mpi4py'] = sys.modules['cupy'] = None; from ringmpi.cli import exit_code;"
        "sys.exit(exit_code(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "plan", str(run_toml), "--ranks", "3", "--machine", "h100-nvlink"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 0: ranks 0-2 diagonal" in done.stdout


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from ringmpi.cli import exit_code; code = exit_code(['plan', '--help']);"
        "sys.exit(code or any(name in sys.modules for name in ('numpy', 'h5py', 'pydantic', 'rich')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--machine [a100-nvlink" in " ".join(done.stdout.split())


def test_everything_that_was_asked_for_is_said(run_toml, capsys):
    said = printed(capsys, "plan", run_toml, "--ranks", "4", "--flops", "50e9", "--bandwidth", "1e9", "--layers", "2")
    for part in (
        "9 query heads on 3 key heads, 698 queries, 698 keys, head_dim 64; mask causal",
        "sharding zigzag (as auto chose)",
        "0-86; 610-697",
        "9 heads x 175 queries x 64 x 4 B",
        "busiest rank over mean 1.007",
        "F 50 Gflop/s, B 1 GB/s (as given)",
        "step 0: ranks 0-3 diagonal (50 %)",
        "queries per rank or more",
        "3,072 B per position over 2 layers",
        "a hop moves 3,072 B per position if keys travel (forward 1,536), 6,984 B if queries do",
        "advice: nothing to change",
    ):
        assert part in said


def test_without_ranks_several_counts_are_compared(run_toml, capsys):
    report = planned(capsys, "plan", run_toml)
    assert [plan["ranks"] for plan in report["plans"]] == [1, 2, 4, 8]
    assert {plan["flops"] for plan in report["plans"]} == {4 * 64 * 9 * 698 * 699 // 2}
    assert report["pairs_asked"] == 9 * 698 * 699 // 2
    assert "rank counts" in printed(capsys, "plan", run_toml, "--machine", "a100-hdr")


def test_options_of_the_file_and_overrides_are_resolved(run_toml, capsys):
    mask = 'attention.mask={documents={query="lengths",within="causal"}}'
    report = planned(capsys, "plan", run_toml, "--set", mask, "--set", "ring.sharding=striped", "--ranks", "2")
    assert 'sharding = "striped"' in report["configuration"]
    assert report["pairs_asked"] == 9 * (600 * 601 + 98 * 99) // 2
    assert report["plans"][0]["sharding"] == "striped"


def test_sizes_can_be_given_without_any_file(capsys):
    plan = planned(capsys, *SIZED, "--ranks", "4", "--set", "ring.sharding=contiguous")["plans"][0]
    assert plan["bytes_sent_by_rank"] == [100_000 * 256 * hops for hops in (1, 2, 3, 0)]
    assert "contiguous wastes 43 % here" in plan["advice"][0]


def test_sizes_can_be_given_for_an_input_that_is_not_there_yet(run_toml, capsys):
    arguments = ["plan", run_toml, "--set", "input.file=later.h5", "--ranks", "2"]
    assert cli.exit_code([*map(str, arguments)]) == 2
    assert "later.h5: no such file; its shapes are needed" in capsys.readouterr().err
    report = planned(capsys, *arguments, "--length", "1000", "--heads", "32/8", "--dtype", "float16")
    assert (report["queries"], report["dtype"], report["kv_cache_bytes_a_token"]) == (1000, "float16", 8 * 256 * 2)


def test_on_gpus_their_memory_is_planned(capsys):
    """Rows start at multiples of 16 bytes: 20 numbers of 2 bytes take 48, not 40."""
    sizes = "plan", "--length", "1000", "--heads", "4/2", "--head-dim", "20", "--ranks", "2"
    backward = "--set", "backward.grad_output=do"
    (found,) = planned(capsys, *sizes, "--set", "backend.name=cuda", *backward)["plans"]
    assert found["gpu_memory"]["resident"] == 4 * 500 * 48
    assert found["backward"]["keys"]["gpu_memory"]["resident"] == 4 * 500 * (48 + 48 + 4 + 4)
    assert planned(capsys, *sizes)["plans"][0]["gpu_memory"] is None
    shown = printed(capsys, *sizes, "--set", "backend.name=cuda", *backward)
    assert "memory of a GPU; CUDA takes 300 to 600 MB more" in shown
    assert "what --memory is compared with" in shown


def test_given_rates_win_over_those_of_a_machine(capsys):
    arguments = [*SIZED, "--ranks", "4", "--set", "attention.mask=full"]
    plan = planned(capsys, *arguments, "--machine", "h100-nvlink", "--bandwidth", "100e9")["plans"][0]
    assert plan["critical_block_length"] == pytest.approx(9_890)
    assert plan["rates"]["source"].endswith("bandwidth as given")
    assert plan["seconds"] == pytest.approx(plan["flops"] / 4 / 989e12)


def test_measured_rates_are_taken_for_every_rank_count(capsys, monkeypatch):
    measured = ModuleType("ringmpi.bench.measure")
    measured.measure_rates = lambda problem, backend: Rates(1e9 * problem.size, 1e9, f"measured, {backend}")
    monkeypatch.setitem(sys.modules, "ringmpi.bench.measure", measured)
    plans = planned(capsys, *SIZED, "--ranks", "1,3", "--measure")["plans"]
    assert [plan["rates"]["flops"] for plan in plans] == [1e9, 3e9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "0"], "whole numbers from 1"),
        (["--ranks", "4,x"], "whole numbers from 1"),
        (["--ranks", "1000000"], "whole numbers from 1 to 8192"),
        (["--length", "nan"], "must be above 0 and finite"),
        (["--length", "many"], "is not a number"),
        (["--memory", "-1"], "must be above 0 and finite"),
        (["--heads", "8/3"], "do not divide into groups"),
        (["--heads", "8/0"], "QUERY_HEADS/KEY_HEADS"),
        (["--flops", "1e9"], "--flops and --bandwidth belong together"),
        (["--machine", "cray-1"], "a100-nvlink"),
        (["--set", 'attention.mask={slices="rows"}'], "dataset 'rows' is needed, but there is no input file"),
        (["--set", "attention.mask=causl"], "causal"),
    ],
)
def test_what_cannot_be_is_refused_with_2(capsys, arguments, message):
    assert cli.exit_code([*SIZED, *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert message in " ".join(told.err.split())


def test_nothing_to_plan_is_said(capsys):
    assert cli.exit_code(["plan"]) == 2
    assert "give --length" in capsys.readouterr().err


def test_without_matplotlib_a_plot_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.exit_code([*SIZED, "--plot", str(tmp_path / "plan.png")]) == 2
    assert "python -m pip install matplotlib" in capsys.readouterr().err


def test_a_plot_shows_rank_by_step_what_each_does(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert cli.exit_code([*SIZED, "--ranks", "4", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert cli.exit_code([*SIZED, "--plot", str(tmp_path / "plan.nothing")]) == 2
    assert cli.exit_code([*SIZED, "--plot", str(tmp_path / "absent" / "plan.png")]) == 3


def test_a_plan_of_4096_ranks_is_ready_soon():
    """2 s on an idle machine; here only that nothing grows with the cube of the ranks. CPU time, not wall."""
    program = (
        "import sys, time; from ringmpi.cli import exit_code; code = exit_code(sys.argv[1:]);"
        "print(time.process_time(), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "plan", "--length", "1048576", *CAUSAL, "--ranks", "4096"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, env=environment)
    assert done.returncode == 0
    assert "ranks 0-4095 diagonal" in done.stdout
    assert float(done.stderr) < 10


def test_the_map_of_loads_is_drawn_from_the_plan(monkeypatch, tmp_path):
    """What is handed to the plotting library, without it."""
    from ringmpi.planner import load_map
    from ringmpi.planner.plan import make_plan
    from tests.planner.problems import problem

    drawn = {}
    axes = SimpleNamespace(
        imshow=lambda image, **_: drawn.update(image=image),
        set=lambda **labels: drawn.update(labels),
        set_xticks=lambda ticks: None,
        set_yticks=lambda ticks: None,
    )
    figure = SimpleNamespace(
        subplots=lambda: axes,
        colorbar=lambda image, label: None,
        savefig=lambda path, dpi: drawn.update(path=path),
    )
    monkeypatch.setattr(load_map, "new_figure", lambda width, height: figure)
    plan = make_plan(problem(400, 4))
    load_map.draw_load_map(plan, tmp_path / "a.png")
    assert (drawn["image"] == plan.tables.pairs / plan.tables.pairs.max()).all()
    assert (drawn["xlabel"], drawn["ylabel"], drawn["path"]) == ("ring step", "rank", tmp_path / "a.png")


def test_a_plan_says_that_a_map_pass_is_not_in_it(run_toml, capsys):
    assert planned(capsys, "plan", run_toml)["not_planned"] is None
    asked = ["plan", run_toml, "--set", "record.map_block=64"]
    assert "map pass" in planned(capsys, *asked)["not_planned"]
    assert "not in it what is recorded after the forward pass" in printed(capsys, *asked)
    assert "top keys" in planned(capsys, "plan", run_toml, "--set", "record.top_rows=[3]")["not_planned"]


def test_a_plan_says_how_unbalanced_the_map_pass_is(capsys):
    """Keys stay in it: with contiguous shards and a causal mask the first keys are seen by most queries."""
    asked = ["plan", "--length", "1000", "--ranks", "4", "--set", "attention.mask=causal"]
    asked += ["--set", "ring.sharding=contiguous"]
    assert planned(capsys, *asked)["plans"][0]["map_pass_imbalance"] is None
    found = planned(capsys, *asked, "--set", "record.received=true")
    pairs = [sum(1000 - key for key in range(first, first + 250)) for first in range(0, 1000, 250)]
    assert found["plans"][0]["map_pass_imbalance"] == pytest.approx(max(pairs) / (sum(pairs) / 4))
    assert f"busiest of 4 has {max(pairs) / (sum(pairs) / 4):.3f} times" in found["not_planned"]
