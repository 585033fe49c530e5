"""Small descriptions of machines in every format, each written for these tests, and the real ones of tests/data."""

import gzip
from pathlib import Path

from ringmpi.topology.building import Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.joining import joined
from ringmpi.topology.reading import read_source

DATA = Path(__file__).parent.parent / "data" / "topology"


def real(name: str) -> bytes:
    """A file of tests/data/topology, whether it is compressed or not."""
    path = DATA / name
    return path.read_bytes() if path.exists() else gzip.decompress((DATA / f"{name}.gz").read_bytes())


def read_text(text: str | bytes, form: str | None = None, *, name: str = "file") -> Graph:
    """What one text says, by itself."""
    content = text if isinstance(text, bytes) else text.encode()
    return joined([(name, read_source(Source.of_bytes(name, content), form))])


TREE = """# two leaves and a spine
SwitchName=spine Switches=leaf[1-2]
SwitchName=leaf1 Nodes=n[01-04]
SwitchName=leaf2 Nodes=n[05-08] LinkSpeed=100
"""
BLOCKS = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockName=b3 Nodes=n[9-12]\nBlockSizes=4,8\n"
RING = "RingName=r0 Nodes=n[1-6]\nRingName=r1 Nodes=m3,m1,m2\n"
YAML = """---
- topology: plain
  tree:
    switches:
      - {switch: root, children: "s[1-2]"}
      - {switch: s1, nodes: "n[01-02]"}
      - {switch: s2, nodes: "n[03-04]"}
- topology: cube
  cluster_default: true
  torus3d:
    toruses:
      - {name: pod1, dims: {x: 4, y: 3, z: 2}, nodes: "t[01-24]"}
- topology: holes
  torus3d:
    toruses:
      - name: pod2
        dims: {x: 4, y: 4, z: 2}
        regions:
          - {anchor: {x: 1, y: 0, z: 0}, dims: {x: 2, y: 2, z: 1}, nodes: "u[1-4]"}
- topology: blocks
  block: {block_sizes: [2, 4], blocks: [{block: b1, nodes: "k[1-2]"}, {block: b2, nodes: "k[3-4]"}]}
- topology: circle
  ring: {rings: [{ring: r, nodes: "c[1-5]"}]}
- topology: nothing
  flat: true
"""
SCONTROL_TREE = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[01-04]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[05-08]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[01-08] Switches=leaf[1-2]
"""
SCONTROL_BLOCKS = """BlockName=b1 BlockIndex=0 Nodes=n[1-4] BlockSize=4
BlockName=b2 BlockIndex=1 Nodes=n[5-8] BlockSize=4
BlockName=b3 BlockIndex=2 Nodes=n[9-11] BlockSize=3
AggregatedBlock=b[1-2] BlockIndex=3 Nodes=n[1-8] BlockSize=8
"""
SCONTROL_TORUS = """TorusName=p Dims=2x2x1 Nodes=n[1-4]
        TorusName=p PlacementDims=2x1x1(2) Anchors=2
"""
ADDRESSES = """0: root.s1.n07 switch.switch.node
1: root..n08.site.org switch.switch.node
2: root.s[2-3].n09 switch.switch.node
3: root.s1.n07 switch.switch.node
"""
IBNETDISCOVER = """# Topology file: generated on Thu Jan  1 00:00:00 1970

vendid=0x2c9
devid=0xd2f2
switchguid=0xb0(b0)
Switch\t8 "S-00000000000000b0"\t\t# "leaf one" enhanced port 0 lid 1 lmc 0
[1]\t"H-00000000000000a1"[1](a1) \t\t# "n1 mlx5_0" lid 11 4xNDR
[2]\t"H-00000000000000a2"[1](a2) \t\t# "n2 mlx5_0" lid 12 4xHDR
[5][ext 3]\t"S-00000000000000c0"[1]\t\t# "spine" lid 3 4xNDR
[6]\t"S-00000000000000c0"[2]\t\t# "spine" lid 3 4xNDR
[8]\t"H-00000000000000d0"[1](d0) \t\t# "Mellanox Technologies Aggregation Node" lid 31 4xNDR

Switch\t8 "S-00000000000000b1"\t\t# "leaf two" enhanced port 0 lid 2 lmc 0
[1]\t"H-00000000000000a3"[1](a3) \t\t# "n1 mlx5_1" lid 13 4xNDR
[2]\t"H-00000000000000a4"[1](a4) \t\t# "MT4129 ConnectX7   Mellanox Technologies" lid 14 ??x???
[5]\t"S-00000000000000c0"[3]\t\t# "spine" lid 3 2xNDR

Switch\t8 "S-00000000000000c0"\t\t# "spine" enhanced port 0 lid 3 lmc 0
[1]\t"S-00000000000000b0"[5]\t\t# "leaf one" lid 1 4xNDR
[2]\t"S-00000000000000b0"[6]\t\t# "leaf one" lid 1 4xNDR
[3]\t"S-00000000000000b1"[5]\t\t# "leaf two" lid 2 4xNDR

