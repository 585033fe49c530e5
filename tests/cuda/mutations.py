"""Kernels with one thing broken, all in one build: which one is broken is said before a launch.

Where a rule matches the source, a choice stands in the copy: `barrier();` becomes `(MUTANT(7) ? void() : barrier());`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cuda.libraries import KERNELS

FILES = (
    "forward.cuh",
    "backward.cuh",
    "softmax.cuh",
    "score.cuh",
    "products.cuh",
    "tile.cuh",
    "walk.cuh",
    "problem.cuh",
    "special.cuh",
    "carried.cuh",
    "dropout.cuh",
)
# Code that these stand in is left as it is: known when g++ runs, or no code of a kernel.
UNTOUCHED = re.compile(
    r"\btemplate <|constexpr|static_assert|^\s*#|least_of\(T|most_of\(T|^\s*for \((?!.*thread_index|; )"
)


@dataclass(frozen=True)
class Rule:
    """What is broken, and how: `of` gives the text with a choice in it, from the match and numbers of its mutants."""

    names: tuple[str, ...]
    pattern: str
    of: Callable[[re.Match[str], list[int]], str]


def _text(template: str) -> Callable[[re.Match[str], list[int]], str]:
    """Templates: \\1 is a group of the match, MUTANT(#) asks for the mutant."""
    return lambda match, numbers: match.expand(template).replace("#", str(numbers[0]))


def _wait(match: re.Match[str], numbers: list[int]) -> str:
    less = f"copies_wait<{int(match[1]) + 1}>()"
    return f"(MUTANT({numbers[0]}) ? void() : MUTANT({numbers[1]}) ? {less} : copies_wait<{match[1]}>());"


_COMPARED = r"(?<=[\w)\]]) %s (?=[\w(])"
_AT_THE_END = r"(?<=[\w)\]]) \%s 1(?=[;,)}\] ])"
RULES = (  # in this order: none matches what one before has written
    Rule(("no barrier",), r"(?<![\w.])barrier\(\);", _text("(MUTANT(#) ? void() : barrier());")),
    Rule(("no vote",), r"barrier_or\((\w+)\)", _text(r"(MUTANT(#) ? \1 : barrier_or(\1))")),
    Rule(("no wait", "waits for one group less"), r"copies_wait<(\d)>\(\);", _wait),
    Rule(("no commit",), r"copies_commit\(\);", _text("(MUTANT(#) ? void() : copies_commit());")),
    Rule(("does not transpose",), r"load_matrices_transposed\((?=\w+, )", _text("load_either(MUTANT(#), ")),
    Rule(("one less",), _AT_THE_END % "+", _text(" + 1 - MUTANT(#)")),
    Rule(("one more",), _AT_THE_END % "-", _text(" - 1 + MUTANT(#)")),
    Rule(("bound + 1",), _COMPARED % "<", _text(" < MUTANT(#) + ")),
    Rule(("bound - 1",), _COMPARED % "<=", _text(" <= -MUTANT(#) + ")),
    Rule(("bound + 1",), _COMPARED % ">=", _text(" >= MUTANT(#) + ")),
    Rule(("own lane alone",), r"exchange\((top|sum|own), (1|2|mask)\)", _text(r"(MUTANT(#) ? \1 : exchange(\1, \2))")),
    Rule(("not rescaled",), r"\*= rescale;", _text("*= MUTANT(#) ? A(1) : rescale;")),
    Rule(("not begun anew",), r"APART \? 0\.0f : sums", _text("APART && !MUTANT(#) ? 0.0f : sums")),
    Rule(("not added",), r"APART \? sum \+ (?=of_tile)", _text("APART && !MUTANT(#) ? sum + ")),
    Rule(("forgets who has seen",), r"touched_ \|= ([^;]+);", _text(r"touched_ |= MUTANT(#) ? 0u : u32(\1);")),
    Rule(("always the first room",), r"n % 2(?= \* M)", _text("(MUTANT(#) ? 0 : n % 2)")),
    Rule(("not counted",), r"pairs_ \+= ([^;]+);", _text(r"pairs_ += MUTANT(#) ? 0 : int(\1);")),
    Rule(("no guard",), r"if \(([^;{]*)\) (return\b[^;]*|continue);", _text(r"if (!MUTANT(#) && (\1)) \2;")),
)


@dataclass(frozen=True)
class Mutant:
    """One thing broken.

    Attributes
    ----------
    number : int
        By which it is chosen; from 1 on.
    file, line, text : str, int, str
        Where; the text of the line.
    what : str
        The name of the rule.
    """

    number: int
    file: str
    line: int
    text: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}: {self.what}"


def write_mutants(folder: Path) -> tuple[Mutant, ...]:
    """Copy the sources there, with all choices in them."""
    shutil.copytree(KERNELS, folder, dirs_exist_ok=True)
    found: list[Mutant] = []
    for file in FILES:
        lines = (KERNELS / file).read_text(encoding="utf-8").split("\n")
        for n, line in enumerate(lines):
            code, slashes, comment = line.partition("//")
            if not UNTOUCHED.search(code):
                lines[n] = _with_choices(code, file, n + 1, found) + slashes + comment
        (folder / file).write_text("\n".join(lines), encoding="utf-8")
    return tuple(found)


def _with_choices(code: str, file: str, line: int, found: list[Mutant]) -> str:
    """A line, all rules applied."""
    whole = code.strip()
    for rule in RULES:

        def choice(match: re.Match[str], rule: Rule = rule) -> str:
            numbers = [len(found) + 1 + n for n in range(len(rule.names))]
            found.extend(Mutant(n, file, line, whole, name) for n, name in zip(numbers, rule.names, strict=True))
            return rule.of(match, numbers)

        code = re.sub(rule.pattern, choice, code)
    return code


def chosen(mutants: tuple[Mutant, ...], wanted: tuple[tuple[str, str, str], ...]) -> Iterator[tuple[Mutant, str]]:
    """For each (part of a line, rule, dtype) the first mutant there is, and the dtype.

    Raises
    ------
    LookupError
        If there is none: the source has changed.
    """
    for text, what, dtype in wanted:
        found = [mutant for mutant in mutants if text in f"{mutant.file}: {mutant.text}" and mutant.what == what]
        if not found:
            raise LookupError(f"no mutant {what!r} at {text!r}; choose another one in mutants.py")
        yield found[0], dtype
