"""Limits read from made-up /proc and /sys: as batch systems and containers leave them."""

import pytest

from ringmpi.process.cgroup import Limits, limits

V2_MOUNT = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNT = "3{n} 23 0:2{n} {top} /sys/fs/cgroup/{name} rw,nosuid - cgroup cgroup rw,{name}\n"


@pytest.fixture
def made_up(tmp_path):
    """Write files by their paths; returns the root."""

    def write(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return write


def test_version_2_takes_the_smallest_on_the_way_to_the_root(made_up):
    root = made_up({
        "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
        "proc/self/mountinfo": V2_MOUNT.format(top="/"),
        "sys/fs/cgroup/system.slice/cpu.max": "max 100000\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max": "4294967296\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max": "max\n",
        "sys/fs/cgroup/elsewhere/cpu.max": "1000 100000\n",
    })  # fmt: skip
    assert limits(root) == Limits(cpus=2.5, memory_bytes=4 << 30, versions=(2,))


def test_version_1_has_a_tree_for_each_controller(made_up):
    root = made_up({
        "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job/step\n3:freezer:/\n",
        "proc/self/mountinfo": "".join(
            V1_MOUNT.format(n=n, top="/", name=name) for n, name in enumerate(("memory", "cpu,cpuacct", "freezer"))
        ),
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1073741824\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us": "50000\n",
    })  # fmt: skip
    assert limits(root) == Limits(cpus=3.0, memory_bytes=1 << 30, versions=(1,))


def test_both_versions_side_by_side(made_up):
    root = made_up({
        "proc/self/cgroup": "1:cpu:/a\n0::/\n",
        "proc/self/mountinfo": V1_MOUNT.format(n=1, top="/", name="cpu")
        + "33 23 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "20000",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "10000",
        "sys/fs/cgroup/unified/cgroup.procs": "",
    })  # fmt: skip
    assert limits(root) == Limits(cpus=2.0, memory_bytes=None, versions=(1, 2))


@pytest.mark.parametrize(
    ("group", "top"), [("/docker/abc", "/docker/abc"), ("/", "/docker/abc"), ("/../../x", "/"), ("/not/seen/here", "/")]
)
def test_in_a_container_the_mount_stands_for_the_group(made_up, group, top):
    root = made_up({
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": V2_MOUNT.format(top=top),
        "sys/fs/cgroup/cpu.max": "50000 100000",
        "sys/fs/cgroup/memory.max": "1000",
    })  # fmt: skip
    assert limits(root) == Limits(cpus=0.5, memory_bytes=1000, versions=(2,))


def test_without_control_groups_there_is_no_limit(made_up):
    assert limits(made_up({"proc/self/mountinfo": "1 1 0:1 / / rw - ext4 /dev/sda rw\n"})) == Limits(None, None, ())


def test_a_container_within_a_group_is_found_below_its_mount(made_up):
    root = made_up(
        {
            "proc/self/cgroup": "0::/docker/abc/job\n",
            "proc/self/mountinfo": V2_MOUNT.format(top="/docker/abc"),
            "sys/fs/cgroup/job/cpu.max": "70000 100000",
        }
    )
    assert limits(root).cpus == 0.7


def test_a_group_outside_of_what_is_mounted_is_not_looked_for_outside(made_up):
    root = made_up(
        {
            "proc/self/cgroup": "0::/../other\n",
            "proc/self/mountinfo": V2_MOUNT.format(top="/"),
            "sys/fs/other/cpu.max": "10000 100000",
            "sys/fs/cgroup/cpu.max": "90000 100000",
        }
    )
    assert limits(root).cpus == 0.9


def test_the_group_of_one_controller_is_not_looked_for_under_another(made_up):
    root = made_up(
        {
            "proc/self/cgroup": "2:cpu:/a\n1:memory:/b\n",
            "proc/self/mountinfo": "".join(
                V1_MOUNT.format(n=n, top="/", name=name) for n, name in enumerate(("cpu", "memory"))
            ),
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5",
            "sys/fs/cgroup/memory/b/memory.limit_in_bytes": "70",
        }
    )
    assert limits(root).memory_bytes == 70


def test_the_number_that_version_1_writes_for_no_limit_is_none(made_up):
    root = made_up(
        {
            "proc/self/cgroup": "1:memory:/\n",
            "proc/self/mountinfo": V1_MOUNT.format(n=1, top="/", name="memory"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        }
    )
    assert limits(root) == Limits(None, None, (1,))
