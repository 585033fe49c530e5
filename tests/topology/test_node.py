"""What is inside a host, as nvidia-smi and hwloc tell it."""

from collections import Counter

import pytest

from ringmpi.topology.graph import EVERY_HOST
from tests.topology.texts import NVIDIA_SMI, OLD_NVIDIA_SMI, read_text, real


def inside(text):
    (node,) = read_text(text).devices.values()
    return node


def test_a_matrix_of_nvidia_smi():
    node = inside(NVIDIA_SMI)
    assert [(device.name, device.kind, device.numa) for device in node.devices] == [
        ("GPU0", "gpu", 0),
        ("GPU1", "gpu", 1),
        ("mlx5_0", "nic", None),
        ("mlx5_1", "nic", None),
    ]
    assert node.nvlinks == {("GPU0", "GPU1"): 18.0, ("GPU1", "GPU0"): 18.0}
    assert node.paths["GPU0", "GPU1"] == "NV"
    assert (node.paths["GPU1", "mlx5_1"], node.paths["mlx5_0", "mlx5_1"]) == ("PXB", "SYS")
    assert node.nearest_nics("GPU0") == ("mlx5_0",)
    assert node.nearest_nics("GPU1") == ("mlx5_1",)
    assert read_text(NVIDIA_SMI).devices.keys() == {EVERY_HOST}


def test_old_drivers_say_soc_and_name_adapters_in_the_header():
    node = inside(OLD_NVIDIA_SMI)
    assert node.of_kind("nic") == ("mlx5_0",)
    assert (node.paths["GPU0", "GPU1"], node.paths["GPU0", "mlx5_0"], node.nvlinks) == ("SYS", "PHB", {})


@pytest.mark.parametrize("columns", ["\t", "    "])
def test_eight_gpus_each_with_its_adapter(columns):
    names = [f"GPU{n}" for n in range(8)] + [f"NIC{n}" for n in range(8)]

    def cell(a, b):
        if a == b:
            return " X "
        if a[:3] == b[:3] == "GPU":
            return "NV18"
        return "PIX" if a[3] == b[3] else "NODE" if (a[3] < "4") == (b[3] < "4") else "SYS"

    rows = [
        columns.join([a, *(cell(a, b) for b in names), "0-47", str(int(a[3] > "3")), "N/A"][: 20 - 3 * (a[0] == "N")])
        for a in names
    ]
    header = columns.join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    node = inside("\n".join([header, *rows]))
    assert [node.nearest_nics(f"GPU{n}") for n in range(8)] == [(f"NIC{n}",) for n in range(8)]
    assert (len(node.nvlinks), Counter(node.paths.values())["PIX"]) == (56, 16)


def test_gpus_that_are_linked_in_pairs():
    graph = read_text(real("hwloc-power8-gpudistances.xml"))
    node = graph.devices["drac-12.grenoble.grid5000.fr"]
    assert node.of_kind("gpu") == ("cuda0", "cuda1", "cuda2", "cuda3")
    assert node.nvlinks == dict.fromkeys(
        [("cuda0", "cuda1"), ("cuda1", "cuda0"), ("cuda2", "cuda3"), ("cuda3", "cuda2")], 40000.0
    )
    assert (node.paths["cuda0", "cuda1"], node.paths["cuda0", "cuda2"]) == ("NV", "SYS")
    assert [device.numa for device in node.devices] == [0, 0, 1, 1]


def test_gpus_that_meet_in_switches_count_as_linked():
    node = inside(real("hwloc-dgx2-nvlink.xml"))
    assert len(node.of_kind("gpu")) == 16
    assert set(node.nvlinks.values()) == {6 * 25000.0}  # each reaches the six switches of its board
    boards = {frozenset(b for a, b in node.nvlinks if a == gpu) | {gpu} for gpu in node.of_kind("gpu")}
    assert sorted(map(len, boards)) == [8, 8]


def test_an_adapter_of_hwloc():
    node = read_text(real("hwloc-2socket-ib-normalio.xml")).devices["conan"]
    assert (node.of_kind("nic"), node.of_kind("gpu")) == (("mlx5_0",), ("cuda0", "opencl0d1"))
    assert node.nearest_nics("cuda0") == ("mlx5_0",)
    assert {device.numa for device in node.devices} == {1}


def osdev(name, kind):
    return f'<object type="PCIDev"><object type="OSDev" name="{name}" osdev_type="{kind}"/></object>'


def bridge(kind, inner):
    return f'<object type="Bridge" bridge_type="{kind}-1">{inner}</object>'


@pytest.mark.parametrize(("version", "verbs"), [("3.0", 48), ("2.0", 3), (None, 3)])
def test_words_for_what_is_between(version, verbs):
    switch = bridge(1, bridge(1, osdev("cuda0", 5)) + bridge(1, osdev("mlx5_0", verbs)))
    deep = bridge(1, bridge(1, bridge(1, osdev("mlx5_1", verbs))))
    host = bridge(0, switch + deep) + bridge(0, osdev("mlx5_2", verbs))
    packages = f'<object type="Package" nodeset="0x1">{host}</object>' + (
        f'<object type="Package" nodeset="0x2">{bridge(0, osdev("mlx5_3", verbs) + osdev("eth0", 2))}</object>'
    )
    attribute = f' version="{version}"' if version else ""
    node = inside(f'<topology{attribute}><object type="Machine" nodeset="0x3">{packages}</object></topology>')
    words = [node.paths["cuda0", f"mlx5_{n}"] for n in range(4)]
    assert words == ["PIX", "PHB", "NODE", "SYS"]
    assert node.of_kind("nic") == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")


def test_several_bridges_under_one():
    text = bridge(1, bridge(1, bridge(1, osdev("cuda0", 5))) + bridge(1, osdev("mlx5_0", 3)))
    node = inside(f'<topology version="2.0"><object type="Machine">{bridge(0, text)}</object></topology>')
    assert node.paths["cuda0", "mlx5_0"] == "PXB"


def test_a_matrix_that_was_cut_is_refused():
    text = real("hwloc-power8-gpudistances.xml").decode().replace("1000000 40000 0 0 40000", "1000000 40000")
    with pytest.raises(ValueError, match="NVLinkBandwidth has 33 values for 6 objects"):
        read_text(text)
