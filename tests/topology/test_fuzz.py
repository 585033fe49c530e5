"""Damaged descriptions: a graph that is whole, or our error; nothing else, and soon."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi.errors import TopologyError
from ringmpi.topology.reading import FORMATS
from tests.topology.texts import READ, read_text, real

REAL = ["ibnetdiscover-sdr-2007.txt", "netloc-ib-qdr-134nodes.json", "hwloc-power8-gpudistances.xml"]
TEXTS = [text.encode() for _, text, *_ in READ] + [real(name)[:6000] for name in REAL]
TOKENS = [
    b"[",
    b"]",
    b"{",
    b"}",
    b"=",
    b"\t",
    b"\r\n",
    b",",
    b"-",
    b'"',
    b"#",
    b"\xff",
    b"\0",
    b"\x1b[4m",
    b"S-",
    b"H-",
    b"<",
]
TOKENS += [
    b"[0-99999]",
    b"9" * 30,
    b"&a ",
    b"*a ",
    b"!!python/object:os.system ",
    b"NaN",
    b":",
    b"\xd9\xa0",
    b"Nodes=",
    b"n01",
]


@st.composite
def damaged(draw):
    """A text with some bytes lost, doubled, swapped or put in."""
    text = bytearray(draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = min(start + draw(st.sampled_from([0, 1, 3, 30, 300])), len(text))
        kind = draw(st.sampled_from(["lose", "double", "token", "byte", "cut", "lines"]))
        if kind == "cut":
            del text[start:]
        elif kind == "lines":
            text = bytearray(b"\n".join(draw(st.permutations(bytes(text).split(b"\n")[:40]))))
        else:
            put = {"lose": b"", "double": text[start:end] * 2, "token": draw(st.sampled_from(TOKENS))}
            text[start:end] = put.get(kind, bytes([draw(st.integers(0, 255))]))
    return bytes(text)


@settings(max_examples=400, deadline=None)
@given(damaged(), st.one_of(st.none(), st.sampled_from(sorted(FORMATS))))
def test_damaged_descriptions_are_read_or_refused(text, form):
    start = time.process_time()
    try:
        graph = read_text(text, form)
    except TopologyError as error:
        refusal = str(error)
    else:
        refusal = "file"
        vertices = {*graph.hosts, *graph.switches}
        assert len(vertices) == len(graph.hosts) + len(graph.switches)
        assert graph.components.keys() == vertices == graph.neighbours.keys()
        assert all(link.ends[0] < link.ends[1] and link.capacity > 0 and link.cables > 0 for link in graph.links)
        assert {*graph.parents} <= vertices
        assert all(parent in graph.neighbours[child] for child, above in graph.parents.items() for parent in above)
    assert refusal.startswith("file")
    assert time.process_time() - start < 2
