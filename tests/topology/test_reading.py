"""Any text is recognised by its content, read with the right counts, or refused with file and line."""

import time

import pytest

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.reading import FORMATS, read, read_source
from tests.topology.texts import IBNETDISCOVER, READ, TREE, XNAMES, read_text

NAMES = [f"{form}-{number}" for number, (form, *_) in enumerate(READ)]


@pytest.mark.parametrize(("form", "text", "kind", "hosts", "switches", "links"), READ, ids=NAMES)
def test_every_format_is_read_with_the_counts_counted_by_hand(form, text, kind, hosts, switches, links):
    graph = read_text(text)
    assert (graph.kind, len(graph.hosts), len(graph.switches), len(graph.links)) == (kind, hosts, switches, links)


@pytest.mark.parametrize(("form", "text"), [case[:2] for case in READ], ids=NAMES)
def test_content_tells_the_format_and_only_one(form, text):
    assert [name for name, known in FORMATS.items() if known.recognise(Source("file", text))] == [form]


@pytest.mark.parametrize(("form", "text"), [case[:2] for case in READ], ids=NAMES)
@pytest.mark.parametrize(
    "disguise",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.rstrip("\n").encode(),
        lambda text: text.replace("\n", "\x1b[0m\n").encode(),
        lambda text: b"\n\n" + text.encode() + b"\n   \n",
    ],
    ids=["CRLF", "BOM", "UTF-16", "no last newline", "colours", "empty lines"],
)
def test_how_a_text_is_written_does_not_matter(form, text, disguise):
    plain, disguised = read_text(text), read_text(disguise(text))
    assert [vars(plain)[n] for n in ("kind", "hosts", "links")] == [
        vars(disguised)[n] for n in ("kind", "hosts", "links")
    ]


def test_every_format_is_among_the_texts():
    assert {form for form, *_ in READ} == FORMATS.keys() - {"hwloc", "netloc", "netq"}  # these are in tests/data


