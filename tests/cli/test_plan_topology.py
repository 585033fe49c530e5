"""`ringmpi plan --topology`: what it says, what it refuses, and the command lines of SimGrid."""

import json
import shutil

import pytest

from ringmpi import cli

SIZED = ["plan", "--length", "65536", "--heads", "8", "--head-dim", "64", "--set", "attention.mask=full"]
RATES = ["--flops", "1e15", "--bandwidth", "1e9"]
MIXED = ["--hosts", "n1,n5,n2,n6,n3,n7,n4,n8"]


@pytest.fixture
def topology(tmp_path):
    """Two leaves of four hosts, one cable each to the switch above; in launch order MIXED all edges cross it."""
    path = tmp_path / "two leaves.toml"
    path.write_text(
        '[[switch]]\nname = "a"\nhosts = "n[1-4]"\n[[switch]]\nname = "b"\nhosts = "n[5-8]"\n'
        '[[switch]]\nname = "top"\nswitches = "a,b"\n'
    )
    return ["--topology", str(path)]


def planned(capsys, *arguments):
    assert cli.exit_code([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["plans"]


def refused(capsys, *arguments):
    assert cli.exit_code(list(arguments)) == 2
    return " ".join(capsys.readouterr().err.split())


def test_orders_are_beside_each_other(topology, capsys):
    [plan] = planned(capsys, *SIZED, *RATES, *topology, *MIXED, "--latency", "0")
    orders = plan["topology"]["orders"]
    assert plan["ranks"] == 8
    assert [orders[name]["congestion"] for name in ("launch", "placed")] == [4, 1]
    block = 65536 // 8 * 8 * 128 * 2
    assert orders["launch"]["bandwidth"] == pytest.approx(0.25e9)
    assert orders["launch"]["seconds"] == pytest.approx(7 * 4 * block / 1e9 + plan["flops"] / 64 / 1e15)
    assert plan["seconds"] == orders["placed"]["seconds"] < orders["random"]["seconds"]
    assert [MIXED[1].split(",")[rank] for rank in orders["placed"]["launch_ranks"]][:4] == ["n1", "n2", "n3", "n4"]
    assert orders["launch"]["simulation"] is None


def test_a_table_has_a_row_for_each_rank_count_and_order(topology, capsys):
    assert cli.exit_code([*SIZED, *RATES, *topology, "--ranks", "4,16", "--ranks-per-host", "2"]) == 0
    said = capsys.readouterr().out
    rows = [line.split()[:3] for line in said.partition("orders of the ranks")[2].splitlines()[2:8]]
    assert rows[0] == ["4", "launch", "1"]
    assert [row[:2] for row in rows] == [[n, name] for n in ("4", "16") for name in ("launch", "placed", "random")]


def test_latency_is_added_for_each_link(topology, capsys):
    arguments = [*SIZED, *RATES, *topology, "--ranks", "2"]
    slow, fast = (planned(capsys, *arguments, "--latency", seconds)[0] for seconds in ("1", "0"))
    assert slow["seconds"] - fast["seconds"] == pytest.approx(2, abs=0.1)  # one hop, of two links


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "n1"], "--hosts has no effect without --topology FILE"),
        (["--ranks-per-host", "2"], "--ranks-per-host has no effect without --topology FILE"),
        (["--simulate", "sim"], "--simulate has no effect without --topology FILE"),
        (["--latency", "0"], "--latency has no effect without --topology FILE"),
    ],
)
def test_what_needs_a_topology_is_refused_without(arguments, message, capsys):
    assert message in refused(capsys, *SIZED, *RATES, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--topology is for times: give --machine too"),
        ([*RATES, "--ranks", "9"], "9 ranks, but room for 8 on these hosts"),
        ([*RATES, "--hosts", "n1,x9"], "hosts without a link in the topology: x9"),
        ([*RATES, "--simulate-steps", "2"], "--simulate-steps has no effect without --simulate DIR"),
        ([*RATES, "--latency", "-1"], "is not in the range 0<=x<=1"),
    ],
)
def test_what_cannot_be_is_refused(topology, arguments, message, capsys):
    assert message in refused(capsys, *SIZED, *topology, *arguments)


def test_without_smpirun_the_package_is_named(topology, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said = refused(capsys, *SIZED, *RATES, *topology, "--simulate", str(tmp_path / "sim"))
    assert "apt-get install libsimgrid-dev" in said
    assert (tmp_path / "sim" / "random" / "hosts").exists()


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="no SimGrid here")
def test_simulated_times_are_beside_predicted_ones(topology, tmp_path, capsys):
    arguments = [*SIZED, *RATES, *topology, *MIXED, "--simulate", str(tmp_path / "a b"), "--simulate-steps", "3"]
    [plan] = planned(capsys, *arguments)
    for order in plan["topology"]["orders"].values():
        both = order["simulation"]
        assert both["predicted"] == pytest.approx(both["simulated"], rel=0.02)
        assert both["predicted"] < order["seconds"]
    assert cli.exit_code(arguments) == 0
    assert "SimGrid" in capsys.readouterr().out
