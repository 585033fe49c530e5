"""`ringmpi run` with [ring] placement: the ring, the log, the output, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from ringmpi.cli import exit_code

MANY_HOSTS = str(Path(__file__).with_name("many_hosts.py"))
BY_TURNS = "n0,n4,n1,n5"
TREE = """SwitchName=spine Switches=leaf[0-1]
SwitchName=leaf0 Nodes=n[0-3]
SwitchName=leaf1 Nodes=n[4-7]
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "topology.conf").write_text(TREE)
    return tmp_path / "topology.conf"


def test_a_file_places_the_ring_and_the_output_says_so(mpirun, job, tree, tmp_path, capsys):
    path = job(211, options=f'[attention]\nmask = "causal"\n[ring]\nplacement = "{tree}"')
    done = mpirun(4, BY_TURNS, "run", path, "--json", program=(MANY_HOSTS,))
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["certificate"]["passed"]
    assert report["ring_order"] == [0, 2, 1, 3]
    assert report["placement"]["launch_cost"] == {"congestion": 2.0, "dilation": 4, "hops": 16}
    line = f"placement by {tree}: ring placed over 4 hosts, launch order -> ring: congestion 2 -> 1"
    assert done.err.count(line) == 1
    assert exit_code(["inspect", str(tmp_path / "out.h5")]) == 0
    text = "".join(capsys.readouterr().out.split())  # lines end where the terminal does
    words = f"by {tree}: congestion, dilation, hops 1, 4, 12 (launch order 2, 4, 16), no ring is better"
    assert words.replace(" ", "") in text


def test_auto_is_the_default_and_silent_where_nothing_is_known(mpirun, job):
    done = mpirun(3, "run", job(64), "--json")
    assert json.loads(done.out)["placement"] is None
    assert "placement" not in done.err
    done = mpirun(4, "a,b,a,b", "run", job(64), "--json", "--force", program=(MANY_HOSTS,))
    assert json.loads(done.out)["ring_order"] == [0, 2, 1, 3]
    assert "placement by who shares a host: ring placed over 2 hosts" in done.err


def test_hosts_that_are_not_in_the_file_are_listed(mpirun, job, tree):
    done = mpirun(4, "n0,x1,n1,x2", "run", job(64), "--json", "--set", f"ring.placement={tree}", program=(MANY_HOSTS,))
    assert re.search(r"placement: 2 hosts are not in .*topology\.conf, or have no link there.*: x\[1-2\]", done.err)
    assert json.loads(done.out)["placement"]["unplaced"] == ["x1", "x2"]


@pytest.mark.parametrize(
    ("placement", "hosts", "says"),
    [
        ("topology.conf", "a,b,c", r"knows none of the hosts of this job: a, b, c\. Give a description of the machine"),
        ("mesure", BY_TURNS, r"mesure: cannot be read: No such file or directory"),
        ("in.h5", BY_TURNS, r"in\.h5: (contains zero bytes, so it is not text|format not recognised)"),
    ],
)
def test_a_placement_that_cannot_be_is_refused_before_any_work(mpirun, job, tree, tmp_path, placement, hosts, says):
    path = job(64, options=f'[ring]\nplacement = "{tmp_path / placement}"')
    done = mpirun(3, hosts, "run", path, program=(MANY_HOSTS,))
    assert done.code == 2
    assert re.search(says, done.err), done.err
    assert done.err.count("ringmpi: error:") == 1, done.err
    assert not (tmp_path / "out.h5").exists()