def test_tabs_are_blanks():
    assert read_text(TREE.replace(" ", "\t")).links == read_text(TREE).links


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\nworld\n", "file: format not recognised"),
        ("", "file: format not recognised"),
        ("SwitchName=a Nodes=n[1-4\n", "file:1: unexpected '\\[1-4'"),
        ("\nSwitchName=a Nodes=n[[1-2]]\n", "file:2: unexpected"),
        ("# DOS\r\nSwitchName=a Nodes=n[1-\r\n", "file:2: unexpected"),
        ("SwitchName=a Nodes=n[4-1]\n", "file:1: the range '4-1' is empty"),
        ("SwitchName=a Nodes=switch{s1}\n", "function such as"),
        ("SwitchName=a Nodes=n1, n2\n", "file:1: 'n2' belongs to no KEY=VALUE"),
        ("SwitchName=a Node=n1\n", "file:1: key 'Node' is not one of Slurm's"),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", "file:1: key 'Nodes' appears twice"),
        ("SwitchName=a\n", "file:1: 'a' holds nothing"),
        (
            "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n",
            "file:2: switch 'a' is defined a second time, first at file:1",
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "below themselves: a, b"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", "one file describes one layout"),
        ("BlockName=b Nodes=n1\nBlockSizes=4,6\n", "block sizes \\[4, 6\\]"),
        ("BlockName=b Nodes=n1\nBlockSizes=0\n", "file:2: BlockSizes=0"),
        ("RingName=r Nodes=n1,n1\n", "file:1: a node appears twice"),
        ("SwitchName=a Nodes=n[0-9999999]\n", "stands for too many names"),
        ("- topology: a\n  tree: {}\n", "file:2: key 'switches' is missing"),
        ("- topology: a\n", "file:1: one of tree, block"),
        ("- topology: a\n  ring: [\n", "file:3: not valid YAML"),
        (
            "- topology: a\n  torus3d: {toruses: [{name: p, dims: {x: 2, y: 2, z: 1}, nodes: 'n[1-3]'}]}\n",
            "file:2: 3 different nodes for 4 places",
        ),
        ("root.n1 switch.switch.node\n", "does not have the fields of its pattern"),
        ("root.n1 switch.node\nb.n2 block.node\n", "block and switch are mixed"),
        ("root.n1 switch.node\nwhat is this\n", "file:2: 'what is this'; expected an address"),
        (IBNETDISCOVER + "garbage\n", "file:26: 'garbage' is not a line of ibnetdiscover"),
        ('[1]\t"S-00000000000000b0"[1]\nSwitch\t4 "S-00000000000000b0"\n', "file:1: .* comes before every device"),
        ('Switch: 0xb0 leaf:\n 0 1[  ] ==( 4X 2.5 Gbps Active/ LinkUp)==> 0 1[  ] "n" ( )\n', "no subnet manager"),
        ('Switch 4 "a"\n[1] "b"[1]\n', "file:2: 'b' is not a device in this file"),
        ("torus 0 2 2\nxp_link 0x1 0x2\n", "file:1: a size is 0"),
        ("xp_link 0x1 0x2\n", "no line gives the sizes"),
        ("torus 4 4 4\nxp_link 0x1 0x2\nxp_link 0x1 0x3\n", "two seed links lead to place"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV1\n", "no row for GPU1"),
        ("\tGPU0\tGPU1\nGPU0\t X \n", "file:2: 1 cells for 2 devices"),
        ("\tGPU0\tGPU1\nGPU0\t X \tWHAT\nGPU1\tPIX\t X\n", "file:2: 'WHAT' is not a connection"),
        ("torus 2x2\nn1 0 0\nn2 0 2\n", "file:3: place \\(0, 2\\) of 'n2' does not lie in 2x2"),
        ("torus 2x2\nn1 0 0\nn2 0 0\n", "file:3: place \\(0, 0\\) is given to 'n1' and to 'n2'"),
        ("torus 2x2\nn1 0 0\nn1 0 1\n", "file:3: host 'n1' has a place already"),
        ("torus 2x2\n", "no host has a place"),
        ("[[switch]]\nname = 'a'\nhost = 'n1'\n", "switch.0.host: Extra inputs"),
        ("[[switch]]\nname = \n", "not valid TOML"),
        ("[[link]]\nbetween = ['a', 'b']\ncapacity = -1\n", "link.0.capacity"),
        ("[[grid]]\nname = 'g'\nshape = [2, 2]\nhosts = 'n[1-3]'\n", "3 different hosts for 4 places"),
        ("[[switch]]\nname = 'a'\nhosts = 'a'\n", "names both a host and a switch"),
        ("<topology><object></topology>", "file:1: not valid XML"),
        ('<!DOCTYPE t [<!ENTITY a "b">]><topology/>', "declares XML entities"),
        ('{"node_info": {}', "file:1: not valid JSON"),
        ('{"node_info": {}}', "not what netloc writes"),
        ('[{"compounded_links": ' + "[" * 20000 + "]" * 20000 + "}]", "nest too deeply"),
        (b"SwitchName=a\0", "contains zero bytes"),
        ("0x0012\tn01\n" + "x" * 2000, "a line of 2000 characters"),
    ],
)
def test_messages_say_where_and_what(text, message):
    form = "ftree-ca-order" if isinstance(text, str) and "x" * 2000 in text else None
    with pytest.raises(TopologyError, match=message):
        read_text(text, form)


def test_xname_message_has_its_line():
    with pytest.raises(TopologyError, match="file:5: 'nid5' has no place"):
        read_text(XNAMES + "nid5\n", "xnames")


def test_a_format_can_be_forced():
    with pytest.raises(TopologyError, match="file:1: .* is not a line of ibnetdiscover"):
        read_text(TREE.removeprefix("# two leaves and a spine\n"), "ibnetdiscover")
    with pytest.raises(TopologyError, match="format 'slurm' is unknown; choose one of hwloc, netloc"):
        read_text(TREE, "slurm")


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(TopologyError, match="cannot be read: No such file"):
        read([tmp_path / "missing.conf"])
    with pytest.raises(TopologyError, match="cannot be read: Is a directory"):
        read([tmp_path])


def test_ten_thousand_hosts_in_two_seconds():
    leaves = "".join(f"SwitchName=leaf{n} Nodes=n[{20 * n}-{20 * n + 19}]\n" for n in range(500))
    start = time.process_time()
    graph = read_source(Source("file", leaves + "SwitchName=top Switches=leaf[0-499]\n"))
    assert len(graph.components) == 10501
    assert time.process_time() - start < 2
