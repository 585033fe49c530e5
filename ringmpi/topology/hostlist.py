"""Slurm's notation for many names: n[01-16,20],login to the names and back.

The grammar is that of `src/common/hostlist.c` of Slurm: items between commas or blanks, any number of brackets in one
item, leading zeros that fix the width, order kept. What follows the last bracket, and a step (n[0-8/2]), come from
ClusterShell, whose output people paste. Order counts (positions on a ring or torus), so a set library does not do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from ringmpi.errors import TopologyError

MOST_NAMES = 1 << 18
_ITEM = re.compile(r"(?:[^\s,\[\]{}]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(?a)(\d{1,18})(?:-(\d{1,18})(?:/(\d{1,18}))?)?")
_TAIL = re.compile(r"(?as)(.*?)(\d{1,18})")


def expand(text: str, where: str = "hostlist") -> list[str]:
    """The names that `text` stands for, in its order, repetitions included.

    `where` (file and line) begins the message of a TopologyError.
    """
    names: list[str] = []
    position = 0
    for item in _ITEM.finditer(text):
        _only_commas(text[position:], item.start() - position, where)
        position = item.end()
        names += _names_of(item[0], where, MOST_NAMES - len(names))
    _only_commas(text[position:], len(text), where)
    return names


def _only_commas(text: str, end: int, where: str) -> None:
    """Refuse anything else before `end`."""
    if text[:end].strip(", \t\r\n"):
        raise TopologyError(
            f"{where}: unexpected {text.strip(', ')[:40]!r} in a list of names; expected n[01-16,20],login with "
            f"brackets closed and none inside another (a function such as switch{{s1}} only Slurm itself can resolve). "
            f"Was the line cut? Unset SLURM_TOPO_LEN before scontrol"
        )


def _names_of(item: str, where: str, most: int) -> list[str]:
    """All names of one item: literal text and brackets in turn."""
    parts = _BRACKET.split(item)
    ranges = [[_range_of(text, where) for text in part.split(",")] for part in parts[1::2]]
    count = 1
    for bracket in ranges:
        count *= sum(len(numbers) for numbers, _ in bracket)
        if count > most:
            raise TopologyError(f"{where}: {item[:60]!r} stands for too many names; at most {MOST_NAMES} are read")
    choices: list[list[str]] = [[parts[0]]]
    for bracket, literal in zip(ranges, parts[2::2], strict=True):
        choices += [[f"{number:0{width}d}" for numbers, width in bracket for number in numbers], [literal]]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _range_of(text: str, where: str) -> tuple[range, int]:
    """The numbers of 01-16 or 7, and the width they are written with."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise TopologyError(f"{where}: {text[:40]!r} is not a number or a range of numbers; expected 7, 01-16 or 0-8/2")
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    if last < first or step < 1:
        raise TopologyError(
            f"{where}: the range {text[:40]!r} is empty; write the smaller number first, a step above 0"
        )
    return range(first, last + 1, step), len(found[1])


def fold(names: Iterable[str]) -> str:
    """Names written short, in their order: neighbours that differ by their last number share a bracket."""
    items: list[tuple[str, list[list[str]]]] = []  # text in front, and the first and last number of each range
    for name in names:
        found = _TAIL.fullmatch(name)
        prefix, number = found.groups() if found else (name, "")
        if not (found and items and items[-1][0] == prefix and items[-1][1]):
            items.append((prefix, [[number, number]] if found else []))
        elif _follows(items[-1][1][-1], number):
            items[-1][1][-1][1] = number
        else:
            items[-1][1].append([number, number])
    return ",".join(_written(prefix, ranges) for prefix, ranges in items)


def _follows(numbers: list[str], number: str) -> bool:
    """Whether a range may go on with `number`: the next one, written with the width of the first."""
    first, last = numbers
    return int(number) == int(last) + 1 and number == f"{int(number):0{len(first)}d}"


def _written(prefix: str, ranges: list[list[str]]) -> str:
    texts = [first if first == last else f"{first}-{last}" for first, last in ranges]
    return f"{prefix}[{','.join(texts)}]" if len(texts) > 1 or "-" in "".join(texts) else prefix + "".join(texts)
