"""What is on the page: sections of blocks. The template `report.html.j2` shows them, and escapes all their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Text:
    """A paragraph. style: "", "quiet", or "finding" for a conclusion."""

    text: str
    style: str = ""
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Missing:
    """What is not shown and why, in a line; `option` of RUN.toml, or a command, brings it."""

    text: str
    option: str = ""
    kind: ClassVar[str] = "missing"


@dataclass(frozen=True)
class Details:
    """Names and values; files that hold all of them."""

    entries: Sequence[tuple[str, str]]
    files: Sequence[str] = ()
    kind: ClassVar[str] = "details"


@dataclass(frozen=True)
class Checks:
    """Checks: passed or not, and the finding. title: of a list that is folded away."""

    entries: Sequence[tuple[bool, str]]
    title: str = ""
    kind: ClassVar[str] = "checks"


@dataclass(frozen=True)
class Listing:
    """A text as it stands, folded away."""

    title: str
    text: str
    kind: ClassVar[str] = "listing"


@dataclass(frozen=True)
class Picture:
    """A figure, drawn for a wide and for a narrow page.

    Attributes
    ----------
    name : str
        Unique on the page; its files begin with it.
    title, caption : str
        What it is; what it shows, in which units, how to read it.
    wide, narrow : str
        SVG elements (markup), each with a text for those who do not see it. narrow may be empty: the wide one is for
        both.
    files : sequence of str
        Beside the page: SVG, PNG, CSV.
    """

    name: str
    title: str
    caption: str
    wide: Any
    narrow: Any
    files: Sequence[str]
    kind: ClassVar[str] = "picture"


@dataclass(frozen=True)
class Table:
    """A table; columns `right` hold numbers. left_out: what of it is in the file only."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    files: Sequence[str] = ()
    left_out: str = ""
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Map:
    """The attention map of every head, to choose a head and to look closer.

    Attributes
    ----------
    name, title, caption, files
        As of a `Picture`.
    data : dict
        What the script draws, JSON-able (report/quantised.py).
    gradient, lowest, highest : str
        The colours from no weight to the largest, as CSS; the ends of the scale.
    still : str
        The mean of all heads as an SVG element (markup), for readers without scripts.
    """

    name: str
    title: str
    caption: str
    data: dict[str, Any]
    gradient: str
    lowest: str
    highest: str
    still: Any
    files: Sequence[str]
    kind: ClassVar[str] = "map"


Block = Text | Missing | Details | Checks | Listing | Picture | Table | Map


@dataclass(frozen=True)
class Section:
    """A part of the page. key: its address on the page, unique."""

    key: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fact:
    """A figure of the overview. mood: "", "good" or "bad"."""

    name: str
    value: str
    note: str
    mood: str = ""


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    lead: str
    facts: Sequence[Fact]
    sections: Sequence[Section]
    foot: str
