import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.environment.machine import cores, memory, numbers_of, ranges_text, system
from ringmpi.process.cgroup import Limits

LIMITS = Limits(cpus=1.5, memory_bytes=3 << 29, versions=(2,))


@pytest.fixture
def node(tmp_path):
    """Two NUMA nodes of two cores with two hardware threads each; Linux numbers the second threads last."""
    for cpu in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    for number, cpus in ((0, "0-1,4-5"), (10, "2-3,6-7"), (2, "")):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\ncpu family\t: 6\nmodel name\t: Fast CPU @ 2 GHz\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       2097152 kB\nMemFree: 5 kB\nMemAvailable:    1048576 kB\n")
    return tmp_path


def test_cores_and_numa_nodes_are_those_that_are_allowed(node):
    found = cores(LIMITS, node, {0, 4, 2, 3})
    assert found["processor"] == "Fast CPU @ 2 GHz"
    assert (found["CPUs allowed"], found["CPU numbers allowed"], found["cores allowed"]) == (4, "0,2-4", 3)
    assert found["NUMA nodes"] == {"0": "0,4", "10": "2-3"}
    assert found["CPU time allowed by cgroups"] == 1.5


def test_one_numa_node_is_shown_where_one_is_allowed(node):
    assert cores(LIMITS, node, {6, 7})["NUMA nodes"] == {"10": "6-7"}


def test_memory_is_in_gib(node):
    found = memory(LIMITS, node)
    assert (found["GiB of the machine"], found["GiB available"], found["GiB allowed by cgroups"]) == (2.0, 1.0, 1.5)


def test_a_machine_that_says_nothing_is_unknown_not_an_error(tmp_path):
    found = cores(Limits(None, None, ()), tmp_path, {0, 1})
    assert (found["cores allowed"], found["NUMA nodes"]) == (None, {})
    assert memory(Limits(None, None, ()), tmp_path)["GiB of the machine"] is None


def test_arm_processors_are_named_by_their_codes(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")
    assert cores(LIMITS, tmp_path, {0})["processor"] == "implementer 0x41, part 0xd4f"


def test_of_this_machine():
    allowed = cores(LIMITS)
    assert allowed["CPUs allowed"] == len(os.sched_getaffinity(0))
    assert system()["Python"].startswith("3.")


@given(st.sets(st.integers(0, 300)))
def test_ranges_of_cpus_say_exactly_which(numbers):
    assert numbers_of(ranges_text(numbers)) == numbers
