"""The lab itself: hosts of their own, links of the rate that was asked for, nothing left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster, LabError

EXCHANGE = Path(__file__).with_name("exchange.py")
BYTES = 1 << 20
IN_ORDER = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"]
INTERLEAVED = ["n0", "n4", "n1", "n5", "n2", "n6", "n3", "n7"]
WIRE_MS = 1e3 * 8 * BYTES / 200e6


def milliseconds_of_a_step(lab, hosts):
    milliseconds, names = lab.mpirun(hosts, sys.executable, EXCHANGE, BYTES).stdout.split()
    assert names.split(",") == hosts
    return float(milliseconds)


@pytest.mark.timeout(60)
def test_a_ring_that_crosses_an_uplink_four_times_takes_four_times_as_long(lab):
    """One flow an uplink and direction in order, four when interleaved; rank k runs on the k-th host."""
    good, bad = milliseconds_of_a_step(lab, IN_ORDER), milliseconds_of_a_step(lab, INTERLEAVED)
    assert WIRE_MS * 0.9 < good < 3 * WIRE_MS
    assert bad > WIRE_MS * 3.6
    assert bad / good > 2


@pytest.mark.timeout(60)
def test_one_slow_host_slows_the_ring(lab):
    lab.reshape("n2", "50mbit")
    try:
        assert milliseconds_of_a_step(lab, IN_ORDER) > WIRE_MS * 3.6
    finally:
        lab.reshape("n2", "200mbit")


@pytest.mark.timeout(60)
def test_hosts_do_not_see_each_others_processes_and_files_in_memory(lab):
    lab.run("n1", "sh", "-c", "echo here >/dev/shm/note; sleep 30 </dev/null >/dev/null 2>&1 &")
    assert "sleep 30" in lab.run("n1", "ps", "ax").stdout
    assert "sleep 30" not in lab.run("n2", "ps", "ax").stdout
    assert lab.run("n2", "ls", "/dev/shm").stdout == ""
    assert lab.run("n2", "hostname").stdout == "n2\n"


@pytest.mark.timeout(60)
def test_a_host_that_lost_its_power_is_away_and_comes_back(lab):
    lab.kill("n6")
    with pytest.raises(LabError):
        lab.run("n6", "true", seconds=5)
    lab.start("n6")
    assert milliseconds_of_a_step(lab, ["n5", "n6", "n7"]) < 3 * WIRE_MS


@pytest.mark.timeout(60)
def test_up_and_down_may_be_said_twice(lab, tmp_path):
    other = Cluster(tmp_path / "lab")  # beside the first
    other.down()
    other.up(hosts=2, leaves=1)
    other.up(hosts=3, leaves=1)
    assert other.run("n2", "hostname").stdout == "n2\n"
    other.down()
    other.down()
    assert not (tmp_path / "lab").exists()
    assert str(tmp_path) not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
    assert lab.run("n2", "hostname").stdout == "n2\n"


@pytest.mark.timeout(60)
def test_a_lab_dies_with_the_program_that_made_it(tmp_path):
    make = "import sys, os, pathlib; from tests.lab.cluster import Cluster; c = Cluster(pathlib.Path(sys.argv[1]))\n"
    made = f"{make}c.up(hosts=2, leaves=1); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", made, tmp_path / "lab"], check=False, cwd=Path(__file__).parents[2])
    assert (tmp_path / "lab/head.pid").exists()
    Cluster(tmp_path / "lab").down()
    assert str(tmp_path) not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
