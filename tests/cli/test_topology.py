import json
import sys

import pytest

from ringmpi.cli import exit_code
from ringmpi.cli.topology import EXPORTS
from tests.topology.texts import NVIDIA_SMI

TREE = """SwitchName=spine Switches=leaf[0-1]
SwitchName=leaf0 Nodes=n[0-3]
SwitchName=leaf1 Nodes=n[4-7]
"""


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text(TREE)
    return str(path)


def test_place_prints_one_object(tree, capsys):
    assert exit_code(["topology", "place", tree, "--hosts", "n0,n4,n1,n5,x9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "hosts": ["n0", "n1", "n4", "n5", "x9"],
        "cost": {"congestion": 1.0, "dilation": 4, "hops": 12},
        "launch_cost": {"congestion": 2.0, "dilation": 4, "hops": 16},
        "lower_bound": {"congestion": 1.0, "dilation": 4, "hops": 12},
        "proved_optimal": True,
        "unplaced": ["x9"],
    }


def test_place_says_what_it_found(tree, capsys):
    assert exit_code(["topology", "place", tree, "--hosts", "n[0,4,1,5],x9"]) == 0
    text, warned = capsys.readouterr()
    assert "n[0-1,4-5],x9" in text
    assert "No ring over the hosts that are known is better: proved." in text
    assert "warning: not in the files, or without a link there: x9." in warned
    assert "unplaced     x9" in text


def test_without_hosts_all_of_the_files_are_placed(tree, capsys):
    assert exit_code(["topology", "place", tree, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"] == [f"n{n}" for n in range(8)]


def test_show_tells_hosts_switches_and_links(tree, capsys):
    assert exit_code(["topology", "show", tree]) == 0
    text = capsys.readouterr().out
    assert "hosts     8, 0 of them without a link" in text
    assert "links     10, of 10 cables" in text
    assert "leaf1  to 1 switch and n[4-7]" in text


def test_show_tells_what_is_inside_hosts(tree, tmp_path, capsys):
    (tmp_path / "gpus.txt").write_text(NVIDIA_SMI)
    assert exit_code(["topology", "show", tree, str(tmp_path / "gpus.txt")]) == 0
    text = capsys.readouterr().out
    assert "devices   every host: GPU1, nearest adapters mlx5_1, 18 links of NVLink" in text
    assert "devices   every host: adapters mlx5_0, mlx5_1" in text


@pytest.mark.parametrize("launcher", EXPORTS)
def test_export_writes_a_file_for_a_launcher(tree, launcher, tmp_path, capsys):
    command = ["topology", "export", tree, "--hosts", "n0,n4,n1", "--ranks-per-host", "2", "--to", launcher]
    assert exit_code(command) == 0
    text = capsys.readouterr().out
    expected = {
        "openmpi-rankfile": "rank 0=n0 slot=0\nrank 1=n0 slot=1\nrank 2=n1 slot=0\n",
        "slurm-hostfile": "n0\nn0\nn1\nn1\nn4\nn4\n",
        "mpich-rank-order": "0,1,4,5,2,3\n",
        "hostfile": "n0:2\nn1:2\nn4:2\n",
    }
    assert text.startswith(expected[launcher])
    assert exit_code([*command, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["place", "nowhere.conf"], "nowhere.conf"),
        (["place", "{tree}", "--hosts", "n[1-"], "--hosts"),
        (["place", "{tree}", "--hosts", ""], "no hosts"),
        (["place", "{tree}", "--format", "runes"], "runes"),
        (["place"], "FILE"),
        (["export", "{tree}", "--to", "runes"], "runes"),
        (["export", "{tree}", "--to", "hostfile", "--cores", "2"], "--cores"),
        (["place", "{tree}", "--ranks-per-host", "0"], "ranks-per-host"),
    ],
)
def test_bad_input_ends_with_two_and_a_message(tree, arguments, message, capsys):
    assert exit_code(["topology", *(word.format(tree=tree) for word in arguments)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_an_output_that_cannot_be_written_is_named(tree, tmp_path, capsys):
    assert exit_code(["topology", "export", tree, "--to", "hostfile", "-o", str(tmp_path / "no" / "out")]) == 3
    assert "cannot write" in capsys.readouterr().err


def test_without_matplotlib_a_drawing_says_what_to_install(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert exit_code(["topology", "show", tree, "--plot", str(tmp_path / "ring.svg")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_a_drawing_shows_hosts_and_switches(tree, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "ring.svg"
    assert exit_code(["topology", "show", tree, "--hosts", "n[0,4,1]", "--plot", str(path)]) == 0
    assert all(f"<!-- {name} -->" in path.read_text() for name in ("n0", "n1", "n4", "leaf0", "leaf1", "spine"))
    assert exit_code(["topology", "show", tree, "--plot", str(tmp_path / "ring.xyz")]) == 2


def test_nothing_is_proved_of_hosts_that_nobody_knows(tree, capsys):
    assert exit_code(["topology", "place", tree, "--hosts", "x[1-7]"]) == 0
    text, warned = capsys.readouterr()
    assert "No host is known" in text
    assert "proved" not in text
    assert "x1, x2, x3, x4, x5 and 2 more" in warned