caguid=0xa1
Ca\t1 "H-00000000000000a1"\t\t# "n1 mlx5_0"
[1](a1) \t"S-00000000000000b0"[1]\t\t# lid 11 lmc 0 "leaf one" lid 1 4xNDR
"""
IBNETDISCOVER_PORTS = """\
CA    11  1 0x00000000000000a1 4x NDR - SW     1  1 0x00000000000000b0 ( 'n1 mlx5_0' - 'leaf one' )
SW     1  1 0x00000000000000b0 4x NDR - CA    11  1 0x00000000000000a1 ( 'leaf one' - 'n1 mlx5_0' )
SW     1  3 0x00000000000000b0 4x SDR                                    'leaf one'
SW     1  2 0x00000000000000b0 4x NDR - CA    12  1 0x00000000000000a2 ( 'leaf one' - 'n2 mlx5_0' )
"""
IBHOSTS = 'Ca\t: 0x00000000000000a1 ports 1 "n1 mlx5_0"\nCa\t: 0x00000000000000a2 ports 1 "n2 mlx5_0"\n'
IBLINKINFO = """CA: n1 mlx5_0:
      0x00000000000000a1     11    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       1    1[  ] "leaf one" ( )
Switch: 0x00000000000000b0 leaf one:
           1    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      11    1[  ] "n1 mlx5_0" ( )
           1    2[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      12    1[  ] "n2 mlx5_0" (Could be 106.25 Gbps)
           1    3[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"""
IBLINKINFO_LINES = """\
0x00000000000000a1 "                     n1 mlx5_0"     11    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)\
==>  0x00000000000000b0      1    1[  ] "leaf one" ( )
0x00000000000000b0 "                      leaf one"      1    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)\
==>  0x00000000000000a1     11    1[  ] "n1 mlx5_0" ( )
0x00000000000000b0 "                      leaf one"      1    2[  ] ==( 4X        106.25 Gbps Active/  LinkUp)\
==>  0x00000000000000a2     12    1[  ] "n2 mlx5_0" ( )
"""
IBSIM = """# a net file
Switch\t4\t"leaf0"
[1]\t"n0"[1]
[2]\t"n1"[1] w=1 s=4
[3]\t"spine"[1]
Switch\t4\t"leaf1"
[1]\t"n2"[1]
[3]\t"spine"[2]
Switch\t4\t"spine"
[1]\t"leaf0"[3]
[2]\t"leaf1"[3]
Hca\t1\t"n0"
[1]\t"leaf0"[1]
Hca\t1\t"n1"
[1]\t"leaf0"[2]
Hca\t1\t"n2"
[1]\t"leaf1"[1]
"""
GUID_MAP = '# names\n0x00000000000000a4 "n2 mlx5_1"\n0x00000000000000b0 "rack 1"\n'
CA_ORDER = "0x0012\tn01 HCA-1\n0x0013\tn02 HCA-1\n0xFFFF\tDUMMY\n0x0014\tn03 HCA-1\n"
TORUS_2QOS = "torus 4 2m 2\nxp_link 0x200000 0x200001\nyp_link 0x200000 0x200002\nx_dateline 0\nmax_changes 5\n"
NVIDIA_SMI = """\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-47,96-143\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPXB\t48-95,144-191\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tPXB\tSYS\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
OLD_NVIDIA_SMI = """        GPU0    GPU1    mlx5_0  CPU Affinity
GPU0     X      SOC     PHB     0-7
GPU1    SOC      X      SOC     8-15
mlx5_0  PHB     SOC      X
"""
XNAMES = """nid000001 x1000c0s0b0n0
10.1.0.2 nid000002 x1000c0s0b1n0
nid000003 x1000c1s0b0n0
nid000004 x1001c0s0b0n0
"""
COORDINATES = "torus 4x3x2m  # shape\nn1 0 0 0\nn2 (3,0,0)\nn3, 0, 2, 0\nn4 0 0 1\n"
TOML = """unit = "Gbit/s"

[[switch]]
name = "leaf1"
hosts = "n[1-3]"
capacity = 400

[[switch]]
name = "leaf2"
hosts = "n[4-6]"

[[switch]]
name = "top"
switches = "leaf[1-2]"
"""

# Format, text, kind, hosts, switches, links: counted by hand.
READ = [
    ("slurm-conf", TREE, "tree", 8, 3, 10),
    ("slurm-conf", BLOCKS, "block", 12, 5, 16),
    ("slurm-conf", RING, "ring", 9, 0, 9),
    ("slurm-yaml", YAML, "torus", 24, 0, 24 + 24 + 12),
    ("slurm-conf", SCONTROL_TREE, "tree", 8, 3, 10),
    ("slurm-conf", SCONTROL_BLOCKS, "block", 11, 5, 15),
    ("slurm-conf", SCONTROL_TORUS, "none", 4, 0, 0),
    ("slurm-address", ADDRESSES, "tree", 3, 4, 7),
    ("ibnetdiscover", IBNETDISCOVER, "tree", 3, 3, 6),
    ("ibnetdiscover", IBNETDISCOVER_PORTS, "tree", 2, 1, 2),
    ("ibnetdiscover", IBHOSTS, "none", 2, 0, 0),
    ("iblinkinfo", IBLINKINFO, "tree", 2, 1, 2),
    ("iblinkinfo", IBLINKINFO_LINES, "tree", 2, 1, 2),
    ("ibsim", IBSIM, "tree", 3, 3, 5),
    ("guid-map", GUID_MAP, "none", 0, 0, 0),
    ("ftree-ca-order", CA_ORDER, "order", 3, 0, 0),
    ("torus-2QoS", TORUS_2QOS, "none", 0, 0, 0),
    ("nvidia-smi", NVIDIA_SMI, "none", 0, 0, 0),
    ("nvidia-smi", OLD_NVIDIA_SMI, "none", 0, 0, 0),
    ("xnames", XNAMES, "dragonfly", 4, 13, 16),
    ("coordinates", COORDINATES, "torus", 4, 0, 3),
    ("toml", TOML, "tree", 6, 3, 8),
]
